"""metrics.jsonl after crashes and resumes, event files read by TensorBoard itself, and curves read back from the figure."""

import itertools
import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from vitrine.core.figures import figure_style, make_figure
from vitrine.training.metrics_log import (
    CurvePanel,
    CurveRecord,
    MetricNames,
    MetricsLog,
    TensorBoard,
    TestPoint,
    build_panels,
    build_rate_panels,
    draw_panels,
    find_metric_names,
    plot_curves,
    read_records,
    thin_curve,
    thin_panel,
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


def draw(
    records: list[dict[str, float | None]],
    width: float = 10.8,
    names: MetricNames = NAMES,
    test: TestPoint | None = None,
) -> Figure:
    """Draw all panels of a run in the style of the product."""
    with figure_style():
        figure = make_figure(width, 3.1)
        draw_panels(figure, [*build_panels(records, names, test), *build_rate_panels(records)], names, test)
        FigureCanvasAgg(figure).draw()
    return figure


def read_lines(panel: Axes) -> dict[str, np.ndarray]:
    return {str(line.get_label()): np.array(line.get_xydata()) for line in panel.get_lines()}


def read_panels(figure: Figure) -> dict[str, dict[str, np.ndarray]]:
    return {panel.get_title(loc="left"): read_lines(panel) for panel in figure.axes}


def test_curves_show_the_recorded_values() -> None:
    records = make_records()
    drawn = read_panels(draw(records))
    assert list(drawn["Loss"]) == ["training", "held out"]
    assert list(drawn["Accuracy"]) == ["training", "held out top-1", "val top-1", "few-shot 5"]
    for panel, label, name, scale in [
        ("Loss", "training", "loss", 1),
        ("Loss", "held out", "held_out_loss", 1),
        ("Learning rate", "", "rate", 1),
        ("Accuracy", "training", "accuracy", 100),
        ("Accuracy", "few-shot 5", "few_shot_5", 100),
    ]:
        expected = [(record["step"], record[name]) for record in records if name in record]
        line = next(iter(drawn[panel].values())) if label == "" else drawn[panel][label]
        np.testing.assert_allclose(line, np.array(expected, dtype=float) * [1, scale])


def test_the_test_is_one_point_with_its_interval() -> None:
    drawn = read_panels(draw(make_records(), test=TestPoint(20_000, 0.71, 0.65, 0.76, loss=1.4)))
    assert drawn["Accuracy"]["test"].tolist() == [[20_000, 71.0]]
    assert drawn["Loss"]["test"].tolist() == [[20_000, 1.4]]
    intervals = [line.tolist() for name, line in drawn["Accuracy"].items() if name.startswith("_")]
    assert intervals == [[[20_000, 65.0], [20_000, 76.0]]]
    assert "test" not in read_panels(draw(make_records()))["Accuracy"]


def test_hidden_metrics_are_not_drawn() -> None:
    records = [{**record, "val_top5": 1.0} for record in make_records()]
    assert "val top-5" in read_panels(draw(records))["Accuracy"]
    hidden = replace(NAMES, hidden=frozenset({"val_top5"}))
    assert "val top-5" not in read_panels(draw(records, names=hidden))["Accuracy"]


def test_names_of_a_finished_run_are_found_in_its_records() -> None:
    trained = {"step": 1, "loss": 2.0, "accuracy": 0.5, "rate": 0.1, "seconds": 1.0}
    names = find_metric_names([trained, {"step": 1, "val_top1": 0.5, "val_loss": 1.0}])
    assert names.training == ("accuracy",)
    assert names.evaluation == {"val_top1": "val top-1", "val_loss": "val loss"}


def test_training_is_thin_and_evaluations_are_marked() -> None:
    training, *evaluated = draw(make_records()).axes[0].get_lines()
    assert training.get_marker() == ""
    assert all(line.get_marker() == "o" for line in evaluated)
    assert training.get_linewidth() < min(line.get_linewidth() for line in evaluated)


def list_boxes(figure: Figure) -> dict[str, Bbox]:
    """Return the boxes of all texts by name."""
    boxes = {}
    for number, axes in enumerate(figure.axes):
        boxes[f"{number} x"] = axes.xaxis.label.get_window_extent()
        boxes[f"{number} title"] = axes.title.get_window_extent() if axes.get_title() else axes._left_title.get_window_extent()
        for label in axes.texts:
            if label.get_text():
                boxes[f"{number} {label.get_text()}"] = label.get_window_extent()
        for axis in (axes.yaxis, axes.xaxis):
            low, high = axis.get_view_interval()
            for tick in axis.get_major_ticks():
                if low <= tick.get_loc() <= high:
                    boxes[f"{number} {axis.axis_name} at {tick.get_loc()}"] = tick.label1.get_window_extent()
    return boxes


MORE = {"val_loss": 2.0, "val_top5": 0.9, "held_out_top5": 0.95, "few_shot_10": 0.4}


@pytest.mark.parametrize("width", [10.8, 3.5])
@pytest.mark.parametrize(("total_steps", "more"), [(100, {}), (3_000_000, MORE)])
def test_texts_do_not_overlap(width: float, total_steps: int, more: dict[str, float]) -> None:
    records = [record | (more if "val_top1" in record else {}) for record in make_records(total_steps)]
    with figure_style():
        figure = make_figure(width, 3.1 if width > 5 else 7.5)
        draw_panels(figure, build_panels(records, NAMES), NAMES)
        FigureCanvasAgg(figure).draw()
    boxes = list_boxes(figure)
    assert len(boxes) > 15
    for (name, box), (other_name, other) in itertools.combinations(boxes.items(), 2):
        assert Bbox.intersection(box, other) is None, (name, other_name)
    outside = [name for name, box in boxes.items() if not (figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 + 1)]
    assert outside == []


def test_the_figure_is_a_png_with_a_panel_for_each(tmp_path: Path) -> None:
    assert plot_curves(make_records(), tmp_path / "curves.png", "ViT-S/16 on flowers", NAMES)
    with Image.open(tmp_path / "curves.png") as image:
        assert image.format == "PNG"
        assert image.size == pytest.approx((3 * 540, 465), abs=1)  # loss, accuracy and learning rate
    assert [path.name for path in tmp_path.iterdir()] == ["curves.png"]


def test_without_accuracies_there_is_no_panel_of_them() -> None:
    wanted = ("step", "loss", "rate", "held_out_loss")
    records = [{name: value for name, value in record.items() if name in wanted} for record in make_records()]
    assert list(read_panels(draw(records))) == ["Loss", "Learning rate"]


def test_without_losses_there_is_no_panel_of_them() -> None:
    records: list[dict[str, float | None]] = [{"step": 5, "few_shot_5": 0.4}, {"step": 9, "few_shot_5": 0.5}]
    assert list(read_panels(draw(records))) == ["Accuracy"]


def test_metrics_that_nobody_declared_are_not_plotted(tmp_path: Path) -> None:
    assert not plot_curves([{"step": 1, "grad_norm": 2.0, "val_top1": 0.5}], tmp_path / "curves.png", "title", MetricNames())


@pytest.mark.parametrize("step", [0, 1000])
def test_a_single_record_is_visible(step: int) -> None:
    records: list[dict[str, float | None]] = [{"step": step, "loss": 7.0, "accuracy": 0.0, "rate": 0.0}]
    for axes in draw(records).axes:
        assert [line.get_marker() for line in axes.get_lines()] == ["."]


@pytest.mark.parametrize("lowest", [0.1, 0.62, -0.3])
def test_axes_start_where_curves_can_be_told_apart(lowest: float) -> None:
    records: list[dict[str, float | None]] = [{"step": 1, "accuracy": lowest}, {"step": 2, "accuracy": 0.9}]
    bottom, top = draw(records).axes[0].get_ylim()
    assert bottom <= 100 * lowest
    assert (bottom == 0) == (lowest == 0.1)
    assert top >= 90


def test_long_curves_are_thinned_to_means() -> None:
    steps, values = thin_curve([float(step) for step in range(1000)], [float(step % 4) for step in range(1000)])
    assert len(steps) == 250
    assert set(values) == {1.5}
    assert steps[:2] == [1.5, 5.5]
    assert thin_curve([1.0, 2.0], [3.0, 4.0]) == ([1.0, 2.0], [3.0, 4.0])
    panel = CurvePanel("Loss", {"loss": ([float(step) for step in range(1000)], [0.5] * 1000)})
    assert len(thin_panel(panel).curves["loss"][0]) == 250


@pytest.mark.parametrize("records", [[], [{"step": 1}], [{"step": 1, "grad_norm": 2.0}], [{"step": 1, "loss": None}]])
def test_without_curves_no_file_is_written(records: list[CurveRecord], tmp_path: Path) -> None:
    assert not plot_curves(records, tmp_path / "curves.png", "nothing", NAMES)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("bad", [None, math.nan, math.inf])
def test_values_that_are_not_finite_are_gaps(bad: float | None) -> None:
    records: list[dict[str, float | None]] = [{"step": step, "loss": 1.0 + step} for step in range(40)]
    for record in records[10:15]:
        record["loss"] = bad
    training = read_panels(draw(records))["Loss"]["training"]
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
