"""CSV, TSV and JSONL lists.

The rows of a list of images: CSV, TSV (tabs for commas), or JSON lines with one object a line.

Several labels of one image are a list in JSON, and in CSV a cell with ";" between them. An empty cell is no label.
A list of images with their labels and perhaps their splits, as a file: which classes it has, and which images are wanted.

How the file is written is the matter of `manifest_rows`.
"""

import csv
import json
import os
import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, takewhile
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from vitrine.core.config_checks import is_whole
from vitrine.core.console import join_names, summarise_error, warn_user
from vitrine.data.dataset_format import SPLITS, DatasetFormat, normalise_split, order_splits
from vitrine.data.source import Labels
from vitrine.data.sources.annotations import CLASS_LIST, MAX_CLASSES, load_class_list, numbered_class_names, open_text
from vitrine.data.sources.image_files import FileSource

SUFFIXES = (".csv", ".tsv", ".jsonl")
PATH_COLUMNS = ("path", "file", "filename", "file_name", "image", "image_path", "img")
LABEL_COLUMNS = ("label", "labels", "class", "category", "class_name", "target")
SPLIT_COLUMNS = ("split",)
LABEL_SEPARATOR = ";"

# No file is called so, or nobody could print it: rather a sign of quotes that are not closed.
ODD_SIGN = re.compile("[\0\r\n\ud800-\udfff]")


class Columns(NamedTuple):
    """Where they stand in a row; None for those that are not there."""

    path: int
    label: int | None
    split: int | None


class Row(NamedTuple):
    place: str
    """What errors call it."""
    line: int
    path: str
    labels: list[str]
    split: str | None
    """As written; None where there is no such column."""


def read_rows(path: Path) -> Iterator[Row]:
    read = read_jsonl if path.suffix.lower() == ".jsonl" else read_csv
    with open_text(path, "a list of images was needed", "give another") as file:
        yield from read(path, file)


def read_csv(path: Path, file: TextIO) -> Iterator[Row]:
    reader = csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True)
    try:
        cells = ((reader.line_num, row) for row in reader if any(cell.strip() for cell in row))
        first = next(cells, None)
        if first is None:
            return
        columns, has_header = find_csv_columns(path, *first)
        for line, row in cells if has_header else chain([first], cells):
            if len(row) != len(first[1]):
                raise ValueError(
                    f"{path} line {line} has {len(row)} cells, and the first line has {len(first[1])}: give both the same "
                    "number, with quotes around cells that have commas in them."
                )
            label = [] if columns.label is None else row[columns.label].split(LABEL_SEPARATOR)
            split = None if columns.split is None else row[columns.split]
            yield build_row(f"{path} line {line}", line, row[columns.path], label, split)
    except csv.Error as error:
        raise ValueError(
            f"{path} line {reader.line_num} is not CSV ({summarise_error(error)}), and quotes in pairs were needed: correct it."
        ) from None


def find_csv_columns(path: Path, line: int, first: list[str]) -> tuple[Columns, bool]:
    """And whether the first row is a header; it is none if it begins with the path of a file."""
    is_file = os.path.isfile(os.path.join(os.path.dirname(os.path.abspath(path)), first[0]))
    if not is_file or first[0].strip().lower() in PATH_COLUMNS:
        return find_columns(
            f"{path} line {line}", first, "or, without names of columns, the path of a file in the first cell"
        ), True
    if len(first) > 2:
        raise ValueError(
            f"{path} has {len(first)} columns without names, and only a path and a label can be told apart: put a first line "
            "before the others with the names of the columns, such as path,label,split."
        )
    return Columns(0, 1 if len(first) == 2 else None, None), False


def read_jsonl(path: Path, file: TextIO) -> Iterator[Row]:
    names, columns = list[str](), Columns(0, None, None)
    for line, text in enumerate(file, start=1):
        if not text.strip():
            continue
        place = f"{path} line {line}"
        row = parse_json(place, text)
        if list(row) != names:
            names = list(row)
            columns = find_columns(place, names)
        cells = list(row.values())
        label = [] if columns.label is None else cells[columns.label]
        yield build_row(place, line, cells[columns.path], label, None if columns.split is None else cells[columns.split])


