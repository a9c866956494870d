"""Label and class-name files, their checks.

Files that say what images show: text, JSON and lists of classes, each of which may be missing, damaged or something else.
Labels that come as class numbers: whether each image has one, and each is one of the classes.
"""

import json
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from vitrine.core.console import join_names, summarise
from vitrine.data.source import Labels

CLASS_LIST = "classes.txt"

NEEDED, REMEDY = "the data set needs it", "fetch it again"

# Not ValueError: that is what our own sentences are, also those that are raised while a file is open.
FAILURES = (OSError, EOFError, MemoryError, zlib.error)
Failures = type[Exception] | tuple[type[Exception], ...]

# No 2 bits of deflate, which gzip and zip are made of, stand for more than 258 bytes.
DEFLATE_RATIO = 1032


@contextmanager
def readable_errors(path: Path, needed: str = NEEDED, remedy: str = REMEDY, failures: Failures = FAILURES) -> Iterator[None]:
    """Whatever the disk or a library say of a bad file or folder, in one sentence that names it.

    `needed` says what for, as "an IDX file was needed", and `remedy` what helps; `failures` is Exception around a parser
    that lets out whatever it trips over.
    """
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist, and {needed}: check the name, or {remedy}.") from None
    except failures as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else summarise(error)
        raise ValueError(f"{path} cannot be read ({reason}), and {needed}: {remedy}.") from None


def read_bytes(path: Path, limit: int = -1) -> bytes:
    """The content, or as much of it as `limit` allows."""
    with readable_errors(path), open(path, "rb") as file:
        return file.read(limit)


@contextmanager
def open_text(path: Path, needed: str = NEEDED, remedy: str = REMEDY) -> Iterator[TextIO]:
    """UTF-8, with or without the mark that Windows puts first; line ends are left as they are."""
    try:
        with readable_errors(path, needed, remedy), open(path, encoding="utf-8-sig", newline="") as file:
            yield file
    except UnicodeDecodeError as error:
        # No position, which would be that in the piece that was read last: the text before it can be looked for.
        found = error.object[max(0, error.start - 20) : error.end]
        raise ValueError(
            f"{path} is not text in UTF-8 (see {found!r}), and {needed}: save it in that encoding, or {remedy}."
        ) from None


def read_text(path: Path, needed: str = NEEDED, remedy: str = REMEDY, limit: int = -1) -> str:
    """The content, or as many characters of it as `limit` allows."""
    with open_text(path, needed, remedy) as file:
        return file.read(limit)


def read_lines(path: Path) -> list[tuple[int, str]]:
    """Lines with their numbers from 1, stripped, without empty ones."""
    lines = enumerate(read_text(path).split("\n"), start=1)
    return [(number, line.strip()) for number, line in lines if line.strip()]


def load_json(path: Path) -> Any:
    text = read_text(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({summarise(error)}), which was needed: fetch it again.") from None


def load_class_list(folder: Path) -> dict[str, str] | None:
    """From each class as folders and labels have it to the name to show, which may stand behind a tab; None without a list."""
    path = folder / CLASS_LIST
    try:
        text = read_text(path, "a list of classes was needed", "remove it")
    except FileNotFoundError:
        return None
    classes: dict[str, str] = {}
    for number, line in enumerate(re.split(r"\r\n?|\n", text.rstrip()), start=1):
        name, _, shown = (cell.strip() for cell in line.partition("\t"))
        if not name or name in classes:
            found = f"repeats {join_names([name])}" if name else "is empty"
            raise ValueError(f"{path} line {number} {found}, and each line needs a class of its own: correct that line.")
        classes[name] = shown or name
    return classes


def quote(line: str) -> str:
    """A line from a file in a sentence of ours, at a readable length."""
    return repr(line if len(line) <= 80 else f"{line[:80]}...")


# A label that is a hash or a date would otherwise make as many classes, each of which gets a name.
MAX_CLASSES = 1_000_000


def numbered_class_names(num_classes: int) -> tuple[str, ...]:
    """Names for classes that have none."""
    return tuple(map(str, range(num_classes)))


def validate_labels(
    labels: Labels, class_names: tuple[str, ...], where: str, name: Callable[[int], str]
) -> tuple[Labels, tuple[str, ...]]:
    """What a source has as both; labels below 0 say that there is none, which all images may do or no image.

    `where` is what names the classes; `name` gives the name of an image.
    """
    num_lacking, num_labels = int((labels.values < 0).sum()), len(labels.values)
    if num_labels == 0 or (num_lacking == num_labels and not labels.has_several):
        return Labels.none_each(len(labels)), ()
    if num_lacking > 0:
        first = find_image(labels, labels.values < 0)
        raise ValueError(
            f"{where} has {num_labels - num_lacking} labels, and {name(first)} is the first of {num_lacking} images "
            "without (none, null, or below 0): give each a label, or none."
        )
    if labels.values.max() >= len(class_names):
        first = find_image(labels, labels.values >= len(class_names))
        raise ValueError(
            f"{name(first)} has the label {labels[first]}, and {where} names {len(class_names)} classes, counted from "
            "0: correct one of them."
        )
    return labels, class_names


def find_image(labels: Labels, is_meant: np.ndarray) -> int:
    """The first with a label that is meant."""
    position = int(np.flatnonzero(is_meant)[0])
    return position if labels.starts is None else int(np.searchsorted(labels.starts, position, side="right")) - 1
