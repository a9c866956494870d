"""metrics.jsonl, TensorBoard event files and learning curves: what was measured during a run.

A record is flat: its `step` and the metrics measured there, e.g. {"step": 50, "loss": 2.1, "held_out_top1": 0.43}.
"""

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from vitrine.core.console import escape_controls
from vitrine.core.figures import ACCENT, INK, INK_3, draw_png
from vitrine.core.files import atomic_file, check_parent_folder, explain_full_disk

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class MetricNames:
    """Metrics of a run, as its objective and evaluators declare them.

    A name that ends with "loss" is a loss; all other metrics are fractions, at most 1, and higher is better.
    """

    training: tuple[str, ...] = ()
    """Metrics of the objective on training batches, besides the loss."""
    evaluation: Mapping[str, str] = field(default_factory=dict)
    """Metrics of the evaluators, each with its label in figures."""
    hidden: frozenset[str] = frozenset()
    """Metrics that are logged and not shown: top-5 of five classes or fewer is always 100 %."""


class MetricsLog:
    """metrics.jsonl of a run. A resumed run drops the records after `start_step`, whose steps it repeats."""

    def __init__(self, path: Path, start_step: int) -> None:
        check_parent_folder(path)
        self.path = path
        if path.exists():
            kept = b"".join(line + b"\n" for line, record in parse_lines(path) if record["step"] <= start_step)
            if kept != path.read_bytes():
                with atomic_file(path) as partial:
                    partial.write_bytes(kept)
        self.file = path.open("ab")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        with explain_full_disk(self.path):
            self.file.close()  # writes what a full disk refused before

    def write(self, record: Mapping[str, float]) -> None:
        """Append a record and flush it. JSON has no infinities and no NaN: they become null."""
        finite = {name: value if math.isfinite(value) else None for name, value in record.items()}
        with explain_full_disk(self.path):
            self.file.write(json.dumps(finite).encode() + b"\n")
            self.file.flush()


def read_records(path: Path) -> list[dict[str, Any]]:
    """Read all records, without a last line that was cut off while writing. Values that were not finite are None."""
    return [record for _, record in parse_lines(path)]


def parse_lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield each line with its record; a last line without a line break is left out unless it is a whole record."""
    *lines, last = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        record = parse_record(line)
        if record is None:
            raise ValueError(f"Line {number} of {path} is not a JSON object with a step: delete the line, or move the file.")
        yield line, record
    record = parse_record(last)
    if record is not None:
        yield last, record


def parse_record(line: bytes) -> dict[str, Any] | None:
    """Parse a line of metrics.jsonl; None if it is not a record."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else None


