"""The figure of self-supervision: its table and its three lines."""

from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from tests.studies.test_data_size import SEEDS
from tests.studies.test_self_supervision import PLANTED, make_outcomes
from vitrine.core import figures
from vitrine.studies.self_supervision import build, collect
from vitrine.studies.self_supervision_figures import describe_starts, format_size
from vitrine.studies.self_supervision_grid import STARTS


def test_lines_are_labelled_and_scratch_is_hollow_and_dotted() -> None:
    plan = build("tiny", None, SEEDS)
    outcomes = make_outcomes(plan, PLANTED)
    described = describe_starts(plan, outcomes, collect(outcomes))
    figure = Figure()
    described.draw(figure)
    (panel,) = figure.axes
    assert {text.get_text() for text in panel.texts} == {*STARTS}
    assert {to_hex(text.get_color()) for text in panel.texts} == {figures.INK_2}  # those of the lines are too pale for text
    scratch, dots = [line for line in panel.get_lines() if line.get_color() == figures.SCRATCH]
    assert (scratch.get_linestyle(), dots.get_markerfacecolor(), len(dots.get_ydata())) == (":", "none", 9)
    assert len([line for line in panel.get_lines() if line.get_color() == figures.PRETRAINED]) == 4
    assert [label.get_text() for label in panel.get_xticklabels()] == ["20", "50", "200"]


def test_the_table_has_means_spread_and_both_differences() -> None:
    accuracies = dict(zip(STARTS, ((0.2, 0.4), (0.5, 0.5), (0.75, 0.75)), strict=True))
    readings = {
        (name, 20, seed): {"accuracy": accuracy, "num_images": 10}
        for name, values in accuracies.items()
        for seed, accuracy in enumerate(values)
    }
    row = format_size(readings, 20, "twenty")
    assert row == ("twenty", "30.0 \u00b1 14.1", "50.0 \u00b1 0.0", "75.0 \u00b1 0.0", "+20.0", "+25.0")
