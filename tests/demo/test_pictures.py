"""The figures of the report are drawn of what they are given."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from vitrine.demo import pictures
from vitrine.demo.pictures import COLOURS, LETTERS, draw_accuracies, draw_curves, draw_distances
from vitrine.demo.story import Result
from vitrine.evaluate.uncertainty import Estimate


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    figures: list[Figure] = []
    monkeypatch.setattr(pictures, "save_figure", lambda figure, path: figures.append(figure))
    return figures


def build_result(key: str, accuracy: Estimate | None) -> Result:
    return Result(key=key, title=key, command="", seconds=1.0, accuracy=accuracy)


def test_accuracies_lie_on_their_intervals(drawn: list[Figure]) -> None:
    results = [build_result("transfer", Estimate(0.8, 0.7, 0.9)), build_result("scratch", Estimate(0.5, 0.4, 0.6))]
    draw_accuracies([*results, build_result("inspect", None)], Path("x.png"))
    (panel,) = drawn[0].axes
    lines = [list(map(float, line.get_xdata())) for line in panel.lines]
    assert lines == [pytest.approx(values) for values in ([70, 90], [80], [40, 60], [50])]
    assert [label.get_text() for label in panel.get_yticklabels()] == ["transfer", "scratch"]
    assert {line.get_color() for line in panel.lines} == {COLOURS["transfer"], COLOURS["scratch"]}


def test_curves_are_the_losses_of_the_records(drawn: list[Figure]) -> None:
    records = [{"step": 10, "loss": 2.0}, {"step": 15, "val_top1": 0.5}, {"step": 20, "loss": None}, {"step": 30, "loss": 1.0}]
    draw_curves({"resnet": records, "hybrid": records[:1]}, Path("x.png"))
    (panel,) = drawn[0].axes
    assert [(list(line.get_xdata()), list(line.get_ydata())) for line in panel.lines] == [
        ([10, 30], [2.0, 1.0]),
        ([10], [2.0]),
    ]
    assert [line.get_marker() for line in panel.lines] == ["", "o"]  # a point by itself would not be seen
    legend = panel.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["resnet", "hybrid"]


def test_a_dot_for_each_head(drawn: list[Figure]) -> None:
    draw_distances(np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), Path("x.png"))
    (panel,) = drawn[0].axes
    assert [list(line.get_ydata()) for line in panel.lines] == [[1, 4], [2, 5], [3, 6]]
    assert panel.yaxis.label.get_fontsize() == LETTERS


def test_they_are_files(tmp_path: Path) -> None:
    draw_distances(np.ones((2, 2)), tmp_path / "distances.png")
    assert (tmp_path / "distances.png").read_bytes().startswith(b"\x89PNG")