class TensorBoard:
    """Event files of a run in `folder`, for `tensorboard --logdir`."""

    def __init__(self, folder: Path, start_step: int | None = None, evaluation: Collection[str] = ()) -> None:
        """`start_step` is where a resumed run begins; later steps of the interrupted run are hidden."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ValueError(f"{folder} needs tensorboard: pip install 'vitrine[tensorboard]'.") from None
        self.evaluation = evaluation
        self.writer = SummaryWriter(str(folder), purge_step=None if start_step is None else start_step + 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.writer.close()

    def write(self, record: Mapping[str, float]) -> None:
        """Write each metric as a scalar, e.g. evaluation/held_out_top1 or train/loss."""
        for name, value in record.items():
            if name != "step":
                group = "evaluation" if name in self.evaluation else "train"
                self.writer.add_scalar(f"{group}/{name}", value, int(record["step"]))


CurveRecord = Mapping[str, Any]  # as read from a file, with None for values that were not finite
Curves = dict[str, tuple[list[float], list[float]]]
"""Steps and values by metric name."""

LEARNING_RATE = "rate"  # its key in a record
NOT_METRICS = {
    "step",
    "loss",
    LEARNING_RATE,
    "grad_norm",
    "skipped_steps",
    "images_per_s",
    "waited",
    "seconds",
}  # of the objective
PANEL_WIDTH, PANEL_HEIGHT = 3.6, 2.7  # inches
LABEL_GAP = 0.085  # least distance of two labels beside a panel, as a fraction of its height
MAX_POINTS = 300  # of a curve on a page
EVALUATION_LINES = ("-", "--", ":", "-.")


@dataclass(frozen=True)
class TestPoint:
    """The result on the test images, which is one point of the curves: at the step whose weights were tested."""

    __test__ = False  # not a class of pytest's

    step: int
    accuracy: float
    low: float
    high: float
    loss: float | None = None


@dataclass(frozen=True)
class CurvePanel:
    """Curves that share an axis, and the point of the test among them: value, low and high."""

    title: str
    curves: Curves
    unit: str = ""
    test: tuple[float, float, float] | None = None


def find_metric_names(records: Sequence[CurveRecord]) -> MetricNames:
    """Return the names of the metrics of a finished run, from its records."""
    training = {name: None for record in records if "loss" in record for name in record if name not in NOT_METRICS}
    evaluated = {name: None for record in records if "loss" not in record for name in record if name != "step"}
    return MetricNames(tuple(training), {name: name.replace("_", " ").replace(" top", " top-") for name in evaluated})


def plot_curves(
    records: Sequence[CurveRecord], path: Path, title: str, names: MetricNames, test: TestPoint | None = None
) -> bool:
    """Plot losses, accuracies and the learning rate as PNG; return False, without a file, if there are neither of the first."""
    panels = build_panels(records, names, test)
    if not panels:
        return False
    panels += build_rate_panels(records)

    def draw(figure: "Figure") -> None:
        figure.suptitle(escape_controls(title), fontsize=11, x=0.02, ha="left", wrap=True)
        draw_panels(figure, panels, names, test)

    draw_png(draw, path, PANEL_WIDTH * len(panels), PANEL_HEIGHT + 0.4)
    return True


def build_panels(records: Sequence[CurveRecord], names: MetricNames, test: TestPoint | None = None) -> list[CurvePanel]:
    """Return a panel for the losses and one for the accuracies in percent, where there are any."""
    metrics = [name for name in ("loss", *names.training, *names.evaluation) if name not in names.hidden]
    losses = collect_curves(records, [name for name in metrics if name.endswith("loss")])
    accuracies = collect_curves(records, [name for name in metrics if not name.endswith("loss")], scale=100.0)
    test_loss = None if test is None or test.loss is None else (test.loss, test.loss, test.loss)
    test_accuracy = None if test is None else (100 * test.accuracy, 100 * test.low, 100 * test.high)
    panels = [CurvePanel("Loss", losses, test=test_loss)] if losses else []
    return [*panels, CurvePanel("Accuracy", accuracies, " %", test_accuracy)] if accuracies else panels


def build_rate_panels(records: Sequence[CurveRecord]) -> list[CurvePanel]:
    """Return a panel for the learning rate, if it was recorded."""
    rates = collect_curves(records, [LEARNING_RATE])
    return [CurvePanel("Learning rate", rates)] if rates else []


def collect_curves(records: Sequence[CurveRecord], names: Collection[str], scale: float = 1.0) -> Curves:
    """Return the curves of some metrics, in the order of the records. Values that were not finite are gaps."""
    curves: Curves = {}
    for record in records:
        for name, value in record.items():
            if name in names:
                steps, values = curves.setdefault(name, ([], []))
                steps.append(record["step"])
                values.append(math.nan if value is None else scale * value)
    return {name: curve for name, curve in curves.items() if any(map(math.isfinite, curve[1]))}


def thin_panel(panel: CurvePanel) -> CurvePanel:
    """Return a panel with curves of at most MAX_POINTS points, each the mean of several, for a small page."""
    return replace(panel, curves={name: thin_curve(*curve) for name, curve in panel.curves.items()})


def thin_curve(steps: list[float], values: list[float]) -> tuple[list[float], list[float]]:
    """Return the means of equally many neighbouring points."""
    size = math.ceil(len(steps) / MAX_POINTS)
    parts = [slice(start, start + size) for start in range(0, len(steps), size)]
    return [fmean(steps[part]) for part in parts], [fmean(values[part]) for part in parts]


def draw_panels(figure: "Figure", panels: Sequence[CurvePanel], names: MetricNames, test: TestPoint | None = None) -> None:
    """Draw panels side by side, or below each other on a narrow figure."""
    num_columns = min(len(panels), max(1, int(figure.get_figwidth() // 3.4)))
    num_rows = math.ceil(len(panels) / num_columns)
    axes = figure.subplots(num_rows, num_columns, squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    for panel, axis in zip(panels, axes.flat, strict=False):
        draw_panel(axis, panel, names, None if test is None else test.step)


def draw_panel(axis: "Axes", panel: CurvePanel, names: MetricNames, test_step: int | None) -> None:
    """Draw training thin, evaluations with a marker at each, and the test as one point, all labelled at their ends."""
    from matplotlib.ticker import MaxNLocator

    axis.set_title(panel.title)
    axis.set_xlabel("step")
    axis.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    axis.xaxis.set_major_formatter("{x:,.0f}")
    ends: list[tuple[float, str, str]] = []
    styles = iter(EVALUATION_LINES * len(panel.curves))
    for name, (steps, values) in sorted(panel.curves.items(), key=lambda curve: curve[0] in names.evaluation):
        is_evaluation = name in names.evaluation
        colour, label = (INK, names.evaluation[name]) if is_evaluation else (INK_3, name_training_curve(name, names))
        style = {"linewidth": 1.6, "marker": "o", "markersize": 4} if is_evaluation else style_thin(len(steps))
        line = next(styles) if is_evaluation else "-"
        axis.plot(steps, values, label=label, color=colour, linestyle=line, clip_on=False, **style)
        ends.append((next(value for value in reversed(values) if math.isfinite(value)), label, colour))
    if panel.test is not None and test_step is not None:
        value, low, high = panel.test
        axis.plot([test_step] * 2, [low, high], color=ACCENT, linewidth=1.4, clip_on=False)
        axis.plot([test_step], [value], "D", label="test", color=ACCENT, markersize=6, clip_on=False)
        ends.append((value, f"test {value:.1f} %" if panel.unit else f"test {value:.3g}", ACCENT))
    set_lower_end(axis, panel)
    label_ends(axis, ends)
    label_top_tick(axis, panel.unit)


def set_lower_end(axis: "Axes", panel: CurvePanel) -> None:
    """Start an axis at 0, or below negative values; that of high accuracies starts a little below them."""
    values = [value for _, values in panel.curves.values() for value in values if math.isfinite(value)]
    lowest = min([*values, *(panel.test or ())])
    if lowest >= 0:
        axis.set_ylim(bottom=10 * math.floor(max(0.0, lowest - 5) / 10) if panel.unit and lowest > 50 else 0.0)


def name_training_curve(name: str, names: MetricNames) -> str:
    """Return the label of a curve of the training: of the learning rate none, because the title has it."""
    return "" if name == LEARNING_RATE else "training" if name in ("loss", *names.training) else name


def style_thin(num_points: int) -> dict[str, Any]:
    """Return the style of a thin line; a single point gets a marker, because a line through it would be invisible."""
    return {"linewidth": 1.0, "marker": "." if num_points == 1 else ""}


def label_ends(axis: "Axes", ends: Sequence[tuple[float, str, str]]) -> None:
    """Write the name of each curve to the right of its end, (value, label, colour), apart from its neighbours."""
    low, high = axis.get_ylim()
    below = -1.0
    heights = []
    for value, _, _ in sorted(ends):
        below = max((value - low) / (high - low), below + LABEL_GAP)
        heights.append(below)
    excess = max(0.0, below - 1.0)
    for height, (_, label, colour) in zip(heights, sorted(ends), strict=True):
        axis.text(1.03, height - excess, label, color=colour, transform=axis.transAxes, va="center", ha="left", clip_on=False)


def label_top_tick(axis: "Axes", unit: str) -> None:
    """Write the unit at the top tick of an axis only."""
    from matplotlib.ticker import MaxNLocator

    low, high = axis.get_ylim()
    ticks = [tick for tick in MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high) if low <= tick <= high]
    axis.set_yticks(ticks, [f"{tick:g}{unit if tick == ticks[-1] else ''}" for tick in ticks])
    axis.set_ylim(low, high)
