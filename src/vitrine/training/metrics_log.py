"""Metrics.jsonl, TensorBoard, curves.png.

metrics.jsonl: what was measured during a run, a JSON line per record, and the same after an interruption.

A record is flat: its `step` and what was measured there, e.g. {"step": 50, "loss": 2.1, "held_out_top1": 0.43}.
The records of a run as TensorBoard's event files.
The curves of a run as a picture.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from vitrine.core.files import atomic_file, explain_full_disk, require_folder_of
from vitrine.core.html_report import save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

EVALUATED = ("held_out_", "val_", "few_shot_")


class MetricsLog:
    """Appends to the records up to `start_step`; those after it are from steps that the resumed run makes again."""

    def __init__(self, path: Path, start_step: int) -> None:
        require_folder_of(path)
        self.path = path
        if path.exists():
            drop_after(path, start_step)
        self.file = path.open("ab")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        with explain_full_disk(self.path):
            self.file.close()  # writes what a full disk had refused

    def write(self, record: Mapping[str, float]) -> None:
        """At once, for whoever follows the file. JSON has no infinities and no NaN: they become null."""
        finite = {name: value if math.isfinite(value) else None for name, value in record.items()}
        with explain_full_disk(self.path):
            self.file.write(json.dumps(finite).encode() + b"\n")
            self.file.flush()


def read_records(path: Path) -> list[dict[str, Any]]:
    """All records, without a last line that was cut off in writing. A value that was not finite is None."""
    return [record for _, record in parse_lines(path)]


def is_evaluated(name: str) -> bool:
    """Measured on images apart from the training, and not at every record."""
    return name.startswith(EVALUATED)


def drop_after(path: Path, step: int) -> None:
    kept = b"".join(line + b"\n" for line, record in parse_lines(path) if record["step"] <= step)
    if kept != path.read_bytes():
        with atomic_file(path) as partial:
            partial.write_bytes(kept)


def parse_lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    *lines, last = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        record = parse_record(line)
        if record is None:
            raise ValueError(
                f"Line {number} of {path} must be a record of a run, a JSON object with its step: delete it, or move the file."
            )
        yield line, record
    record = parse_record(last)  # without its line break it may be half, and half a record is no JSON
    if record is not None:
        yield last, record


def parse_record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else None


class TensorBoard:
    """Writes into `folder`, where `tensorboard --logdir` finds it."""

    def __init__(self, folder: Path, start_step: int | None = None) -> None:
        """`start_step`: where a resumed run begins, so that what an interrupted one wrote of later steps is not shown."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ValueError(
                f"Event files in {folder} need tensorboard, which is not installed: pip install 'vitrine[tensorboard]'."
            ) from None
        self.writer = SummaryWriter(str(folder), purge_step=None if start_step is None else start_step + 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.writer.close()

    def write(self, record: Mapping[str, float]) -> None:
        """A scalar for each field but the step: evaluation/held_out_top1, train/loss."""
        for name, value in record.items():
            if name != "step":
                group = "evaluation" if is_evaluated(name) else "train"
                self.writer.add_scalar(f"{group}/{name}", value, int(record["step"]))


CurveRecord = Mapping[str, Any]  # as read from a file, with None for what was not finite
Curves = dict[str, tuple[list[float], list[float]]]

TRAINING_COLOUR = "#8395a7"
RATE_COLOUR = "#c4c4c4"
RATE_TEXT_COLOUR = "#8c8c8c"
EVALUATED_COLOURS = ("#d1495b", "#00798c", "#edae49", "#5b3758", "#5aa469", "#2e5fa3", "#c77dba", "#8a5a44")


def plot_curves(records: Sequence[CurveRecord], path: Path, title: str) -> bool:
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


def collect_curves(records: Sequence[CurveRecord], is_wanted: Callable[[str], bool], scale: float = 1.0) -> Curves:
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
        lines += panel.plot(steps, values, label=curve_label(name), clip_on=False, **style)  # a mark at 0 % is whole
    return lines


def style_thin(colour: str, num_points: int) -> dict[str, Any]:
    """A point by itself has a mark, or it would not be seen."""
    return {"color": colour, "linewidth": 1.0, "marker": "." if num_points == 1 else ""}


def curve_label(name: str) -> str:
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
