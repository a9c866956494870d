"""metrics.jsonl, TensorBoard event files and curves.png: what was measured during a run.

A record is flat: its `step` and the metrics measured there, e.g. {"step": 50, "loss": 2.1, "held_out_top1": 0.43}.
"""

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from vitrine.core.console import escape_controls
from vitrine.core.files import atomic_file, check_parent_folder, explain_full_disk
from vitrine.core.html_report import save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


@dataclass(frozen=True)
class MetricNames:
    """Metrics of a run, as its objective and evaluators declare them.

    A name that ends with "loss" is a loss; all other metrics are fractions, at most 1, and higher is better.
    """

    training: tuple[str, ...] = ()
    """Metrics of the objective on training batches, besides the loss."""
    evaluation: Mapping[str, str] = field(default_factory=dict)
    """Metrics of the evaluators, each with its label in figures."""


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
TRAINING_COLOUR, LR_COLOUR, LR_TEXT_COLOUR = "#8395a7", "#c4c4c4", "#8c8c8c"
EVALUATION_COLOURS = ("#d1495b", "#00798c", "#edae49", "#5b3758", "#5aa469", "#2e5fa3", "#c77dba", "#8a5a44")


def plot_curves(records: Sequence[CurveRecord], path: Path, title: str, names: MetricNames) -> bool:
    """Plot losses on the left and accuracies on the right as PNG; return False, without a file, if there are neither."""
    metrics = ("loss", *names.training, *names.evaluation)
    losses = collect_curves(records, [name for name in metrics if name.endswith("loss")])
    accuracies = collect_curves(records, [name for name in metrics if not name.endswith("loss")], scale=100.0)
    if not losses and not accuracies:
        return False
    save_figure(draw_figure(losses, accuracies, collect_curves(records, [LEARNING_RATE]), title, names), path)
    return True


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


def draw_figure(losses: Curves, accuracies: Curves, lrs: Curves, title: str, names: MetricNames) -> "Figure":
    """Draw a panel for the losses, with the learning rate behind them, and one for the accuracies, where there are any."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    num_panels = bool(losses) + bool(accuracies)
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1)
    figure = Figure(figsize=(6.4 * num_panels, 4.8), dpi=120, layout=layout)
    figure.suptitle(escape_controls(title), fontsize=14, wrap=True, parse_math=False)  # a dollar sign is a dollar sign
    if losses:
        panel = add_panel(figure, num_panels, 1, "loss")
        lines = draw_curves(panel, losses, names)
        add_legend(panel, lines + draw_lrs(panel, lrs))
    if accuracies:
        panel = add_panel(figure, num_panels, num_panels, "accuracy (%)")
        lines = draw_curves(panel, accuracies, names)
        panel.set_ylim(bottom=0.0)
        add_legend(panel, lines)
    return figure


def add_panel(figure: "Figure", num_panels: int, index: int, label: str) -> "Axes":
    """Add axes over the steps to a row of panels."""
    from matplotlib.ticker import MaxNLocator

    panel = figure.add_subplot(1, num_panels, index)
    panel.set_xlabel("step", fontsize=11)
    panel.set_ylabel(label, fontsize=11)
    panel.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    panel.xaxis.set_major_formatter("{x:,.0f}")
    panel.tick_params(labelsize=10)
    panel.grid(color="#eeeeee")
    panel.spines[["top", "right"]].set_visible(False)
    return panel


def draw_curves(panel: "Axes", curves: Curves, names: MetricNames) -> "list[Line2D]":
    """Draw training curves thin, and evaluations with a marker at each."""
    lines: list[Line2D] = []
    colours = iter(EVALUATION_COLOURS * len(curves))
    for name, (steps, values) in sorted(curves.items(), key=lambda curve: curve[0] in names.evaluation):
        if name in names.evaluation:
            style = {"color": next(colours), "linewidth": 1.8, "marker": "o", "markersize": 4.5}
        else:
            style = style_thin(TRAINING_COLOUR, len(steps))
        label = names.evaluation.get(name, "training")
        lines += panel.plot(steps, values, label=label, clip_on=False, **style)  # a marker at 0 % is drawn whole
    return lines


def draw_lrs(panel: "Axes", lrs: Curves) -> "list[Line2D]":
    """Draw the learning rate behind the curves of a panel, with an axis of its own on the right."""
    lines: list[Line2D] = []
    for steps, values in lrs.values():
        behind = panel.twinx()
        lines += behind.plot(steps, values, label="learning rate", linestyle="--", **style_thin(LR_COLOUR, len(steps)))
        behind.set_ylim(bottom=0.0)
        behind.set_ylabel("learning rate", fontsize=10, color=LR_TEXT_COLOUR)
        behind.tick_params(labelsize=9, labelcolor=LR_TEXT_COLOUR, color=LR_COLOUR)
        behind.yaxis.set_major_formatter("{x:g}")
        behind.spines[:].set_visible(False)
        panel.set_zorder(behind.get_zorder() + 1)
        panel.patch.set_visible(False)  # it would hide what is behind
    return lines


def style_thin(colour: str, num_points: int) -> dict[str, Any]:
    """Return the style of a thin line; a single point gets a marker, because a line through it would be invisible."""
    return {"color": colour, "linewidth": 1.0, "marker": "." if num_points == 1 else ""}


def add_legend(panel: "Axes", lines: "Sequence[Line2D]") -> None:
    """Add a legend below the panel, where it hides no curve."""
    num_rows = math.ceil(len(lines) / 3)
    num_columns = math.ceil(len(lines) / num_rows)
    place: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "borderaxespad": 3.9}
    panel.legend(handles=lines, ncols=num_columns, frameon=False, fontsize=10, **place)
