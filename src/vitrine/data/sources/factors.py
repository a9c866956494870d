"""Lists of images with what was annotated in each instead of its class, as JSON lines: a rule says which class that is.

A row has a path, perhaps a split, and the fields of the rule: {"file": "images/1.png", "split": "train", "x_position": 12}.
One that has a label keeps it.
"""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from vitrine.data.label_rules import Rule
from vitrine.data.source import Source
from vitrine.data.sources.annotations import numbered_class_names, open_text
from vitrine.data.sources.manifest import Row, build_row, find_columns, list_manifest_splits, open_manifest, parse_json
from vitrine.data.wrappers import RelabelledSource

NAME = "annotations.jsonl"


def find_factors(data: Path) -> Path | None:
    """The list: the file itself, or the one in the folder."""
    path = data if data.suffix.lower() == ".jsonl" else data / NAME
    return path if os.path.isfile(path) else None


def list_factor_splits(path: Path, rule: Rule) -> tuple[str, ...]:
    return list_manifest_splits(path, partial(read_rows, rule=rule))


def open_factors(path: Path, rule: Rule, num_classes: int, split: str | None) -> Source:
    """All classes of the rule, whether there is an image of each or not."""
    source = open_manifest(path, split, partial(read_rows, rule=rule))
    highest = int(source.labels.values.max(initial=-1))
    if highest >= num_classes or source.labels.has_several or not all(name.isdecimal() for name in source.class_names):
        raise ValueError(f"{path} has labels that are no classes from 0 to {num_classes - 1}, which were needed: correct them.")
    return RelabelledSource(source, source.labels, numbered_class_names(num_classes))


def read_rows(path: Path, rule: Rule) -> Iterator[Row]:
    with open_text(path, "a list of images was needed", "give another") as file:
        for line, text in enumerate(file, start=1):
            if text.strip():
                yield read_row(f"{path} line {line}", line, text, rule)


def read_row(place: str, line: int, text: str, rule: Rule) -> Row:
    fields = parse_json(place, text)
    columns, cells = find_columns(place, list(fields)), list(fields.values())
    label = None if columns.label is None else cells[columns.label]
    if label is None:
        try:
            label = rule(fields)
        except ValueError as error:
            raise ValueError(f"{place} has {error}: correct it.") from None
    return build_row(place, line, cells[columns.path], label, None if columns.split is None else cells[columns.split])
