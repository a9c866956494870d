"""Reading and writing files: JSON, CSV, output path checks, the cache folder, and atomic replacement of files and folders."""

import csv
import errno
import json
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TextIO

from vitrine.core.console import format_bytes, join_names, summarise_error
from vitrine.core.locks import exclusive_lock

MAX_JSON_BYTES = 64_000_000


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file that may hold anything."""
    num_bytes = path.stat().st_size
    if num_bytes > MAX_JSON_BYTES:
        raise ValueError(f"{path} is too large for a JSON file: {format_bytes(num_bytes)} > {format_bytes(MAX_JSON_BYTES)}.")
    return parse_json(path.read_bytes(), str(path))


def parse_json(text: str | bytes, name: str) -> dict[str, Any]:
    """Parse a JSON object; `name` says in errors where the text came from."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is not valid JSON ({summarise_error(error)}): download or copy it again.") from None
    if not isinstance(content, dict):
        raise ValueError(f"{name} must hold a JSON object, not a {type(content).__name__}.")
    return content


def write_json(path: Path, content: Any) -> None:
    """Write indented JSON atomically; NaN and infinity are errors."""
    text = json.dumps(content, indent=2, allow_nan=False)  # before the file is opened: this may fail
    with atomic_file(path) as partial:
        partial.write_text(text + "\n")


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV file with a header atomically; None is an empty cell."""
    with open_atomic_text(path) as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)


@contextmanager
def open_atomic_text(path: Path) -> Iterator[TextIO]:
    """Open a text file to write, which appears under its name when it is complete."""
    with atomic_file(path) as partial, partial.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        yield file


def check_output_files(*paths: Path | None) -> None:
    """Check, before a long computation, that each output file given by the user can be written; None is skipped."""
    given = [path for path in paths if path is not None]
    for path in given:
        check_parent_folder(path)
        if path.is_dir():
            raise IsADirectoryError(f"Cannot write {path}: it is a folder. Give a file name.")
    if len({path.resolve() for path in given}) < len(given):
        raise ValueError(f"Two outputs have the same file name ({join_names([*map(str, given)])}): give each its own.")


@contextmanager
def atomic_file(path: Path, is_concurrent: bool = False) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` if the block succeeds, so that readers never see half a file.

    A second process that writes the same file gets an error. With `is_concurrent`, several may: each has its own temporary
    path, which remains if the process is killed.
    """
    check_output_files(path)
    path = path.resolve()  # a link stays a link; its target is replaced
    partial = temporary_path(path, f"partial-{os.getpid()}" if is_concurrent else "partial")
    with nullcontext() if is_concurrent else exclusive_lock(temporary_path(path, "lock"), str(path)):
        try:
            with explain_full_disk(path):
                partial.unlink(missing_ok=True)  # left by a killed process
                partial.touch()
                mode = partial.stat().st_mode
                yield partial
                partial.chmod(mode)  # some libraries write files that only their owner may read
                sync_to_disk(partial)
                os.replace(partial, path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        sync_to_disk(path.parent)


@contextmanager
def atomic_folder(path: Path, own_files: Collection[str]) -> Iterator[Path]:
    """Yield a temporary folder that replaces `path` if the block succeeds.

    An existing folder is replaced only if it holds nothing but `own_files`; otherwise FileExistsError is raised. A second
    process that writes the same folder gets an error.
    """
    check_parent_folder(path)
    path = path.resolve()
    partial, old = temporary_path(path, "partial"), temporary_path(path, "old")
    with exclusive_lock(temporary_path(path, "lock"), str(path)):
        if old.exists() and not path.exists():
            os.replace(old, path)  # an earlier process was killed between the two renames below
        check_replaceable(path, own_files)
        shutil.rmtree(partial, ignore_errors=True)  # left by a killed process
        shutil.rmtree(old, ignore_errors=True)
        try:
            with explain_full_disk(path):
                partial.mkdir()
                mode = partial.stat().st_mode
                yield partial
                for written in partial.iterdir():
                    written.chmod(mode & 0o666)  # some libraries write files that only their owner may read
                    sync_to_disk(written)  # a rename may reach the disk before the data it names
                sync_to_disk(partial)
                if path.exists():
                    os.replace(path, old)
                os.replace(partial, path)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            if old.exists() and not path.exists():
                os.replace(old, path)
            raise
        shutil.rmtree(old, ignore_errors=True)
        sync_to_disk(path.parent)


def find_cache_folder() -> Path:
    """Return the folder for caches: $VITRINE_CACHE, else vitrine/ in the user's cache folder."""
    own = os.environ.get("VITRINE_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitrine"


def make_folder(path: Path) -> None:
    """Create a folder and its parents, unless it exists."""
    try:
        with explain_full_disk(path):
            path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.strerror is None:
            raise
        raise OSError(f"Cannot create the folder {path} ({error.strerror}): choose another path.") from None


@contextmanager
def explain_full_disk(path: Path) -> Iterator[None]:
    """Turn the system's errors for a full disk or quota into a message that names the file."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(f"Cannot write {path}: the disk is full. Free some space or choose another path.") from None


def check_replaceable(path: Path, own_files: Collection[str]) -> None:
    """Raise FileExistsError if `path` holds anything but our own files."""
    if not path.exists():
        return
    content = path.iterdir() if path.is_dir() else [path]
    foreign = sorted(inner.name for inner in content if inner.name not in own_files or not inner.is_file())
    if foreign:
        raise FileExistsError(f"Cannot write the folder {path}: it exists and holds other files ({join_names(foreign)}).")


def temporary_path(path: Path, suffix: str) -> Path:
    """Return a hidden name beside `path` that users would not choose, because what has it is overwritten."""
    return path.with_name(f".{path.name}.vitrine-{suffix}")


def check_parent_folder(path: Path) -> None:
    if not path.parent.is_dir():
        raise FileNotFoundError(f"Cannot write {path}: the folder {path.parent} does not exist. Create it first.")


def sync_to_disk(path: Path) -> None:
    """Wait until a file or folder has reached the disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
