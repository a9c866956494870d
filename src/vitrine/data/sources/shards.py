"""Datasets of several files: which files belong to which split, by file name, folder or pattern."""

import glob
import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from vitrine.core.console import join_names, warn_user
from vitrine.data.dataset_format import normalise_split, order_splits
from vitrine.data.sources.image_files import scan_folder

Files = dict[str | None, list[Path]]
"""Files of each split; under None those whose names begin with no split, which are all if the data is not divided."""

Endings = str | tuple[str, ...]

BRACES = re.compile(r"\{([^{}]*)\}")
RANGE = re.compile(r"([0-9]{1,9})\.\.([0-9]{1,9})")


def find_files(folder: Path, endings: Endings) -> Files:
    """Find the files with these endings in a folder, and in its subfolders named like splits."""
    files = group_by_split(list_files(folder, endings))
    split_folders = sorted(entry.name for entry in scan_folder(str(folder)) if normalise_split(entry.name) and entry.is_dir())
    for name in split_folders:
        if inner := list_files(folder / name, endings):
            files.setdefault(normalise_split(name), []).extend(inner)
    return files


def list_files(folder: Path, endings: Endings) -> list[Path]:
    """Return the files with these endings in a folder, sorted, without hidden ones."""
    entries = (entry for entry in scan_folder(str(folder)) if entry.name.endswith(endings) and not entry.name.startswith("."))
    return [folder / name for name in sorted(entry.name for entry in entries if entry.is_file())]


def group_by_split(paths: list[Path]) -> Files:
    """Group files by the first word of their names: train-000.tar, val.tar, test_00000-of-00003.parquet."""
    files: Files = {}
    for path in paths:
        word = re.split(r"[^A-Za-z]", path.name, maxsplit=1)[0]
        files.setdefault(normalise_split(word), []).append(path)
    return files


def choose_files(data: Path, files: Files, split: str | None) -> tuple[list[Path], list[Path]]:
    """Return the files of a split, and those of all splits, so that classes are counted alike in every split."""
    if split is None:
        return files[None], files[None]
    if None in files:
        warn_user(f"{data}: left out {join_names([path.name for path in files[None]])}, whose names begin with no split.")
    return files[split], [path for each in order_splits(files) for path in files[each]]


def locate(ends: np.ndarray, index: int) -> tuple[int, int]:
    """Return the part that has an image, and the image's index there, if part i ends before image ends[i]."""
    part = int(np.searchsorted(ends, index, side="right"))
    return part, index - (int(ends[part - 1]) if part > 0 else 0)


def read_stamp(file: Path | str | int) -> tuple[int, int]:
    """Return size and modification time of a file, by which a change is detected."""
    status = os.stat(file)
    return status.st_size, status.st_mtime_ns


def expand_pattern(pattern: Path) -> list[Path]:
    """Return the files that braces and stars mean, sorted; each name that braces spell out must match a file."""
    files: set[str] = set()
    for name in expand_braces(str(pattern)):
        matches = glob.glob(glob.escape(name).replace("[*]", "*"))
        if not matches:
            raise FileNotFoundError(f"{name} does not exist; expected by {pattern}: check the pattern, or download the file.")
        files.update(matches)
    return [Path(name) for name in sorted(files)]


def expand_braces(text: str) -> Iterator[str]:
    """Yield the names that ranges {000..099} and lists {a,b} stand for; lazily, since a range may be very long."""
    braces = BRACES.search(text)
    if braces is None:
        yield text
        return
    for choice in list_choices(braces[1]):
        yield from expand_braces(text[: braces.start()] + choice + text[braces.end() :])


def list_choices(inside: str) -> Iterator[str]:
    """Yield the numbers of a range, padded with zeros if its ends are, or the members of a list."""
    span = RANGE.fullmatch(inside)
    if span is None:
        yield from inside.split(",")
        return
    first, last = sorted(map(int, span.groups()))
    is_padded = any(side.startswith("0") and side != "0" for side in span.groups())
    digits = max(map(len, span.groups())) if is_padded else 0
    yield from (f"{number:0{digits}d}" for number in range(first, last + 1))
