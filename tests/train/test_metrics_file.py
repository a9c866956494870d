"""What is read is what was written, also when the process was killed in the middle of a line or is resumed before it."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vitrine.train.metrics_file import MetricsFile, is_evaluated, read_records

RECORDS = [{"step": step, "loss": 1 / step, "rate": 0.1 + step} for step in (10, 20, 30)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def write(path: Path, records: list[dict[str, float]], start_step: int = 0) -> None:
    with MetricsFile(path, start_step) as metrics:
        for record in records:
            metrics.write(record)


def test_records_come_back_exactly(path: Path) -> None:
    write(path, RECORDS)
    assert read_records(path) == RECORDS
    assert [json.loads(line) for line in path.read_text().splitlines()] == RECORDS
    assert isinstance(read_records(path)[0]["step"], int)


def test_a_record_can_be_read_as_soon_as_it_is_written(path: Path) -> None:
    with MetricsFile(path, 0) as metrics:
        assert read_records(path) == []
        for count, record in enumerate(RECORDS, start=1):
            metrics.write(record)
            assert read_records(path) == RECORDS[:count]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_null(value: float, path: Path) -> None:
    write(path, [{"step": 1, "loss": value}])
    assert path.read_text() == '{"step": 1, "loss": null}\n'  # NaN is not JSON, and others' readers stop at it
    assert read_records(path) == [{"step": 1, "loss": None}]


@pytest.mark.parametrize(("start_step", "num_kept"), [(0, 0), (9, 0), (10, 1), (25, 2), (30, 3), (99, 3)])
def test_a_resumed_run_writes_its_steps_once(start_step: int, num_kept: int, path: Path) -> None:
    write(path, RECORDS)
    again = [{"step": start_step + 1, "loss": 7.0}]
    write(path, again, start_step)
    assert read_records(path) == RECORDS[:num_kept] + again
    assert [beside.name for beside in path.parent.iterdir()] == ["metrics.jsonl"]


def test_a_line_cut_at_any_place_is_dropped_alone(path: Path) -> None:
    write(path, RECORDS)
    whole = path.read_bytes()
    start = whole.rindex(b"\n", 0, -1) + 1
    for end in range(start, len(whole) - 1):
        path.write_bytes(whole[:end])
        assert read_records(path) == RECORDS[:2]
        write(path, [{"step": 40}], start_step=30)
        assert read_records(path) == [*RECORDS[:2], {"step": 40}]


def test_a_line_that_lacks_only_its_end_counts(path: Path) -> None:
    write(path, RECORDS)
    path.write_bytes(path.read_bytes()[:-1])
    assert read_records(path) == RECORDS
    write(path, [{"step": 40}], start_step=30)
    assert read_records(path) == [*RECORDS, {"step": 40}]


@pytest.mark.parametrize("rest", [b"\0\0\0\0", b"\xff", b'{"step": 4', b"[1]", b"17"])
def test_whatever_a_crash_left_at_the_end_is_dropped(rest: bytes, path: Path) -> None:
    write(path, RECORDS)
    with path.open("ab") as file:
        file.write(rest)
    assert read_records(path) == RECORDS
    write(path, [{"step": 40}], start_step=30)
    assert read_records(path) == [*RECORDS, {"step": 40}]


def test_a_file_is_not_written_anew_without_need(path: Path) -> None:
    write(path, RECORDS)
    before = path.stat().st_ino
    write(path, [{"step": 40}], start_step=30)
    assert path.stat().st_ino == before
    write(path, [{"step": 40}], start_step=20)
    assert path.stat().st_ino != before


@pytest.mark.parametrize("line", ["", "loss 3", "[]", '{"loss": 1}', '{"step": null}', '{"step": "1"}', "{"])
def test_a_file_of_another_kind_is_named_and_left_alone(line: str, path: Path) -> None:
    text = f'{{"step": 1}}\n{line}\n{{"step": 3}}\n'
    path.write_text(text)
    with pytest.raises(
        ValueError, match=r"^Line 2 of .*metrics\.jsonl must be a record of a run, .* delete it, or move the file\.$"
    ):
        MetricsFile(path, 0)
    assert path.read_text() == text


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"the folder .*nowhere does not exist\. Create it first\."):
        MetricsFile(tmp_path / "nowhere" / "metrics.jsonl", 0)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk that is always full")
def test_a_full_disk_costs_a_sentence(path: Path) -> None:
    metrics = MetricsFile(path, 0)
    metrics.write(RECORDS[0])
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, metrics.file.fileno())
    os.close(full)
    sentence = r"metrics\.jsonl cannot be written, because the disk is full: make room"
    with pytest.raises(OSError, match=sentence):
        metrics.write(RECORDS[1])
    with pytest.raises(OSError, match=sentence), metrics:
        pass
    assert read_records(path) == RECORDS[:1]


KILLED = """
import os, sys
from pathlib import Path
from vitrine.train.metrics_file import MetricsFile
metrics = MetricsFile(Path(sys.argv[1]), 0)
for step in range(1, 101):
    metrics.write({"step": step})
os._exit(9)
"""


def test_nothing_is_lost_when_a_run_is_killed(path: Path) -> None:
    assert subprocess.run([sys.executable, "-c", KILLED, str(path)]).returncode == 9
    assert [record["step"] for record in read_records(path)] == list(range(1, 101))


@pytest.mark.parametrize(
    ("names", "answer"),
    [
        (("held_out_top1", "held_out_loss", "val_top1", "few_shot_5"), True),
        (("loss", "accuracy", "rate", "grad_norm", "images_per_s", "waited", "step", "value_loss"), False),
    ],
)
def test_evaluations_are_known_by_their_names(names: tuple[str, ...], answer: bool) -> None:
    assert {is_evaluated(name) for name in names} == {answer}
