"""metrics.jsonl: what was measured during a run, a JSON line per record, and the same after an interruption.

A record is flat: its `step` and what was measured there, e.g. {"step": 50, "loss": 2.1, "held_out_top1": 0.43}.
"""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from vitrine.core.files import explain_full_disk, require_folder_of, whole_file

EVALUATED = ("held_out_", "val_", "few_shot_")


class MetricsFile:
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
        with whole_file(path) as partial:
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
