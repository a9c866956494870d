"""metrics.jsonl after crashes and resumes, event files read by TensorBoard itself, and curves read back from the figure."""

import itertools
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from vitrine.training.metrics_log import (
    CurveRecord,
    MetricNames,
    MetricsLog,
    TensorBoard,
    collect_curves,
    draw_figure,
    plot_curves,
    read_records,
)

NAMES = MetricNames(
    ("accuracy",),
    {
        "held_out_loss": "held out",
        "held_out_top1": "held out top-1",
        "held_out_top5": "held out top-5",
        "val_loss": "val",
        "val_top1": "val top-1",
        "val_top5": "val top-5",
        "few_shot_5": "few-shot 5",
        "few_shot_10": "few-shot 10",
    },
)
RECORDS = [{"step": step, "loss": 1 / step, "rate": 0.1 + step} for step in (10, 20, 30)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def write(path: Path, records: list[dict[str, float]], start_step: int = 0) -> None:
    with MetricsLog(path, start_step) as metrics:
        for record in records:
            metrics.write(record)


def test_records_are_read_as_they_were_written(path: Path) -> None:
    write(path, RECORDS)
    assert read_records(path) == RECORDS
    assert [json.loads(line) for line in path.read_text().splitlines()] == RECORDS
    assert isinstance(read_records(path)[0]["step"], int)


def test_a_record_can_be_read_as_soon_as_it_is_written(path: Path) -> None:
    with MetricsLog(path, 0) as metrics:
        assert read_records(path) == []
        for count, record in enumerate(RECORDS, start=1):
            metrics.write(record)
            assert read_records(path) == RECORDS[:count]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_become_null(value: float, path: Path) -> None:
    write(path, [{"step": 1, "loss": value}])
    assert path.read_text() == '{"step": 1, "loss": null}\n'  # NaN is not JSON, and others' readers stop at it
    assert read_records(path) == [{"step": 1, "loss": None}]


@pytest.mark.parametrize(("start_step", "num_kept"), [(0, 0), (9, 0), (10, 1), (25, 2), (30, 3), (99, 3)])
def test_a_resumed_run_replaces_the_records_of_repeated_steps(start_step: int, num_kept: int, path: Path) -> None:
    write(path, RECORDS)
    again = [{"step": start_step + 1, "loss": 7.0}]
    write(path, again, start_step)
    assert read_records(path) == RECORDS[:num_kept] + again
    assert [beside.name for beside in path.parent.iterdir()] == ["metrics.jsonl"]


def test_only_a_cut_off_line_is_dropped(path: Path) -> None:
    write(path, RECORDS)
    whole = path.read_bytes()
    start = whole.rindex(b"\n", 0, -1) + 1
    for end in range(start, len(whole) - 1):
        path.write_bytes(whole[:end])
        assert read_records(path) == RECORDS[:2]
        write(path, [{"step": 40}], start_step=30)
        assert read_records(path) == [*RECORDS[:2], {"step": 40}]


def test_a_line_without_its_line_break_counts(path: Path) -> None:
    write(path, RECORDS)
    path.write_bytes(path.read_bytes()[:-1])
    assert read_records(path) == RECORDS
    write(path, [{"step": 40}], start_step=30)
    assert read_records(path) == [*RECORDS, {"step": 40}]


@pytest.mark.parametrize("rest", [b"\0\0\0\0", b"\xff", b'{"step": 4', b"[1]", b"17"])
def test_garbage_at_the_end_is_dropped(rest: bytes, path: Path) -> None:
    write(path, RECORDS)
    with path.open("ab") as file:
        file.write(rest)
    assert read_records(path) == RECORDS
    write(path, [{"step": 40}], start_step=30)
    assert read_records(path) == [*RECORDS, {"step": 40}]


def test_a_file_is_rewritten_only_if_records_are_dropped(path: Path) -> None:
    write(path, RECORDS)
    before = path.stat().st_ino
    write(path, [{"step": 40}], start_step=30)
    assert path.stat().st_ino == before
    write(path, [{"step": 40}], start_step=20)
    assert path.stat().st_ino != before


@pytest.mark.parametrize("line", ["", "loss 3", "[]", '{"loss": 1}', '{"step": null}', '{"step": "1"}', "{"])
def test_another_file_is_named_and_left_unchanged(line: str, path: Path) -> None:
    text = f'{{"step": 1}}\n{line}\n{{"step": 3}}\n'
    path.write_text(text)
    with pytest.raises(ValueError, match=r"Line 2 of .*metrics\.jsonl"):
        MetricsLog(path, 0)
    assert path.read_text() == text


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        MetricsLog(tmp_path / "nowhere" / "metrics.jsonl", 0)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk that is always full")
def test_a_full_disk_is_reported(path: Path) -> None:
    metrics = MetricsLog(path, 0)
    metrics.write(RECORDS[0])
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, metrics.file.fileno())
    os.close(full)
    sentence = r"metrics\.jsonl.*disk is full"
    with pytest.raises(OSError, match=sentence):
        metrics.write(RECORDS[1])
    with pytest.raises(OSError, match=sentence), metrics:
        pass
    assert read_records(path) == RECORDS[:1]


