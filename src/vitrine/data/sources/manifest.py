"""Lists of images with labels and splits: CSV, TSV, or JSON lines with one object per line.

The columns of a CSV file are separated by commas, or by the semicolons or tabs of its first line, if that has no comma. An
image may have several labels: a list in JSON, a cell with ";" between them in CSV ("|" where ";" separates the columns). Paths
start at the list's folder.
Labels are class names, or class indices from 0; `classes.txt` beside the list may give the order and names of the classes.
"""

import csv
import json
import os
import re
from array import array
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, takewhile
from pathlib import Path
from typing import Any, Literal, NamedTuple, TextIO

import numpy as np

from vitrine.core.config_checks import is_whole
from vitrine.core.console import join_names, progress_bar, summarise_error, warn_user
from vitrine.data.dataset_format import SPLITS, DatasetFormat, normalise_split, order_splits
from vitrine.data.source import Labels
from vitrine.data.sources.annotations import CLASS_LIST, MAX_CLASSES, load_class_list, numbered_class_names, open_text
from vitrine.data.sources.image_files import FileSource

SUFFIXES = (".csv", ".tsv", ".jsonl")
PATH_COLUMNS = ("path", "file", "filename", "file_name", "image", "image_path", "img")
LABEL_COLUMNS = ("label", "labels", "class", "category", "class_name", "target")
SPLIT_COLUMNS = ("split",)
LABEL_SEPARATORS = {",": ";", "\t": ";", ";": "|"}  # within a cell, by the separator of the columns

DELIMITER_NAMES = {",": "commas", "\t": "tabs", ";": "semicolons"}

# No file name has such characters, or it could not be printed: more likely a quote is not closed.
FORBIDDEN_CHARACTERS = re.compile("[\0\r\n\ud800-\udfff]")

CLASS_INDEX = re.compile(r"0|[1-9][0-9]*")  # "007" is a name, like a postal code
OTHER_NUMBER = re.compile(r"-?[0-9]+(\.0*)?")


class Columns(NamedTuple):
    """Positions of the columns in a row, None for those that do not exist."""

    path: int
    label: int | None
    split: int | None


class Row(NamedTuple):
    """One image of a list."""

    where: str
    """File and line, for messages."""
    line: int
    path: str
    labels: list[str]
    split: str | None
    """The cell as written; None if there is no such column."""


class Table:
    """All rows of a list as arrays; labels are numbered in the order of their first appearance."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.labels: dict[str, int] = {}
        self.label_lines: list[int] = []
        """Line of each label's first appearance."""
        self.values = array("q")
        self.counts = array("q")
        self.splits = array("b")
        """Indices in SPLITS; -1 if the list has no splits."""

    def add(self, row: Row, split: int) -> None:
        """Append a row; a label that it repeats counts once."""
        labels = dict.fromkeys(row.labels)
        for label in labels:
            if label not in self.labels:
                self.labels[label] = len(self.labels)
                self.label_lines.append(row.line)
            self.values.append(self.labels[label])
        self.paths.append(row.path)
        self.counts.append(len(labels))
        self.splits.append(split)


def is_manifest(path: Path) -> bool:
    """Return whether a path is a file with the ending of a list."""
    return path.suffix.lower() in SUFFIXES and os.path.isfile(path)


def list_splits(path: Path) -> tuple[str, ...]:
    """Return the splits of a list. Stops at the first row without a split; rows are checked when the list is opened."""
    with_split = takewhile(lambda row: row.split is not None, read_rows(path))
    return order_splits({normalise_split(row.split or "") for row in with_split})


def open_manifest(path: Path, split: str | None) -> FileSource:
    """Open the images of a list, or of one of its splits."""
    table = load_table(path)
    root = os.path.dirname(os.path.abspath(path))
    class_list = load_class_list(Path(root))
    class_names, indices = resolve_classes(path, table, class_list)
    chosen = np.array(table.splits) == (-1 if split is None else SPLITS.index(split))  # (N)
    labels = select_labels(path, table, indices, chosen)
    names = [table.paths[index] for index in np.flatnonzero(chosen)]
    if labels.has_several and len(labels.values) == 0:
        return FileSource(Path(root), names, labels, (), [path])
    return FileSource(Path(root), names, labels, class_names, [path, Path(root, CLASS_LIST)] if class_list else [path])


