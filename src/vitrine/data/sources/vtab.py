"""A task of VTAB-1k as the community keeps it: lists of images with their classes, beside the images.

`train800.txt`, `val200.txt`, `train800val200.txt` (both together) and `test.txt`; a line is a path from the folder of the
lists, a space and the class, counted from 0. A file `classes.txt` may name the classes.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from vitrine.data.kind import Kind
from vitrine.data.source import Labels, Source
from vitrine.data.sources.annotations import CLASS_LIST, load_class_list, quote, read_lines
from vitrine.data.sources.files import FileSource
from vitrine.data.sources.labelling import MAX_CLASSES, number_classes

WHOLE = "train800val200"  # what is trained on in the end; it holds the images of val
LISTS = {"train": "train800.txt", "val": "val200.txt", "test": "test.txt", WHOLE: f"{WHOLE}.txt"}
LINE = re.compile(r"(?P<path>\S.*?)\s+(?P<label>[0-9]{1,9})")


class Line(NamedTuple):
    place: str
    path: str
    label: int


def is_mine(folder: Path) -> bool:
    return any(os.path.isfile(folder / LISTS[split]) for split in ("train", WHOLE))


def list_splits(folder: Path) -> tuple[str, ...]:
    """Those that have a list; where train and val have one, both together need none."""
    found = {split for split, name in LISTS.items() if os.path.isfile(folder / name)}
    return tuple(split for split in LISTS if split in found or (split == WHOLE and {"train", "val"} <= found))


def open_split(folder: Path, split: str | None) -> Source:
    files = [folder / name for name in LISTS.values() if os.path.isfile(folder / name)]
    lists = {file.name: list(read_list(file)) for file in files}  # all, because the classes are those of all splits
    assert split is not None
    parts = [split] if LISTS[split] in lists else ["train", "val"]
    wanted = [line for part in parts for line in lists[LISTS[part]]]
    require_once(wanted)
    require_first(folder, wanted)
    names = name_classes(folder, [line for lines in lists.values() for line in lines])
    side_files = [*files, *([folder / CLASS_LIST] if os.path.isfile(folder / CLASS_LIST) else [])]
    labels = Labels.one_each([line.label for line in wanted])
    return FileSource(folder, [line.path for line in wanted], labels, names, side_files)


def read_list(path: Path) -> Iterator[Line]:
    for number, text in read_lines(path):
        match = LINE.fullmatch(text)
        if match is None or int(match["label"]) >= MAX_CLASSES:
            raise ValueError(
                f"{path} line {number} is {quote(text)}, and a path and a class, as 'images/0001.png 7', were needed: mend it."
            )
        yield Line(f"{path} line {number}", os.path.normpath(match["path"]), int(match["label"]))


def require_once(lines: list[Line]) -> None:
    places: dict[str, str] = {}
    for line in lines:
        if line.path in places:
            raise ValueError(f"{line.place} lists {line.path}, as does {places[line.path]}, and once was needed: remove one.")
        places[line.path] = line.place


def require_first(folder: Path, lines: list[Line]) -> None:
    """That the others are there is seen when they are read."""
    if lines and not os.path.isfile(folder / lines[0].path):
        raise FileNotFoundError(
            f"{lines[0].place} lists {lines[0].path}, and there is no such file in {folder}: unpack the images there."
        )


def name_classes(folder: Path, lines: list[Line]) -> tuple[str, ...]:
    listed, highest = load_class_list(folder), max(lines, key=lambda line: line.label, default=None)
    num_classes = 0 if highest is None else highest.label + 1
    if listed is None:
        return number_classes(num_classes)
    if highest is not None and len(listed) < num_classes:
        raise ValueError(
            f"{highest.place} has the class {highest.label}, and {CLASS_LIST} lists {len(listed)}, counted from 0: mend one."
        )
    return tuple(listed.values())


KIND = Kind("vtab", is_mine, list_splits, open_split)
