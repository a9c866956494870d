"""Writing files and folders whole or not at all."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def write_json(path: Path, content: Any) -> None:
    text = json.dumps(content, indent=2, allow_nan=False)  # before anything is opened: it may fail
    with whole_file(path) as partial:
        partial.write_text(text + "\n")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A place to write to, beside the target; it becomes the target if all goes well, so a reader never finds half a file."""
    require_folder_of(path)
    if path.is_dir():
        raise IsADirectoryError(f"Cannot write {path}: it is a folder. Give the name of a file in it.")
    partial = name_beside(path, "partial")
    try:
        yield partial
        sync(partial)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync(path.parent)


@contextmanager
def whole_folder(path: Path, marker: str) -> Iterator[Path]:
    """The same for a folder. An older one of its kind, which `marker` in it shows, is replaced; any other is left alone."""
    path = path.resolve()  # a link stays a link to what is written
    require_folder_of(path)
    partial, old = name_beside(path, "partial"), name_beside(path, "old")
    if old.exists() and not path.exists():
        os.replace(old, path)  # a job was killed between the two renames below
    if path.exists() and not (path.is_dir() and ((path / marker).is_file() or not any(path.iterdir()))):
        raise FileExistsError(f"Cannot write the folder {path}: there is something else of that name. Choose another.")
    shutil.rmtree(partial, ignore_errors=True)  # left by a job that was killed here
    shutil.rmtree(old, ignore_errors=True)
    try:
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