FORMAT = DatasetFormat("manifest", is_manifest, list_splits, open_manifest)


def is_file_beside(path: Path, name: str) -> bool:
    """Return whether a cell of a list is the path of a file, as seen from the list's folder."""
    try:
        return os.path.isfile(os.path.join(os.path.dirname(os.path.abspath(path)), name))
    except ValueError:  # a null character
        return False


def detect_delimiter(path: Path, first_line: str) -> str:
    """Return the separator of the columns: of a .tsv file tabs, of a .csv file commas, unless its first line has others only.

    A first row such as `1.jpg,cat;dog` has commas; `1.jpg;cat`, as spreadsheets write it where numbers have commas, has none.
    """
    if path.suffix.lower() == ".tsv":
        return "\t"
    if is_file_beside(path, first_line):  # a list of paths only
        return ","
    outside_quotes = re.sub(r'"[^"]*"', "", first_line)
    return next((each for each in (",", "\t", ";") if each in outside_quotes), ",")


# Columns: which cells are path, label and split.


def detect_columns(where: str, names: Sequence[str], alternative: str = "") -> Columns:
    """Find the columns by their names, at most one of each kind; `alternative` is added to the error without a path."""
    path, label, split = (
        [index for index, name in enumerate(names) if name.strip().lower() in known]
        for known in (PATH_COLUMNS, LABEL_COLUMNS, SPLIT_COLUMNS)
    )
    for indices in (path, label, split):
        if len(indices) > 1:
            rivals = join_names([names[index].strip() for index in indices])
            raise ValueError(f"{where} has the columns {rivals}, which have the same meaning: rename or remove all but one.")
    if not path:
        shown = join_names([name[:40] for name in names]) or "nothing"
        raise ValueError(f"{where} has {shown}; expected a path in a column named {' or '.join(PATH_COLUMNS)}{alternative}.")
    return Columns(path[0], label[0] if label else None, split[0] if split else None)


def detect_csv_columns(path: Path, line: int, first_row: list[str], starts_with_file: bool) -> tuple[Columns, bool]:
    """Find the columns of a CSV file, and whether its first row is a header: not if it starts with the path of a file."""
    if not starts_with_file or first_row[0].strip().lower() in PATH_COLUMNS:
        return detect_columns(
            f"{path} line {line}", first_row, ", or without a header the path of a file in the first cell"
        ), True
    if len(first_row) > 2:
        raise ValueError(f"{path} has {len(first_row)} columns without a header: add a first line, e.g. path,label,split.")
    return Columns(0, 1 if len(first_row) == 2 else None, None), False


