"""Figures of the demo: colours and styles of families and starts, shared axes, and labels beside their intervals."""

import pytest
from matplotlib.figure import Figure

from vitrine.core.figures import NARROW, RESNET, VIT, WIDE, figure_style, make_figure
from vitrine.demo.figures import PAPER, Line, draw_curves, draw_intervals, find_start
from vitrine.evaluation.intervals import Estimate

LINES = [
    Line("vit", "pre-trained", Estimate(0.9, 0.86, 0.93)),
    Line("vit", "from scratch", Estimate(0.8, 0.74, 0.84), is_scratch=True),
    Line("resnet", "from scratch", Estimate(0.95, 0.92, 0.97), is_scratch=True),
]
RECORDS = [{"step": 10, "loss": 2.0}, {"step": 15, "val_top1": 0.5}, {"step": 20, "loss": None}, {"step": 30, "loss": 1.0}]


def test_pretrained_is_filled_and_solid_and_scratch_hollow_and_dotted() -> None:
    figure = Figure()
    draw_intervals(figure, LINES)
    (panel,) = figure.axes
    intervals, dots = panel.lines[::2], panel.lines[1::2]
    assert [line.get_linestyle() for line in intervals] == ["-", ":", ":"]
    assert [line.get_color() for line in intervals] == [VIT, VIT, RESNET]
    assert [list(line.get_xdata()) for line in dots] == [[90], [80], [95]]
    assert [line.get_markerfacecolor() for line in dots] == [VIT, PAPER, PAPER]
    assert [label.get_text() for label in panel.get_yticklabels()] == ["ViT", "ResNet"]
    assert [text.get_ha() for text in panel.texts] == ["right", "left", "right"]


@pytest.mark.parametrize(("low", "start"), [(0.74, 70), (0.7, 60), (0.0, 0), (None, 70)])
def test_the_axis_begins_below_all_intervals(low: float | None, start: int) -> None:
    assert find_start([Line("vit", "", Estimate(0.8, low, 0.84))]) == start


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_curves_are_small_multiples_with_the_same_axes(width: float) -> None:
    runs = {
        ("vit", "transfer"): RECORDS,
        ("vit", "scratch"): RECORDS[:1],
        ("resnet", "scratch"): [{"step": 10, "loss": 3.0}],
        ("hybrid", "scratch"): RECORDS[1:3],
    }
    with figure_style():
        figure = make_figure(width, 3)
        draw_curves(figure, runs, "loss", "Loss")
        first, second, third = figure.axes
        assert [list(line.get_xdata()) for line in first.lines] == [[10, 30], [10]]
        assert [(line.get_linestyle(), line.get_marker()) for line in first.lines] == [("-", ""), (":", "o")]
        assert list(third.lines) == []  # nothing was logged
        assert [panel.get_title(loc="left") for panel in figure.axes] == ["ViT", "ResNet", "hybrid"]
        assert first.get_ylim() == second.get_ylim()
        assert first.get_ylim()[0] == 0
        assert first.get_ylim()[1] >= 3
        assert first.get_subplotspec().is_first_row() == (second.get_subplotspec().is_first_row() or width == NARROW)
