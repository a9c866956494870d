"""Label files and class lists of datasets: reading text and JSON with clear errors, and checks of labels."""

import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from vitrine.core.console import join_names, summarise_error
from vitrine.data.source import Labels

CLASS_LIST = "classes.txt"

EXPECTED, REMEDY = "the dataset needs it", "download it again"

# ValueError is not among them: our own messages, also those raised while a file is open, pass unchanged.
FAILURES = (OSError, EOFError, MemoryError, zlib.error)
Failures = type[Exception] | tuple[type[Exception], ...]

# Deflate, which gzip and zip use, expands no 2 bits to more than 258 bytes.
DEFLATE_RATIO = 1032

# A label column of hashes or dates would otherwise make a class of each.
MAX_CLASSES = 1_000_000


@contextmanager
def readable_errors(
    path: Path, expected: str = EXPECTED, remedy: str = REMEDY, failures: Failures = FAILURES
) -> Iterator[None]:
    """Turn errors of the disk or a library into one sentence that names the file.

    `expected` is e.g. "expected an IDX file", `remedy` what to do; `failures` is Exception where a parser may raise anything.
    """
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist; {expected}: check the name, or {remedy}.") from None
    except failures as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else summarise_error(error)
        raise ValueError(f"{path} cannot be read ({reason}); {expected}: {remedy}.") from None


def read_bytes(path: Path, limit: int = -1) -> bytes:
    """Read a file, at most `limit` bytes of it."""
    with readable_errors(path), open(path, "rb") as file:
        return file.read(limit)


@contextmanager
def open_text(path: Path, expected: str = EXPECTED, remedy: str = REMEDY) -> Iterator[TextIO]:
    """Open a UTF-8 text file, with or without a byte order mark; line ends are left as they are."""
    try:
        with readable_errors(path, expected, remedy), open(path, encoding="utf-8-sig", newline="") as file:
            yield file
    except UnicodeDecodeError as error:
        # The error's position is relative to the last block read, so the text before it is shown instead.
        text = error.object[max(0, error.start - 20) : error.end]
        raise ValueError(f"{path} is not UTF-8 text (see {text!r}); {expected}: save it as UTF-8, or {remedy}.") from None


def read_text(path: Path, expected: str = EXPECTED, remedy: str = REMEDY, limit: int = -1) -> str:
    """Read a text file, at most `limit` characters of it."""
    with open_text(path, expected, remedy) as file:
        return file.read(limit)


def read_lines(path: Path) -> list[tuple[int, str]]:
    """Read the lines of a text file that are not empty, stripped, with their numbers from 1."""
    lines = enumerate(read_text(path).split("\n"), start=1)
    return [(number, line.strip()) for number, line in lines if line.strip()]


def load_json(path: Path) -> Any:
    """Read a JSON file of a dataset."""
    text = read_text(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({summarise_error(error)}): download it again.") from None


def load_class_list(folder: Path) -> dict[str, str] | None:
    """Read {class: name to show} from the lines (class, optionally a tab and a name) of classes.txt; None if it is missing."""
    path = folder / CLASS_LIST
    try:
        text = read_text(path, "expected a list of classes", "remove it")
    except FileNotFoundError:
        return None
    classes: dict[str, str] = {}
    for number, line in enumerate(re.split(r"\r\n?|\n", text.rstrip()), start=1):
        name, _, shown = (cell.strip() for cell in line.partition("\t"))
        if not name or name in classes:
            problem = f"repeats {join_names([name])}" if name else "is empty"
            raise ValueError(f"{path} line {number} {problem}; expected a class of its own in each line: correct it.")
        classes[name] = shown or name
    return classes


def quote(line: str) -> str:
    """Quote a line of a file for a message, at a readable length."""
    return repr(line if len(line) <= 80 else f"{line[:80]}...")


def require_once(images: Iterable[tuple[str, str]]) -> None:
    """Raise ValueError if lists name an image twice, given (where it is listed, image) pairs."""
    seen: dict[str, str] = {}
    for where, image in images:
        if image in seen:
            raise ValueError(f"{where} lists {image}, and so does {seen[image]}: remove one of them.")
        seen[image] = where


def numbered_class_names(num_classes: int) -> tuple[str, ...]:
    """Return "0", "1", ... for classes without names."""
    return tuple(map(str, range(num_classes)))


def validate_labels(
    labels: Labels, class_names: tuple[str, ...], where: str, name: Callable[[int], str]
) -> tuple[Labels, tuple[str, ...]]:
    """Check label numbers against the class names, and return both as a source has them.

    A label below 0 means unlabelled: all images or none. For messages, `where` is the origin of the classes, `name` an image's.
    """
    num_missing, num_labels = int((labels.values < 0).sum()), len(labels.values)
    if num_labels == 0 or (num_missing == num_labels and not labels.has_several):
        return Labels.none_each(len(labels)), ()
    if num_missing > 0:
        first = find_image_with(labels, labels.values < 0)
        missing = f"{name(first)} is the first of {num_missing} images without one (none, null, or below 0)"
        raise ValueError(f"{where} has {num_labels - num_missing} labels, but {missing}: label all images or none.")
    if labels.values.max() >= len(class_names):
        first = find_image_with(labels, labels.values >= len(class_names))
        named = f"{where} names {len(class_names)} classes, counted from 0"
        raise ValueError(f"{name(first)} has label {labels[first]}, but {named}: correct one of them.")
    return labels, class_names


def find_image_with(labels: Labels, is_wanted: np.ndarray) -> int:
    """Return the first image that has one of the wanted label entries."""
    position = int(np.flatnonzero(is_wanted)[0])
    return position if labels.starts is None else int(np.searchsorted(labels.starts, position, side="right")) - 1