# Rows.


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a list, checked one by one."""
    read = read_jsonl if path.suffix.lower() == ".jsonl" else read_csv
    with open_text(path, "expected a list of images", "use another") as file:
        yield from read(path, file)


def read_csv(path: Path, file: TextIO) -> Iterator[Row]:
    """Yield the rows of a CSV or TSV file."""
    start: list[str] = []  # up to the first line that is not empty
    for line in file:
        start.append(line)
        if line.strip():
            break
    delimiter = detect_delimiter(path, "".join(start).strip())
    reader = csv.reader(chain(start, file), delimiter=delimiter, strict=True)
    try:
        rows = ((reader.line_num, row) for row in reader if any(cell.strip() for cell in row))
        first = next(rows, None)
        if first is None:
            return
        starts_with_file = is_file_beside(path, first[1][0])
        columns, has_header = detect_csv_columns(path, *first, starts_with_file)
        for line, row in rows if has_header else chain([first], rows):
            if len(row) != len(first[1]):
                cells = f"{path} line {line} has {len(row)} cells; the first line has {len(first[1])}"
                raise ValueError(f"{cells}: quote {DELIMITER_NAMES[delimiter]} within cells.")
            label = [] if columns.label is None else row[columns.label].split(LABEL_SEPARATORS[delimiter])
            split = None if columns.split is None else row[columns.split]
            yield build_row(f"{path} line {line}", line, row[columns.path], label, split)
    except csv.Error as error:
        raise ValueError(f"{path} line {reader.line_num} is not CSV ({summarise_error(error)}): check its quotes.") from None


def read_jsonl(path: Path, file: TextIO) -> Iterator[Row]:
    """Yield the rows of a file of JSON lines; each object may have its own order of names."""
    names, columns = list[str](), Columns(0, None, None)
    for line, text in enumerate(file, start=1):
        if not text.strip():
            continue
        where = f"{path} line {line}"
        row = parse_json_object(where, text)
        if list(row) != names:
            names = list(row)
            columns = detect_columns(where, names)
        cells = list(row.values())
        label = [] if columns.label is None else cells[columns.label]
        yield build_row(where, line, cells[columns.path], label, None if columns.split is None else cells[columns.split])


def parse_json_object(where: str, text: str) -> dict[str, Any]:
    """Parse a line of JSON, which must be an object without repeated names."""
    try:
        row = json.loads(text, object_pairs_hook=build_object)
    except (ValueError, RecursionError) as error:  # also ValueError of numbers with thousands of digits
        reason = "nested too deeply" if isinstance(error, RecursionError) else summarise_error(error)
        raise ValueError(f"{where} is not JSON ({reason}); expected one object per line: correct it.") from None
    if not isinstance(row, dict):
        raise ValueError(f"{where} is a JSON {type(row).__name__}; expected one object per line: correct it.")
    return row


def build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object, which must not repeat a key."""
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("an object repeats a name")
    return content


def build_row(where: str, line: int, path: object, label: object, split: object) -> Row:
    """Check the cells of a row, which may be any JSON values."""
    path = require_text(where, path, "path")
    if not path.strip():
        raise ValueError(f"{where} has no path: add it, or remove the row.")
    labels = label if isinstance(label, list) else [] if label is None else [label]
    texts = [require_text(where, str(each) if is_whole(each) else each, "label").strip() for each in labels]
    labels = [text for text in texts if text]
    return Row(where, line, path, labels, None if split is None else require_text(where, split, "split"))


def require_text(where: str, value: object, column: str) -> str:
    """Return a cell that is printable text on one line, or raise ValueError."""
    if not isinstance(value, str):
        expected = "text or a whole number" if column == "label" else "text"
        raise ValueError(f"{where} has the {column} {str(value)[:40]}; expected {expected}: correct it.")
    if FORBIDDEN_CHARACTERS.search(value):
        raise ValueError(f"{where} has the {column} {value[:40]!r}; expected one printable line: check quotes and encoding.")
    return value


# Checks across rows.


def load_table(path: Path) -> Table:
    """Read all rows and check them against each other; only the first image file must exist."""
    root = os.path.dirname(os.path.abspath(path))
    table, lines, has_splits = Table(), dict[str, int](), False
    for row in progress_bar(read_rows(path), None, f"Reading {path.name}", is_delayed=True):
        full_path = os.path.normpath(os.path.join(root, row.path))  # ./a.png is a.png
        if not lines:
            has_splits = row.split is not None
            if not os.path.exists(os.path.join(root, row.path)):
                raise FileNotFoundError(f"{row.where} names {row.path!r}, which is not in {root}: give relative paths.")
        if full_path in lines:
            raise ValueError(f"{row.where} repeats the image {row.path!r} of line {lines[full_path]}: remove one of them.")
        lines[full_path] = row.line
        table.add(row, resolve_split(row, has_splits))
    if not lines:
        raise ValueError(f"{path} lists no images; expected at least one row with a path: check that it is the right file.")
    return table