KILLED = """
import os, sys
from pathlib import Path
from vitrine.training.metrics_log import MetricsLog
metrics = MetricsLog(Path(sys.argv[1]), 0)
for step in range(1, 101):
    metrics.write({"step": step})
os._exit(9)
"""


def test_nothing_is_lost_when_a_run_is_killed(path: Path) -> None:
    assert subprocess.run([sys.executable, "-c", KILLED, str(path)]).returncode == 9
    assert [record["step"] for record in read_records(path)] == list(range(1, 101))


def read_scalars(folder: Path) -> dict[str, dict[int, float]]:
    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {tag: {event.step: event.value for event in reader.Scalars(tag)} for tag in reader.Tags()["scalars"]}


def test_every_metric_is_a_scalar_in_its_group(tmp_path: Path) -> None:
    with TensorBoard(tmp_path / "events", evaluation=NAMES.evaluation) as board:
        board.write({"step": 10, "loss": 2.5, "rate": 0.125})
        board.write(
            {"step": 20, "loss": 1.5, "rate": 0.25, "waited": 0, "held_out_top1": 0.5, "val_top1": 1, "few_shot_5": 0.75}
        )
    assert read_scalars(tmp_path / "events") == {
        "train/loss": {10: 2.5, 20: 1.5},
        "train/rate": {10: 0.125, 20: 0.25},
        "train/waited": {20: 0.0},
        "evaluation/held_out_top1": {20: 0.5},
        "evaluation/val_top1": {20: 1.0},
        "evaluation/few_shot_5": {20: 0.75},
    }


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_tensorboard_gets_values_that_are_not_finite(value: float, tmp_path: Path) -> None:
    with TensorBoard(tmp_path) as board:
        board.write({"step": 1, "loss": value})
    assert str(read_scalars(tmp_path)["train/loss"][1]) == str(value)


def test_tensorboard_shows_repeated_steps_once(tmp_path: Path) -> None:
    """An evaluation before the interruption that is not repeated is gone too."""
    with TensorBoard(tmp_path, start_step=0) as board:
        for step in (10, 20, 30):
            board.write({"step": step, "loss": float(step)})
        board.write({"step": 30, "val_top1": 0.5})
    with TensorBoard(tmp_path, start_step=20) as board:
        board.write({"step": 25, "loss": 7.0})
    assert read_scalars(tmp_path)["train/loss"] == {10: 10.0, 20: 20.0, 25: 7.0}
    assert read_scalars(tmp_path).get("evaluation/val_top1", {}) == {}


