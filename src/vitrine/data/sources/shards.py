"""Which files belong to which split: by how their names begin, by the folder that they lie in, or by a pattern."""

import glob
import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from vitrine.core.console import join_names, warn_user
from vitrine.data.dataset_format import normalise_split, order_splits
from vitrine.data.sources.image_files import scan

Files = dict[str | None, list[Path]]
"""The files of each split; under None those that name none, which are all where the data is not divided."""

Endings = str | tuple[str, ...]

BRACES = re.compile(r"\{([^{}]*)\}")
RANGE = re.compile(r"([0-9]{1,9})\.\.([0-9]{1,9})")


def find_files(folder: Path, endings: Endings) -> Files:
    """Those in the folder and in its folders that are called like splits."""
    found = divide(list_files(folder, endings))
    splits = sorted(entry.name for entry in scan(str(folder)) if normalise_split(entry.name) and entry.is_dir())
    for name in splits:
        if inner := list_files(folder / name, endings):
            found.setdefault(normalise_split(name), []).extend(inner)
    return found


def list_files(folder: Path, endings: Endings) -> list[Path]:
    entries = (entry for entry in scan(str(folder)) if entry.name.endswith(endings) and not entry.name.startswith("."))
    return [folder / name for name in sorted(entry.name for entry in entries if entry.is_file())]


def divide(paths: list[Path]) -> Files:
    """By the word that each name begins with: train-000.tar, val.tar, test_00000-of-00003.parquet."""
    found: Files = {}
    for path in paths:
        word = re.split(r"[^A-Za-z]", path.name, maxsplit=1)[0]
        found.setdefault(normalise_split(word), []).append(path)
    return found


def choose_files(data: Path, found: Files, split: str | None) -> tuple[list[Path], list[Path]]:
    """The files of the split, and those of all splits, over which classes are counted so that each split has the same."""
    if split is None:
        return found[None], found[None]
    if None in found:
        warn_user(f"{join_names([path.name for path in found[None]])} in {data} begin with no split's name and are left out.")
    return found[split], [path for each in order_splits(found) for path in found[each]]


def locate(ends: np.ndarray, index: int) -> tuple[int, int]:
    """The part in which an image lies, of parts that end before these numbers, and its number there."""
    part = int(np.searchsorted(ends, index, side="right"))
    return part, index - (int(ends[part - 1]) if part > 0 else 0)


def read_stamp(file: Path | int) -> tuple[int, int]:
    """Size and time of a file, by which a change is noticed."""
    status = os.stat(file)
    return status.st_size, status.st_mtime_ns


def expand_pattern(pattern: Path) -> list[Path]:
    """The files meant by braces and stars, of which every name that braces spell out has to be there."""
    found: set[str] = set()
    for name in expand_braces(str(pattern)):
        matches = glob.glob(glob.escape(name).replace("[*]", "*"))
        if not matches:
            raise FileNotFoundError(f"{name} is not there, and {pattern} asks for it: check the pattern or fetch the shard.")
        found.update(matches)
    return [Path(name) for name in sorted(found)]


def expand_braces(text: str) -> Iterator[str]:
    """Ranges as {000..099} and lists as {a,b}; one by one, since a range may be long and its first name be missing."""
    braces = BRACES.search(text)
    if braces is None:
        yield text
        return
    for choice in list_choices(braces[1]):
        yield from expand_braces(text[: braces.start()] + choice + text[braces.end() :])


def list_choices(inside: str) -> Iterator[str]:
    span = RANGE.fullmatch(inside)
    if span is None:
        yield from inside.split(",")
        return
    first, last = sorted(map(int, span.groups()))
    is_padded = any(side.startswith("0") and side != "0" for side in span.groups())
    digits = max(map(len, span.groups())) if is_padded else 0
    yield from (f"{number:0{digits}d}" for number in range(first, last + 1))
