"""Figures of data-size: the table and the gaps that are drawn."""

from matplotlib.figure import Figure

from vitrine.studies.data_size_figures import draw_gaps, format_size
from vitrine.studies.data_size_grid import GRIDS
from vitrine.studies.data_size_readings import MAIN


def test_the_table_has_means_spread_and_gap() -> None:
    readings = {
        (name, 20, seed): {"accuracy": accuracy, "num_images": 10}
        for name, accuracies in (("ViT", (0.2, 0.4)), ("ResNet", (0.75, 0.75)))
        for seed, accuracy in enumerate(accuracies)
    }
    row = format_size(GRIDS["tiny"], readings, 20, "twenty")
    assert row == ("twenty", "", "30.0 \u00b1 14.1", "75.0 \u00b1 0.0", "", "\u221245.0")


def test_gaps_are_drawn_with_their_names() -> None:
    figure = Figure()
    draw_gaps(
        figure, [(MAIN.name, [(20, -30.0), (400, 1.0)]), ("on digits", [(20, 5.0), (400, 6.0)])], {20: "20", 400: "fresh"}
    )
    (panel,) = figure.axes
    assert {text.get_text() for text in panel.texts} == {MAIN.name, "on digits"}
    first, second = [line for line in panel.get_lines() if line.get_marker() == "o"]
    assert (list(first.get_ydata()), list(second.get_ydata())) == ([-30.0, 1.0], [5.0, 6.0])
    assert first.get_linestyle() == "-" != second.get_linestyle()