def resolve_split(row: Row, has_splits: bool) -> int:
    """Return the index in SPLITS of a row's split, or -1 if the list has no splits."""
    if row.split is None and not has_splits:
        return -1
    if not has_splits:
        raise ValueError(f"{row.where} has the split {row.split!r}, but rows before it have none: give all rows one, or none.")
    split = normalise_split(row.split or "")
    if split is None:
        found = f"the split {row.split!r}" if row.split else "no split"
        raise ValueError(f"{row.where} has {found}; expected train, val or test in every row: correct it.")
    return SPLITS.index(split)


# Labels: what they mean, and their class indices.


def detect_label_kind(labels: Collection[str], class_list: Collection[str] | None) -> Literal["listed", "index", "name"]:
    """Decide what labels are: classes of the class list if it has all of them, else class indices or names."""
    if class_list is not None and all(label in class_list for label in labels):
        return "listed"
    return "index" if all(CLASS_INDEX.fullmatch(label) for label in labels) else "name"


def resolve_classes(path: Path, table: Table, class_list: dict[str, str] | None) -> tuple[tuple[str, ...], np.ndarray]:
    """Return the class names, and the class index of each label of the table (L)."""
    kind = detect_label_kind(table.labels, class_list)
    if kind == "index":
        indices = [parse_class_index(path, line, label) for label, line in zip(table.labels, table.label_lines, strict=True)]
        names = numbered_class_names(max(indices, default=-1) + 1) if class_list is None else tuple(class_list.values())
        for index, line in zip(indices, table.label_lines, strict=True):
            if index >= len(names):
                raise ValueError(f"{path} line {line} has class {index}, but {CLASS_LIST} has {len(names)} classes, from 0.")
        return names, np.array(indices, np.int64)
    if kind == "name":
        check_names(path, table, class_list)
    classes = {label: label for label in sorted(table.labels)} if class_list is None else class_list
    index_of = {label: index for index, label in enumerate(classes)}
    return tuple(classes.values()), np.array([index_of[label] for label in table.labels], np.int64)


def check_names(path: Path, table: Table, class_list: Collection[str] | None) -> None:
    """Raise ValueError if a label is not in the class list, or if all labels are numbers but not class indices."""
    are_numbers = all(OTHER_NUMBER.fullmatch(label) for label in table.labels)
    for label, line in zip(table.labels, table.label_lines, strict=True):
        if class_list is not None and label not in class_list:
            raise ValueError(f"{path} line {line} has the label {label!r}, which {CLASS_LIST} beside it does not list: add it.")
        # Names would be sorted as text, 10.0 before 2.0, and -1 usually means unlabelled.
        if are_numbers and ("-" in label or "." in label):
            raise ValueError(f"{path} line {line} has the label {label} among numbers; expected 0, 1, 2, ... or an empty cell.")


def parse_class_index(path: Path, line: int, label: str) -> int:
    """Return a label as a class index, at most MAX_CLASSES - 1."""
    # The length is checked first: Python refuses to parse numbers of thousands of digits.
    if len(label) > len(str(MAX_CLASSES)) or int(label) >= MAX_CLASSES:
        raise ValueError(f"{path} line {line} has the class index {label[:20]}; the limit is {MAX_CLASSES - 1}: use names.")
    return int(label)


def select_labels(path: Path, table: Table, indices: np.ndarray, chosen: np.ndarray) -> Labels:
    """Return the labels of the chosen rows (N): one each if that holds for all rows of labelled splits, otherwise sets."""
    counts, splits = np.array(table.counts), np.array(table.splits)  # (N)
    values = indices[np.array(table.values, np.int64)][np.repeat(chosen, counts)]
    if len(values) == 0:
        return Labels.none_each(int(chosen.sum()))
    is_labelled = np.isin(splits, splits[counts > 0])
    unlabelled = np.flatnonzero(is_labelled & (counts == 0))
    if len(unlabelled) == 0 and counts.max() == 1:
        return Labels.one_each(values)
    if counts.max() == 1:
        example = join_names([table.paths[unlabelled[0]]])
        warn_user(f"{path}: {len(unlabelled)} images have no label, e.g. {example}: assuming any number of labels per image.")
    return Labels.from_counts(values, counts[chosen])
