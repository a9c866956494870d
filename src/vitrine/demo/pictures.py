"""Figures of the demo's report: accuracies with their intervals, curves, attention distances. Large letters, for phones."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vitrine.core.figures import save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from vitrine.demo.story import Result

COLOURS = {
    "pretrain": "#5b3758",
    "transfer": "#d1495b",
    "few-shot": "#edae49",
    "scratch": "#00798c",
    "resnet": "#5aa469",
    "hybrid": "#2e5fa3",
}
WIDTH, LETTERS = 6.4, 13


def draw_accuracies(results: "Sequence[Result]", path: Path) -> None:
    """A dot for each, from top to bottom, on the interval that it may lie in."""
    tested = [(result, result.accuracy) for result in results if result.accuracy is not None]
    figure, panel = make_panel(0.5 * len(tested) + 1.2)
    for place, (result, accuracy) in enumerate(tested):
        assert accuracy.low is not None
        assert accuracy.high is not None
        colour = COLOURS[result.key]
        panel.plot([100 * accuracy.low, 100 * accuracy.high], [place, place], color=colour, linewidth=3, alpha=0.45)
        panel.plot([100 * accuracy.value], [place], "o", color=colour, markersize=9)
    panel.set_yticks(range(len(tested)), [result.key for result, _ in tested])
    panel.set_ylim(len(tested) - 0.5, -0.5)
    panel.set_xlabel("accuracy (%)", fontsize=LETTERS)
    save_figure(figure, path)


def draw_curves(curves: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """The training loss of several runs, by the records of each."""
    figure, panel = make_panel(3.9)
    for key, records in curves.items():
        points = [(record["step"], record["loss"]) for record in records if record.get("loss") is not None]
        style = {"color": COLOURS[key], "linewidth": 2.0, "marker": "o" if len(points) == 1 else ""}
        panel.plot([step for step, _ in points], [loss for _, loss in points], label=key, **style)
    panel.set_xlabel("step", fontsize=LETTERS)
    panel.set_ylabel("training loss", fontsize=LETTERS)
    panel.set_ylim(bottom=0.0)
    panel.legend(frameon=False, fontsize=LETTERS)
    save_figure(figure, path)


def draw_distances(distances: np.ndarray, path: Path) -> None:
    """A dot for each head, by layer: (layers, heads), in pixels."""
    figure, panel = make_panel(3.6)
    for head in distances.T:
        panel.plot(range(len(head)), head, "o", markersize=8, alpha=0.8)
    panel.set_xticks(range(len(distances)))
    panel.set_xlabel("layer", fontsize=LETTERS)
    panel.set_ylabel("mean distance (pixels)", fontsize=LETTERS)
    panel.set_ylim(0.0, 1.1 * distances.max())  # so that no dot is cut
    save_figure(figure, path)


def make_panel(height: float) -> "tuple[Figure, Axes]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), dpi=120, layout="constrained")
    panel = figure.add_subplot()
    panel.tick_params(labelsize=LETTERS)
    panel.grid(color="#eeeeee")
    panel.spines[["top", "right"]].set_visible(False)
    return figure, panel
