"""The curves of a run as a picture."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrine.core.figures import save_figure
from vitrine.train.metrics_file import is_evaluated

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

Record = Mapping[str, Any]  # as read from a file, with None for what was not finite
Curves = dict[str, tuple[list[float], list[float]]]

TRAINING_COLOUR = "#8395a7"
RATE_COLOUR = "#c4c4c4"
RATE_TEXT_COLOUR = "#8c8c8c"
EVALUATED_COLOURS = ("#d1495b", "#00798c", "#edae49", "#5b3758", "#5aa469", "#2e5fa3", "#c77dba", "#8a5a44")


def plot_curves(records: Sequence[Record], path: Path, title: str) -> bool:
    """Losses at the left, accuracies at the right, as PNG; False, and no file, where the records have neither."""
    losses = collect_curves(records, is_loss)
    accuracies = collect_curves(records, is_accuracy, scale=100.0)
    if not losses and not accuracies:
        return False
    save_figure(draw_figure(losses, accuracies, collect_curves(records, lambda name: name == "rate"), title), path)
    return True


def draw_figure(losses: Curves, accuracies: Curves, rates: Curves, title: str) -> "Figure":
    """A panel for each kind that there is."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    num_panels = bool(losses) + bool(accuracies)
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1)
    figure = Figure(figsize=(6.4 * num_panels, 4.8), dpi=120, layout=layout)
    figure.suptitle(title, fontsize=14, wrap=True, parse_math=False)  # a dollar is a dollar
    if losses:
        draw_losses(add_panel(figure, num_panels, 1, "loss"), losses, rates)
    if accuracies:
        draw_accuracies(add_panel(figure, num_panels, num_panels, "accuracy (%)"), accuracies)
    return figure


def is_loss(name: str) -> bool:
    return name == "loss" or (is_evaluated(name) and name.endswith("_loss"))


def is_accuracy(name: str) -> bool:
    return (
        name == "accuracy"
        or name.startswith("few_shot_")
        or (is_evaluated(name) and name.endswith(("_top1", "_top5", "_accuracy", "_explained")))
    )


def collect_curves(records: Sequence[Record], is_wanted: Callable[[str], bool], scale: float = 1.0) -> Curves:
    """Steps and values by name, as they come in the records. What was not finite is a gap; a curve of gaps is none."""
    curves: Curves = {}
    for record in records:
        for name, value in record.items():
            if is_wanted(name):
                steps, values = curves.setdefault(name, ([], []))
                steps.append(record["step"])
                values.append(math.nan if value is None else scale * value)
    return {name: curve for name, curve in curves.items() if any(map(math.isfinite, curve[1]))}


def add_panel(figure: "Figure", num_panels: int, place: int, label: str) -> "Axes":
    from matplotlib.ticker import MaxNLocator

    panel = figure.add_subplot(1, num_panels, place)
    panel.set_xlabel("step", fontsize=11)
    panel.set_ylabel(label, fontsize=11)
    panel.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    panel.xaxis.set_major_formatter("{x:,.0f}")
    panel.tick_params(labelsize=10)
    panel.grid(color="#eeeeee")
    panel.spines[["top", "right"]].set_visible(False)
    return panel


def draw_losses(panel: "Axes", losses: Curves, rates: Curves) -> None:
    lines = draw_curves(panel, losses)
    for steps, rate in rates.values():
        behind = panel.twinx()
        lines += behind.plot(steps, rate, label="learning rate", linestyle="--", **style_thin(RATE_COLOUR, len(steps)))
        behind.set_ylim(bottom=0.0)
        behind.set_ylabel("learning rate", fontsize=10, color=RATE_TEXT_COLOUR)
        behind.tick_params(labelsize=9, labelcolor=RATE_TEXT_COLOUR, color=RATE_COLOUR)
        behind.yaxis.set_major_formatter("{x:g}")
        behind.spines[:].set_visible(False)
        panel.set_zorder(behind.get_zorder() + 1)
        panel.patch.set_visible(False)  # or it would hide what is behind
    add_legend(panel, lines)


def draw_accuracies(panel: "Axes", accuracies: Curves) -> None:
    lines = draw_curves(panel, accuracies)
    panel.set_ylim(bottom=0.0)
    add_legend(panel, lines)


def draw_curves(panel: "Axes", curves: Curves) -> "list[Line2D]":
    """Training thin, evaluations with a mark at each."""
    lines: list[Line2D] = []
    colours = iter(EVALUATED_COLOURS * len(curves))
    for name, (steps, values) in sorted(curves.items(), key=lambda curve: is_evaluated(curve[0])):
        if is_evaluated(name):
            style = {"color": next(colours), "linewidth": 1.8, "marker": "o", "markersize": 4.5}
        else:
            style = style_thin(TRAINING_COLOUR, len(steps))
        lines += panel.plot(steps, values, label=describe(name), clip_on=False, **style)  # a mark at 0 % is whole
    return lines


def style_thin(colour: str, num_points: int) -> dict[str, Any]:
    """A point by itself has a mark, or it would not be seen."""
    return {"color": colour, "linewidth": 1.0, "marker": "." if num_points == 1 else ""}


def describe(name: str) -> str:
    if not is_evaluated(name):
        return "training"
    return name.removesuffix("_loss").replace("few_shot", "few-shot").replace("_top", " top-").replace("_", " ")


def add_legend(panel: "Axes", lines: "Sequence[Line2D]") -> None:
    """Below the panel, where no curve can run into it."""
    num_rows = math.ceil(len(lines) / 3)
    num_columns = math.ceil(len(lines) / num_rows)
    panel.legend(
        handles=lines,
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        borderaxespad=3.9,
        ncols=num_columns,
        frameon=False,
        fontsize=10,
    )
