"""Writing files and folders whole or not at all."""

import csv
import errno
import json
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vitrine.core.console import format_bytes, join_names, summarise

MAX_JSON_BYTES = 64_000_000


def read_json(path: Path) -> dict[str, Any]:
    """An object of JSON from a file that may be anything."""
    if path.stat().st_size > MAX_JSON_BYTES:
        raise ValueError(f"{path} has {format_bytes(path.stat().st_size)}, far too much for what is read here.")
    return parse_json(path.read_bytes(), str(path))


def parse_json(text: str | bytes, name: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is not JSON ({summarise(error)}): fetch or copy it again.") from None
    if not isinstance(content, dict):
        raise ValueError(f"{name} must be an object of JSON, not a {type(content).__name__}.")
    return content


def write_json(path: Path, content: Any) -> None:
    text = json.dumps(content, indent=2, allow_nan=False)  # before anything is opened: it may fail
    with atomic_file(path) as partial:
        partial.write_text(text + "\n")


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """With a head; None is an empty cell."""
    with atomic_file(path) as partial, partial.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)


def check_output_file(path: Path) -> None:
    """Before long work: what is written at its end can be written there."""
    require_folder_of(path)
    if path.is_dir():
        raise IsADirectoryError(f"Cannot write {path}: it is a folder. Give the name of a file in it.")


@contextmanager
def atomic_file(path: Path, by_many: bool = False) -> Iterator[Path]:
    """A place to write to, beside the target; it becomes the target if all goes well, so a reader never finds half a file.

    `by_many`: several processes may write it at once, and each has a place of its own, which a killed one leaves behind.
    """
    check_output_file(path)
    path = path.resolve()  # a link stays a link to what is written
    partial = name_beside(path, f"partial-{os.getpid()}" if by_many else "partial")
    try:
        with explain_full_disk(path):
            yield partial
            sync(partial)
            os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync(path.parent)


@contextmanager
def atomic_folder(path: Path, own_files: Collection[str]) -> Iterator[Path]:
    """The same for a folder. One that holds nothing but `own_files` is replaced; any other is left alone."""
    require_folder_of(path)
    path = path.resolve()
    partial, old = name_beside(path, "partial"), name_beside(path, "old")
    if old.exists() and not path.exists():
        os.replace(old, path)  # a job was killed between the two renames below
    require_own_folder(path, own_files)
    shutil.rmtree(partial, ignore_errors=True)  # left by a job that was killed here
    shutil.rmtree(old, ignore_errors=True)
    try:
        with explain_full_disk(path):
            partial.mkdir()
            yield partial
            for written in (*partial.iterdir(), partial):
                sync(written)  # a rename may reach the disk before the data it names
            if path.exists():
                os.replace(path, old)
            os.replace(partial, path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        if old.exists() and not path.exists():
            os.replace(old, path)
        raise
    shutil.rmtree(old, ignore_errors=True)
    sync(path.parent)


def find_cache_folder() -> Path:
    """VITRINE_CACHE, or where the system keeps what can be made again."""
    own = os.environ.get("VITRINE_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitrine"


def make_folder(path: Path) -> None:
    """With those around it, if there is none yet."""
    try:
        with explain_full_disk(path):
            path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.strerror is None:
            raise
        raise OSError(f"The folder {path} cannot be made ({error.strerror}): choose another place.") from None


@contextmanager
def explain_full_disk(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(f"{path} cannot be written, because the disk is full: make room, or choose another place.") from None


def require_own_folder(path: Path, own_files: Collection[str]) -> None:
    if not path.exists():
        return
    inside = path.iterdir() if path.is_dir() else [path]
    strangers = sorted(inner.name for inner in inside if inner.name not in own_files or not inner.is_file())
    if strangers:
        found = join_names(strangers)
        raise FileExistsError(
            f"Cannot write the folder {path}: there is something else of that name ({found}). Choose another."
        )


def name_beside(path: Path, what: str) -> Path:
    """A name that nobody would choose for a file of their own, since what has it is overwritten."""
    return path.with_name(f".{path.name}.vitrine-{what}")


def require_folder_of(path: Path) -> None:
    if not path.parent.is_dir():
        raise FileNotFoundError(f"Cannot write {path}: the folder {path.parent} does not exist. Create it first.")


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