def test_an_error_loses_no_record(tmp_path: Path) -> None:
    def break_off(board: TensorBoard) -> None:
        for step in range(50):
            board.write({"step": step, "loss": 1.0})
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), TensorBoard(tmp_path) as board:
        break_off(board)
    assert len(read_scalars(tmp_path)["train/loss"]) == 50


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)  # which has found it before
    with pytest.raises(ValueError, match=r"pip install .*tensorboard"):
        TensorBoard(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_importing_it_does_not_import_tensorboard() -> None:
    code = "import sys, vitrine.training.metrics_log; assert not {'tensorboard', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def make_records(total_steps: int = 20_000, num_records: int = 100) -> list[dict[str, float | None]]:
    """Make records of a typical run, evaluated at each tenth record."""
    random = np.random.default_rng(0)
    records: list[dict[str, float | None]] = []
    for count in range(1, num_records + 1):
        share = count / num_records
        rate = 5e-4 * (1 + math.cos(math.pi * share))
        record: dict[str, float | None] = {"step": round(share * total_steps), "rate": rate, "grad_norm": 1.0}
        record |= {"loss": 1 + 6 * math.exp(-5 * share) + random.normal(0, 0.1), "accuracy": 0.8 * (1 - math.exp(-4 * share))}
        if count % 10 == 0:
            record |= {"held_out_loss": 1.2 + 6 * math.exp(-5 * share), "held_out_top1": 0.7 * share}
            record |= {"val_top1": 0.6 * share, "few_shot_5": 0.5 * share}
        records.append(record)
    return records


def draw(records: list[dict[str, float | None]], title: str = "ViT-S/16 on flowers") -> Figure:
    losses = [name for name in ("loss", *NAMES.evaluation) if name.endswith("loss")]
    accuracies = [name for name in ("accuracy", *NAMES.evaluation) if not name.endswith("loss")]
    curves = (collect_curves(records, losses), collect_curves(records, accuracies, scale=100.0))
    figure = draw_figure(*curves, collect_curves(records, ["rate"]), title, NAMES)
    FigureCanvasAgg(figure).draw()
    return figure


def read_lines(panel: Axes) -> dict[str, np.ndarray]:
    return {str(line.get_label()): np.array(line.get_xydata()) for line in panel.get_lines()}


def test_curves_show_the_recorded_values() -> None:
    records = make_records()
    drawn = {axes.get_ylabel(): read_lines(axes) for axes in draw(records).axes}
    assert list(drawn["loss"]) == ["training", "held out"]
    assert list(drawn["accuracy (%)"]) == ["training", "held out top-1", "val top-1", "few-shot 5"]
    for panel, label, name, scale in [
        ("loss", "training", "loss", 1),
        ("loss", "held out", "held_out_loss", 1),
        ("learning rate", "learning rate", "rate", 1),
        ("accuracy (%)", "training", "accuracy", 100),
        ("accuracy (%)", "few-shot 5", "few_shot_5", 100),
    ]:
        expected = [(record["step"], record[name]) for record in records if name in record]
        np.testing.assert_allclose(drawn[panel][label], np.array(expected, dtype=float) * [1, scale])


def test_training_is_thin_and_evaluations_are_marked() -> None:
    training, *evaluated = draw(make_records()).axes[0].get_lines()
    assert training.get_marker() == ""
    assert all(line.get_marker() == "o" for line in evaluated)
    assert training.get_linewidth() < min(line.get_linewidth() for line in evaluated)


def list_boxes(figure: Figure) -> dict[str, Bbox]:
    """Return the boxes of all texts and panels by name."""
    boxes = {"title": figure.findobj(lambda artist: isinstance(artist, Text) and artist.get_text() == figure.get_suptitle())}
    for number, axes in enumerate(figure.axes):
        legend = axes.get_legend()
        boxes[f"{number} panel"], boxes[f"{number} y"] = [axes.patch], [axes.yaxis.label]
        if legend is not None:  # else it is the rate's, whose steps are those of the loss
            boxes[f"{number} x"], boxes[f"{number} legend"] = [axes.xaxis.label], [legend]
        for axis in (axes.yaxis, axes.xaxis) if legend is not None else (axes.yaxis,):
            low, high = axis.get_view_interval()
            ticks = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
            for tick in ticks:
                boxes[f"{number} {axis.axis_name} at {tick.get_loc()}"] = [
                    tick.label1 if tick.label1.get_visible() else tick.label2
                ]
    return {name: artists[0].get_window_extent() for name, artists in boxes.items()}


MORE = {"val_loss": 2.0, "val_top5": 0.9, "held_out_top5": 0.95, "few_shot_10": 0.4}


@pytest.mark.parametrize(
    ("total_steps", "title", "more"),
    [(100, "flowers", {}), (3_000_000, "flowers", MORE), (20_000, "a title of many words " * 12, MORE)],
)
def test_texts_do_not_overlap(total_steps: int, title: str, more: dict[str, float]) -> None:
    figure = draw([record | (more if "val_top1" in record else {}) for record in make_records(total_steps)], title)
    boxes = list_boxes(figure)
    assert len(boxes) > 20
    for (name, box), (other_name, other) in itertools.combinations(boxes.items(), 2):
        if not (name.endswith("panel") and other_name.endswith("panel")):  # the rate's panel is that of the loss
            assert Bbox.intersection(box, other) is None, (name, other_name)
    outside = [name for name, box in boxes.items() if not (figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1)]
    outside += [name for name, box in boxes.items() if not (figure.bbox.y0 <= box.y0 and box.y1 <= figure.bbox.y1)]
    assert outside == []


def test_the_figure_is_a_png_with_two_panels(tmp_path: Path) -> None:
    assert plot_curves(make_records(), tmp_path / "curves.png", "ViT-S/16 on flowers", NAMES)
    with Image.open(tmp_path / "curves.png") as image:
        assert (image.format, image.size) == ("PNG", (1536, 576))
        pixels = np.array(image.convert("RGB"))
    for colour in ("#8395a7", "#c4c4c4", "#d1495b"):  # training, rate and held out, of which each has its pixels at the left
        wanted = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)])
        assert (np.abs(pixels[:, :768].astype(int) - wanted).sum(axis=2) < 12).sum() > 50
    assert [path.name for path in tmp_path.iterdir()] == ["curves.png"]


