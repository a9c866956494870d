"""A list of images with their labels and perhaps their splits, as a file: which classes it has, and which images are wanted.

How the file is written is the matter of `manifest_rows`.
"""

import os
import re
from array import array
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path

import numpy as np

from vitrine.core.notices import notice
from vitrine.core.sentences import list_names
from vitrine.data.kind import SPLITS, Kind, normalise_split, order_splits
from vitrine.data.source import Labels
from vitrine.data.sources.annotations import CLASS_LIST, load_class_list
from vitrine.data.sources.files import FileSource
from vitrine.data.sources.labelling import MAX_CLASSES, number_classes
from vitrine.data.sources.manifest_rows import SUFFIXES, Row, read_rows

# "007" is a name, as the codes of postal areas are: whoever counts writes 7.
CLASS_INDEX = re.compile(r"0|[1-9][0-9]*")
OTHER_NUMBER = re.compile(r"-?[0-9]+(\.0*)?")

Reader = Callable[[Path], Iterator[Row]]


class Table:
    """The rows as arrays, with each label and each split as the number of its first appearance."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.labels: dict[str, int] = {}
        self.label_lines: list[int] = []
        """Where each label appears first."""
        self.values = array("q")
        self.counts = array("q")
        self.splits = array("b")
        """As numbers in SPLITS; -1 where the manifest has none."""

    def add(self, row: Row, split: int) -> None:
        for label in dict.fromkeys(row.labels):  # one that is said twice counts once
            if label not in self.labels:
                self.labels[label] = len(self.labels)
                self.label_lines.append(row.line)
            self.values.append(self.labels[label])
        self.paths.append(row.path)
        self.counts.append(len(set(row.labels)))
        self.splits.append(split)


def is_manifest(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and os.path.isfile(path)


def list_manifest_splits(path: Path, read: Reader = read_rows) -> tuple[str, ...]:
    """Without a look at the rest of a row, and at one row only where there are no splits: all is checked at opening."""
    divided = takewhile(lambda row: row.split is not None, read(path))
    return order_splits({normalise_split(row.split or "") for row in divided})


def open_manifest(path: Path, split: str | None, read: Reader = read_rows) -> FileSource:
    table = load_table(path, read)
    root = os.path.dirname(os.path.abspath(path))
    listed = load_class_list(Path(root))
    class_names, indices = settle_classes(path, table, listed)
    chosen = np.array(table.splits) == (-1 if split is None else SPLITS.index(split))  # (N)
    labels = choose_labels(path, table, indices, chosen)
    names = [table.paths[index] for index in np.flatnonzero(chosen)]
    if labels.has_several and len(labels.values) == 0:
        return FileSource(Path(root), names, labels, (), [path])
    return FileSource(Path(root), names, labels, class_names, [path, Path(root, CLASS_LIST)] if listed else [path])


KIND = Kind("manifest", is_manifest, list_manifest_splits, open_manifest)


def load_table(path: Path, read: Reader = read_rows) -> Table:
    """All rows, checked against each other; that their files exist is checked of the first one only."""
    root = os.path.dirname(os.path.abspath(path))
    table, lines, has_splits = Table(), dict[str, int](), False
    for row in read(path):
        full = os.path.normpath(os.path.join(root, row.path))  # ./a.png is a.png
        if not lines:
            has_splits = row.split is not None
            require_first(row, root)
        if full in lines:
            raise ValueError(
                f"{row.place} names {row.path!r} as line {lines[full]} does, and each image may be listed once: drop one."
            )
        lines[full] = row.line
        table.add(row, number_split(row, has_splits))
    if not lines:
        raise ValueError(
            f"{path} lists no image, and at least one row with a path was needed: check that it is the right file."
        )
    return table


def require_first(row: Row, root: str) -> None:
    if not os.path.exists(os.path.join(root, row.path)):
        raise FileNotFoundError(
            f"{row.place} names {row.path!r}, and there is no such file from the manifest's folder {root}: write paths from "
            "there, or absolute ones."
        )


def number_split(row: Row, has_splits: bool) -> int:
    if row.split is None and not has_splits:
        return -1
    if not has_splits:
        raise ValueError(
            f"{row.place} has the split {row.split!r}, and the rows before have none: give every row one, or none."
        )
    split = normalise_split(row.split or "")
    if split is None:
        found = f"the split {row.split!r}" if row.split else "no split"
        raise ValueError(f"{row.place} has {found}, and train, val or test was needed in every row: correct it.")
    return SPLITS.index(split)


def settle_classes(path: Path, table: Table, listed: dict[str, str] | None) -> tuple[tuple[str, ...], np.ndarray]:
    """The names of the classes, and the class index of each label of the table (L)."""
    labels = list(table.labels)
    are_indices = all(CLASS_INDEX.fullmatch(label) for label in labels)
    if listed is None:
        return count_classes(path, table) if are_indices else sort_classes(path, table)
    order = {label: index for index, label in enumerate(listed)}
    # A list of numbers may name classes "1", "2", "3": as long as all labels are names of the list, they are meant as such.
    are_names = all(label in order for label in labels)
    for label, line in zip(labels, table.label_lines, strict=True):
        if not (are_names or are_indices) and label not in order:
            raise ValueError(
                f"{path} line {line} has the label {label!r}, which {CLASS_LIST} beside it does not list: add it there."
            )
        if not are_names and are_indices and require_index(path, line, label) >= len(order):
            raise ValueError(
                f"{path} line {line} has the class index {label}, and {CLASS_LIST} beside it lists {len(order)} classes, "
                "counted from 0: correct the one or the other."
            )
    return tuple(listed.values()), np.array([order[label] if are_names else int(label) for label in labels], np.int64)


def count_classes(path: Path, table: Table) -> tuple[tuple[str, ...], np.ndarray]:
    """Labels that are class indices, and so their own names."""
    indices = [require_index(path, line, label) for label, line in zip(table.labels, table.label_lines, strict=True)]
    return number_classes(max(indices, default=-1) + 1), np.array(indices, np.int64)


def sort_classes(path: Path, table: Table) -> tuple[tuple[str, ...], np.ndarray]:
    """Labels that are names, which are sorted."""
    if all(OTHER_NUMBER.fullmatch(label) for label in table.labels):
        # As names they would be sorted as text, 10.0 before 2.0, and -1 is rather an image without a label.
        for label, line in zip(table.labels, table.label_lines, strict=True):
            if "-" in label or "." in label:
                raise ValueError(
                    f"{path} line {line} has the label {label} among numbers, and class indices are 0, 1, 2 and so on: write "
                    "them so, and nothing where there is no label."
                )
    order = {label: index for index, label in enumerate(sorted(table.labels))}
    return tuple(order), np.array([order[label] for label in table.labels], np.int64)


def require_index(path: Path, line: int, label: str) -> int:
    # The length comes first: Python refuses to read numbers of many thousand digits.
    if len(label) > len(str(MAX_CLASSES)) or int(label) >= MAX_CLASSES:
        raise ValueError(
            f"{path} line {line} has the class index {label[:20]}, above the limit of {MAX_CLASSES - 1}: number the classes "
            "from 0, or write names."
        )
    return int(label)


def choose_labels(path: Path, table: Table, indices: np.ndarray, chosen: np.ndarray) -> Labels:
    """Of the chosen rows: one each, if that holds wherever there are labels. A split without any is not labelled at all."""
    counts, splits = np.array(table.counts), np.array(table.splits)  # (N)
    values = indices[np.array(table.values, np.int64)][np.repeat(chosen, counts)]
    if len(values) == 0:
        return Labels.none_each(int(chosen.sum()))
    is_labelled = np.isin(splits, splits[counts > 0])
    bare = np.flatnonzero(is_labelled & (counts == 0))
    if len(bare) == 0 and counts.max() == 1:
        return Labels.one_each(values)
    if counts.max() == 1:
        notice(
            f"{path}: {len(bare)} of its images have no label, such as {list_names([table.paths[bare[0]]])}, so that all are "
            "taken to have any number of labels."
        )
    return Labels.from_counts(values, counts[chosen])
