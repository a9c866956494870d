"""Figures of a fit's page: accuracy against training images with a forecast, and accuracy against images answered."""

from typing import TYPE_CHECKING

import numpy as np

from vitrine.core.figures import ACCENT, INK, INK_2, NARROW
from vitrine.core.page_parts import THIN_SPACE, format_short_percent
from vitrine.evaluation.calibration import Coverage
from vitrine.evaluation.intervals import Estimate, wilson_interval
from vitrine.fitting.learning_curve import LearningCurve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MIN_ERROR = 1e-4  # drawn on the way of a power law to an error of 0
NUM_LAW_POINTS = 20
PADDING = 0.02  # of the accuracy axis
BAND_OPACITY = 0.12


def draw_learning_curve(figure: "Figure", curve: LearningCurve) -> None:
    """Draw measured accuracies with their intervals, and beyond them the power law to twice as many images."""
    panel = figure.add_subplot()
    sizes, accuracies = np.array(curve.images_per_class), curve.accuracies
    values = np.array([each.value for each in accuracies])
    lows, highs = (np.array(ends) for ends in zip(*map(list_ends, accuracies), strict=True))
    now, doubled = curve.doubled_images_per_class / 2, curve.doubled_images_per_class
    doubled_low, doubled_high = list_ends(curve.doubled)
    beyond = np.geomspace(sizes[-1], doubled, NUM_LAW_POINTS)
    law = follow_law((now, doubled), (curve.doubled.value - curve.gain.value, curve.doubled.value), beyond)
    low, high = (
        follow_law((sizes[-1], doubled), ends, beyond) for ends in ((lows[-1], doubled_low), (highs[-1], doubled_high))
    )
    panel.fill_between(beyond, low, high, color=INK, alpha=BAND_OPACITY, linewidth=0)
    panel.vlines(sizes, lows, highs, color=INK, linewidth=1.4, alpha=0.55)
    panel.plot(sizes, values, color=INK, marker="o")
    panel.plot(beyond, law, color=ACCENT, linestyle=":")
    panel.vlines([doubled], [doubled_low], [doubled_high], color=ACCENT, linewidth=1.8)
    panel.plot([doubled], [curve.doubled.value], "o", color=ACCENT, markerfacecolor="#fcfcfb", markersize=7)
    set_accuracy_axis(panel, min(lows.min(), low.min()), max(highs.max(), high.max()), "Accuracy in cross-validation")
    bottom = panel.get_ylim()[0]
    at_now = float(np.interp(now, beyond, law))
    panel.vlines([now], [bottom], [at_now], color=INK_2, linewidth=0.8, linestyle="--")
    panel.annotate("now", (now, bottom), xytext=(-4, 4), textcoords="offset points", ha="right", color=INK, weight="bold")
    words = "twice as many" if figure.get_figwidth() > NARROW else "twice"
    panel.annotate(words, (doubled, doubled_low), xytext=(5, -26), textcoords="offset points", ha="right", color=ACCENT)
    panel.set_xscale("log")
    ticks = [*dict.fromkeys([*sizes.tolist()[:-1], now, doubled])]
    panel.set_xticks(ticks, list(map(format_per_class, ticks)))
    panel.minorticks_off()
    panel.set_xlabel("Training photos per class, log scale")


def format_per_class(count: float) -> str:
    """Format a mean number of photos per class, e.g. 2.5, or 10 for 9.99."""
    return f"{count:,.0f}" if count >= 9.5 else f"{count:.2g}"


def follow_law(sizes: tuple[float, float], accuracies: tuple[float, float], at: np.ndarray) -> np.ndarray:
    """Return accuracies at some sizes on the power law of the error through two points."""
    logs = np.log(np.maximum(MIN_ERROR, 1 - np.array(accuracies)))
    slope = (logs[1] - logs[0]) / (np.log(sizes[1]) - np.log(sizes[0]))
    return 1 - np.exp(logs[0] + slope * (np.log(at) - np.log(sizes[0])))


def draw_coverage(figure: "Figure", coverage: Coverage, num_images: int, point: tuple[float, float] | None, words: str) -> None:
    """Draw the accuracy of the surest answers with its interval; `point` is where the model says "unsure"."""
    panel = figure.add_subplot()
    fractions, accuracy = np.array(coverage.coverage), np.array(coverage.accuracy)
    intervals = [wilson_interval(value, round(part * num_images)) for part, value in zip(fractions, accuracy, strict=True)]
    lows, highs = (np.array(ends) for ends in zip(*map(list_ends, intervals), strict=True))
    is_shown = fractions >= min(0.05, fractions[0])  # the first few say nothing, and would stretch the axis
    panel.fill_between(fractions, lows, highs, where=is_shown.tolist(), color=INK, alpha=BAND_OPACITY, linewidth=0)
    panel.plot(fractions[is_shown], accuracy[is_shown], color=INK)
    set_accuracy_axis(panel, float(lows[is_shown].min()), 1.0, "Accuracy of the answers")
    panel.set_xlim(0, 1.01)
    panel.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", f"100{THIN_SPACE}%"])
    panel.set_xlabel("Photos that get an answer, the surest first")
    if point is not None:
        panel.plot(*point, "o", color=ACCENT, markersize=7)
        bottom, top = panel.get_ylim()
        place = (max(0.04, point[0] - 0.45), bottom + 0.1 * (top - bottom))
        panel.annotate(words, point, xytext=place, color=ACCENT, arrowprops={"arrowstyle": "-", "color": ACCENT})


def set_accuracy_axis(panel: "Axes", low: float, high: float, title: str) -> None:
    """Label an accuracy axis that holds everything from low to high, with round ticks, the unit on the top one."""
    start, end = max(0.0, low - PADDING), min(1.0, high + PADDING)
    step = next(step for step in (0.01, 0.02, 0.05, 0.1, 0.2) if (end - start) / step <= 5.5)
    first, last = np.floor(start / step + 1e-9), np.ceil(end / step - 1e-9)
    ticks = step * np.arange(first, last + 1)
    ticks = ticks[ticks <= 1 + 1e-9]
    labels = [f"{100 * tick:.0f}" for tick in ticks[:-1]] + [format_short_percent(float(ticks[-1]), 0)]
    panel.set_yticks(ticks, labels)
    panel.set_ylim(ticks[0], ticks[-1] + 0.01 * (ticks[-1] - ticks[0]))
    panel.set_title(title)


def list_ends(estimate: Estimate) -> tuple[float, float]:
    """Return both ends of an interval; without one, the value twice."""
    low, high = (estimate.value if end is None else end for end in (estimate.low, estimate.high))
    return low, high
