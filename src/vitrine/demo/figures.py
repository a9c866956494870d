"""Figures of the demo's report: accuracies with their intervals on one axis, and training curves as small multiples.

A family has its colour and marker throughout; pre-trained is filled and solid, from scratch hollow and dotted.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitrine.core.figures import HYBRID, INK_2, RESNET, VIT, WIDE
from vitrine.core.page_parts import THIN_SPACE, format_short_percent
from vitrine.demo.plan import FAMILIES, Family, Kind
from vitrine.evaluation.intervals import Estimate
from vitrine.training.metrics_log import thin_curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS: dict[Family, str] = {"vit": VIT, "resnet": RESNET, "hybrid": HYBRID}
MARKERS: dict[Family, str] = {"vit": "o", "resnet": "s", "hybrid": "D"}
PAPER = "#fcfcfb"  # inside hollow markers
AXIS_STEP = 10  # points that the axis of accuracies begins at a multiple of
ROW_HEIGHT, LABEL_RISE = 0.42, 0.16  # distance of two lines of a family, and of a label from its line, in rows

Records = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Line:
    """An accuracy with its interval."""

    family: Family
    label: str
    accuracy: Estimate
    is_scratch: bool = False


def draw_intervals(figure: "Figure", lines: Sequence[Line]) -> None:
    """Draw the accuracies of each family below each other, with a label above each."""
    panel = figure.add_subplot()
    start = find_start(lines)
    families: list[Family] = [family for family in FAMILIES if any(line.family == family for line in lines)]
    for row, family in enumerate(families):
        own = [line for line in lines if line.family == family]
        for number, line in enumerate(own):
            draw_interval(panel, line, row + ROW_HEIGHT * (number - (len(own) - 1) / 2), start)
    panel.set_xlim(start, 100)
    panel.set_ylim(len(families) - 0.4, -0.6)
    panel.set_yticks(range(len(families)), [FAMILIES[family] for family in families])
    for label, family in zip(panel.get_yticklabels(), families, strict=True):
        label.set(color=COLOURS[family], fontweight="bold")
    ticks = [tick for tick in range(0, 101, 20 if start < 40 else AXIS_STEP) if tick >= start]
    panel.set_xticks(ticks, [f"{tick}{f'{THIN_SPACE}%' if tick == 100 else ''}" for tick in ticks])
    panel.grid(visible=False, axis="y")
    panel.grid(visible=True, axis="x")


def find_start(lines: Sequence[Line]) -> int:
    """Return where the axis begins, in percent: a round number below all intervals."""
    lowest = min(line.accuracy.value if line.accuracy.low is None else line.accuracy.low for line in lines)
    return max(0, AXIS_STEP * math.floor((100 * lowest - 1) / AXIS_STEP))


def draw_interval(panel: "Axes", line: Line, height: float, start: int) -> None:
    """Draw one interval, its value and its label, which ends or begins where the interval does."""
    value = line.accuracy.value
    low, high = (100 * (value if end is None else end) for end in (line.accuracy.low, line.accuracy.high))
    colour = COLOURS[line.family]
    panel.plot([low, high], [height, height], color=colour, linestyle=":" if line.is_scratch else "-")
    face = PAPER if line.is_scratch else colour
    panel.plot([100 * value], [height], MARKERS[line.family], color=colour, markerfacecolor=face, markersize=7)
    is_left = 100 * value < (start + 100) / 2
    text = f"{format_short_percent(value)} {line.label}"
    side = "left" if is_left else "right"
    panel.text(low if is_left else high, height - LABEL_RISE, text, color=INK_2, ha=side, va="bottom")


def draw_curves(figure: "Figure", runs: Mapping[tuple[Family, Kind], Records], metric: str, title: str) -> None:
    """Draw a metric by step, a panel for each family, with the same axes: side by side, or below each other if it is narrow."""
    families: list[Family] = [family for family in FAMILIES if any(family == each for each, _ in runs)]
    is_wide = figure.get_figwidth() >= WIDE
    shape = (1, len(families)) if is_wide else (len(families), 1)
    panels = figure.subplots(*shape, sharex=True, sharey=True, squeeze=False)
    for panel, family in zip(panels.flat, families, strict=True):
        for (each, kind), records in runs.items():
            if each == family:
                plot_curve(panel, family, kind, records, metric)
        panel.set_title(FAMILIES[family], color=COLOURS[family])
        panel.xaxis.set_major_formatter("{x:,.0f}")
    for panel in panels[-1]:
        panel.set_xlabel("step")
    panels[0, 0].set_ylim(bottom=0.0)  # of all, and not before all are plotted
    figure.supylabel(title, fontsize="medium", color=INK_2)
    if len({kind for _, kind in runs}) > 1:
        panels[0, 0].legend(loc="upper right")


def plot_curve(panel: "Axes", family: Family, kind: Kind, records: Records, metric: str) -> None:
    """Plot a metric of one run; a single point needs a marker."""
    points = [(float(record["step"]), record[metric]) for record in records if record.get(metric) is not None]
    if not points:
        return
    steps, values = thin_curve([step for step, _ in points], [value for _, value in points])
    label = "from scratch" if kind == "scratch" else "pre-trained"
    style: dict[str, Any] = {
        "linestyle": ":" if kind == "scratch" else "-",
        "marker": MARKERS[family] if len(steps) == 1 else "",
    }
    panel.plot(steps, values, color=COLOURS[family], label=label, **style)
