"""Accuracy by number of images, like figure 4 of arXiv:2010.11929: what the figures of several studies share."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from vitrine.core.figures import INK_2, WIDE
from vitrine.core.page_parts import THIN_SPACE
from vitrine.studies.answers import Readings, build_pair
from vitrine.studies.page_claims import format_signed
from vitrine.studies.runner import RunOutcome
from vitrine.training.metrics_log import label_ends

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Points = list[tuple[int, float]]
"""Values by number of images."""
QUARTER = 25  # of the axis of accuracies, in percent


@dataclass(frozen=True, kw_only=True)
class Curve:
    """How the line of a model or of a start is drawn."""

    name: str
    """Name in the readings, and the line's label."""
    colour: str
    marker: str = "o"
    line_width: float = 1.8
    line_style: Any = "-"
    is_hollow: bool = False
    label_colour: str | None = None
    """None: that of the line."""


def list_accuracies(readings: Readings, name: str, num_images: int) -> list[float]:
    """Return the accuracies of a model on a number of images, seed by seed."""
    return [reading["accuracy"] for (model, size, _), reading in readings.items() if (model, size) == (name, num_images)]


def compute_means(readings: Readings, name: str) -> Points:
    """Return the mean accuracy of a model over the seeds, by number of images."""
    sizes = sorted({size for model, size, _ in readings if model == name})
    return [(size, fmean(list_accuracies(readings, name, size))) for size in sizes]


def format_mean(values: Sequence[float]) -> str:
    """Format the mean of some accuracies in percent, with their standard deviation if there are several."""
    if not values:
        return ""
    return f"{100 * fmean(values):.1f}" + (f" \u00b1 {100 * stdev(values):.1f}" if len(values) > 1 else "")


def format_gap(readings: Readings, compared: tuple[str, str], num_images: int) -> str:
    """Format the mean accuracy of a model minus that of another, in points, over the seeds that both have; empty if none."""
    pair = build_pair(readings, compared, [num_images])
    if pair is None:
        return ""
    first, second = (fmean(reading["accuracy"] for reading in side) for side in (pair.first, pair.second))
    return format_signed(100 * (first - second), "points")


def describe_means(readings: Readings, names: Sequence[str]) -> str:
    """Return the means of each model in words, for readers who do not see the figure."""
    means = {name: compute_means(readings, name) for name in names}
    return "; ".join(
        f"{name}: {', '.join(f'{100 * mean:.0f}' for _, mean in points)} percent" for name, points in means.items() if points
    )


def list_amounts(outcomes: Sequence[RunOutcome]) -> dict[int, str]:
    """Return the numbers of images in words: the last may be fresh ones."""
    return dict(sorted({each.run.columns["num_images"]: each.run.columns["amount"] for each in outcomes}.items()))


def choose_floor(readings: Readings) -> int:
    """Return the quarter of the axis of accuracies, in percent, that it may start at: no run lies below."""
    lowest = min((reading["accuracy"] for reading in readings.values()), default=0.0)
    return QUARTER * min(int(100 * lowest / QUARTER), 3)


def draw_accuracies(
    figure: "Figure",
    curves: Sequence[Curve],
    readings: Readings,
    guessing: float,
    amounts: dict[int, str],
    axis: str,
    floor: int = 0,
) -> None:
    """Draw every run as a dot, and the means of each curve as a line with its name at the end.

    Guessing, and the floor that the axis starts at, are in percent; below the floor there is no line of guessing.
    """
    panel, ends = figure.add_subplot(), []
    for curve in curves:
        means = compute_means(readings, curve.name)
        if not means:
            continue
        sizes, values = zip(*means, strict=True)
        accuracies = [100 * value for value in values]
        panel.plot(sizes, accuracies, color=curve.colour, linewidth=curve.line_width, linestyle=curve.line_style)
        ends.append((accuracies[-1], curve.name, curve.label_colour or curve.colour))
        draw_dots(panel, curve, readings)
    if guessing >= floor:
        panel.axhline(guessing, color=INK_2, linewidth=0.8, linestyle=":")
    panel.set_title("Accuracy on test images")
    panel.set_ylim(floor, 100)
    ticks = range(floor, 101, QUARTER)
    panel.set_yticks(ticks, [f"{tick}{THIN_SPACE}%" if tick == 100 else str(tick) for tick in ticks])
    set_sizes(panel, amounts, axis)
    label_ends(panel, ends)


def draw_dots(panel: "Axes", curve: Curve, readings: Readings) -> None:
    """Draw every run of a curve as a dot."""
    dots = [(size, 100 * reading["accuracy"]) for (name, size, _), reading in readings.items() if name == curve.name]
    inside = "none" if curve.is_hollow else curve.colour
    panel.plot(
        *zip(*dots, strict=True),
        color=curve.colour,
        linestyle="",
        marker=curve.marker,
        markersize=4,
        markerfacecolor=inside,
    )


def set_sizes(panel: "Axes", amounts: dict[int, str], axis: str) -> None:
    """Label the axis of the numbers of images; thousands are short where there is little room."""
    is_wide = panel.get_figure(root=True).get_figwidth() >= WIDE  # type: ignore[union-attr]
    labels = list(amounts.values()) if is_wide else [shorten_amount(amount) for amount in amounts.values()]
    panel.set_xscale("log")
    panel.set_xticks([*amounts], labels)
    panel.minorticks_off()
    panel.set_xlabel(f"{axis} (log scale)")


def shorten_amount(amount: str) -> str:
    """Return a number of images in thousands from 1,000 on, e.g. 33k; words stay."""
    digits = amount.replace(",", "")
    return f"{int(digits) / 1000:.0f}k" if digits.isdecimal() and int(digits) >= 1000 else amount
