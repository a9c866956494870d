"""The rows of a list of images: CSV, TSV (tabs for commas), or JSON lines with one object a line.

Several labels of one image are a list in JSON, and in CSV a cell with ";" between them. An empty cell is no label.
"""

import csv
import json
import os
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from vitrine.core.checks import is_whole
from vitrine.core.sentences import list_names, summarise
from vitrine.data.sources.annotations import open_text

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
            f"{path} line {reader.line_num} is not CSV ({summarise(error)}), and quotes in pairs were needed: correct it."
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
        reason = "nested too deeply" if isinstance(error, RecursionError) else summarise(error)
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
            rivals = list_names([names[index].strip() for index in found])
            raise ValueError(
                f"{place} has {rivals}, which could all be meant, and one was needed: rename or remove the others."
            )
    if not path:
        shown = list_names([name[:40] for name in names]) or "nothing"
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