def test_without_accuracies_there_is_one_panel(tmp_path: Path) -> None:
    wanted = ("step", "loss", "rate", "held_out_loss")
    records = [{name: value for name, value in record.items() if name in wanted} for record in make_records()]
    assert plot_curves(records, tmp_path / "curves.png", "masked patches", NAMES)
    with Image.open(tmp_path / "curves.png") as image:
        assert image.size == (768, 576)
    assert {axes.get_ylabel() for axes in draw(records).axes} == {"loss", "learning rate"}


def test_without_losses_there_is_one_panel(tmp_path: Path) -> None:
    records: list[dict[str, float | None]] = [{"step": 5, "few_shot_5": 0.4}, {"step": 9, "few_shot_5": 0.5, "rate": 0.1}]
    assert plot_curves(records, tmp_path / "curves.png", "few-shot", NAMES)
    assert [axes.get_ylabel() for axes in draw(records).axes] == ["accuracy (%)"]


def test_metrics_that_nobody_declared_are_not_plotted(tmp_path: Path) -> None:
    assert not plot_curves([{"step": 1, "grad_norm": 2.0, "val_top1": 0.5}], tmp_path / "curves.png", "title", MetricNames())


@pytest.mark.parametrize("step", [0, 1000])
def test_a_single_record_is_visible(step: int) -> None:
    records: list[dict[str, float | None]] = [{"step": step, "loss": 7.0, "accuracy": 0.0, "rate": 0.0}]
    for axes in draw(records).axes:
        assert [line.get_marker() for line in axes.get_lines()] == ["."]


@pytest.mark.parametrize("records", [[], [{"step": 1}], [{"step": 1, "grad_norm": 2.0}], [{"step": 1, "loss": None}]])
def test_without_curves_no_file_is_written(records: list[CurveRecord], tmp_path: Path) -> None:
    assert not plot_curves(records, tmp_path / "curves.png", "nothing", NAMES)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("bad", [None, math.nan, math.inf])
def test_values_that_are_not_finite_are_gaps(bad: float | None) -> None:
    records: list[dict[str, float | None]] = [{"step": step, "loss": 1.0 + step} for step in range(40)]
    for record in records[10:15]:
        record["loss"] = bad
    training = read_lines(draw(records).axes[0])["training"]
    assert len(training) == 40
    assert np.isfinite(training[:, 1]).tolist() == [not 10 <= place < 15 for place in range(40)]


@pytest.mark.parametrize("title", ["from $5 to $6_ in 花 🌷", ""])
def test_any_title_can_be_drawn(title: str, tmp_path: Path) -> None:
    assert plot_curves([{"step": 1, "loss": 2.0}], tmp_path / "curves.png", title, NAMES)


UNTOUCHED = """
import sys
from pathlib import Path
import vitrine.training.metrics_log
assert "matplotlib" not in sys.modules
import matplotlib
before = matplotlib.rcParams.copy()
names = vitrine.training.metrics_log.MetricNames()
assert vitrine.training.metrics_log.plot_curves([{"step": 1, "loss": 2.0}], Path(sys.argv[1]), "title", names)
assert dict.__eq__(matplotlib.rcParams, before)  # its own __eq__ asks for the backend, and so chooses one
assert "matplotlib.pyplot" not in sys.modules
"""


def test_matplotlib_settings_are_left_unchanged(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", UNTOUCHED, str(tmp_path / "curves.png")], check=True)