def parse_json(place: str, text: str) -> dict[str, Any]:
    try:
        row = json.loads(text, object_pairs_hook=build_object)
    except (ValueError, RecursionError) as error:  # ValueError is also what a number of many thousand digits costs
        reason = "nested too deeply" if isinstance(error, RecursionError) else summarise_error(error)
        raise ValueError(f"{place} is not JSON ({reason}), and one object was needed on every line: correct it.") from None
    if not isinstance(row, dict):
        raise ValueError(f"{place} is {type(row).__name__} in JSON, and one object was needed on every line: write objects.")
    return row


def build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands twice in an object")
    return found


def find_columns(place: str, names: Sequence[str], instead: str = "") -> Columns:
    path, label, split = (
        [index for index, name in enumerate(names) if name.strip().lower() in known]
        for known in (PATH_COLUMNS, LABEL_COLUMNS, SPLIT_COLUMNS)
    )
    for found in (path, label, split):
        if len(found) > 1:
            rivals = join_names([names[index].strip() for index in found])
            raise ValueError(
                f"{place} has {rivals}, which could all be meant, and one was needed: rename or remove the others."
            )
    if not path:
        shown = join_names([name[:40] for name in names]) or "nothing"
        known = ", ".join(PATH_COLUMNS)
        raise ValueError(
            f"{place} has {shown}, and a path named as one of {known} was needed{instead and ', '}{instead}: add it."
        )
    return Columns(path[0], label[0] if label else None, split[0] if split else None)


def build_row(place: str, line: int, path: object, label: object, split: object) -> Row:
    """The row from what stands in the file, which may be anything that JSON can say."""
    written = require_text(place, path, "path")
    if not written.strip():
        raise ValueError(f"{place} has no path, and every row needs one: add it, or remove the row.")
    labels = label if isinstance(label, list) else [] if label is None else [label]
    texts = [require_text(place, str(each) if is_whole(each) else each, "label").strip() for each in labels]
    return Row(
        place, line, written, [text for text in texts if text], None if split is None else require_text(place, split, "split")
    )


def require_text(place: str, value: object, what: str) -> str:
    if not isinstance(value, str):
        whole = " or a whole number" if what == "label" else ""
        raise ValueError(f"{place} has the {what} {str(value)[:40]}, and text{whole} was needed: write it so.")
    if ODD_SIGN.search(value):
        raise ValueError(
            f"{place} has the {what} {value[:40]!r}, and line breaks, zero bytes and halves of characters cannot be part of "
            "one: look for a quote that is not closed, or for a wrong encoding."
        )
    return value


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
    class_names, indices = resolve_classes(path, table, listed)
    chosen = np.array(table.splits) == (-1 if split is None else SPLITS.index(split))  # (N)
    labels = choose_labels(path, table, indices, chosen)
    names = [table.paths[index] for index in np.flatnonzero(chosen)]
    if labels.has_several and len(labels.values) == 0:
        return FileSource(Path(root), names, labels, (), [path])
    return FileSource(Path(root), names, labels, class_names, [path, Path(root, CLASS_LIST)] if listed else [path])


FORMAT = DatasetFormat("manifest", is_manifest, list_manifest_splits, open_manifest)


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


def resolve_classes(path: Path, table: Table, listed: dict[str, str] | None) -> tuple[tuple[str, ...], np.ndarray]:
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
    return numbered_class_names(max(indices, default=-1) + 1), np.array(indices, np.int64)


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
        warn_user(
            f"{path}: {len(bare)} of its images have no label, such as {join_names([table.paths[bare[0]]])}, so that all are "
            "taken to have any number of labels."
        )
    return Labels.from_counts(values, counts[chosen])
