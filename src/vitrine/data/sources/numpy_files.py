"""NumPy's own files, .npy and .npz, whose headers may lie: an array is found, its length checked, then mapped or unpacked.

Nothing is unpickled.
"""

import math
import os
import struct
import zipfile
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitrine.core.npy import read_npy_header
from vitrine.core.sentences import list_names
from vitrine.data.sources.annotations import DEFLATE_RATIO, explain_reading


@dataclass(frozen=True)
class StoredArray:
    """An array that is still in its file, of a length that has been checked."""

    path: Path
    name: str
    """Empty in a .npy file, which has only one."""
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_fortran: bool
    start: int | None
    """Where its numbers begin in the file; None if they are compressed."""

    def __str__(self) -> str:
        return f"{self.name} in {self.path}" if self.name else str(self.path)


def list_arrays(path: Path, archive: zipfile.ZipFile) -> set[str]:
    names = archive.namelist()
    others = [name for name in names if not name.endswith(".npy")]
    if others:
        raise ValueError(f"{path} holds {list_names(others)}, and nothing but arrays was needed: save them with np.savez.")
    return {name.removesuffix(".npy") for name in names}


def open_archive(path: Path) -> zipfile.ZipFile:
    with explain_parsing(path, "a .npz file"):
        return zipfile.ZipFile(path)


def locate_npy(path: Path) -> StoredArray:
    with explain_parsing(path, "a .npy file"), path.open("rb") as file:
        shape, is_fortran, dtype = read_npy_header(file)
        start, file_size = file.tell(), os.fstat(file.fileno()).st_size
    stored = StoredArray(path, "", shape, dtype, is_fortran, start)
    require_length(stored, file_size - start)
    return stored


def locate(path: Path, archive: zipfile.ZipFile, name: str) -> StoredArray:
    member = archive.getinfo(f"{name}.npy")
    with explain_parsing(path, f"the array {name}"):
        with archive.open(member) as content:
            shape, is_fortran, dtype = read_npy_header(content)
            header_size = content.tell()
        start = find_start(path, member) + header_size if member.compress_type == zipfile.ZIP_STORED else None
        # The archive's table may lie, and of the length of the file nobody can.
        file_size = path.stat().st_size
    capacity = file_size * DEFLATE_RATIO if start is None else min(file_size - start, member.compress_size - header_size)
    stored = StoredArray(path, name, shape, dtype, is_fortran, start)
    require_length(stored, min(member.file_size - header_size, capacity))
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{stored} is compressed in a way that NumPy does not have: save it with np.savez_compressed.")
    return stored


def find_start(path: Path, member: zipfile.ZipInfo) -> int:
    """Where what a zip archive keeps uncompressed begins, behind its name and notes, whose lengths stand there once more."""
    with path.open("rb") as file:
        file.seek(member.header_offset)
        name_size, notes_size = struct.unpack("<26xHH", file.read(30))
    return member.header_offset + 30 + name_size + notes_size


def require_length(stored: StoredArray, num_bytes: int) -> None:
    if stored.dtype.hasobject:
        raise ValueError(
            f"{stored} holds Python objects, which could run anything when read; numbers or strings were needed: save it with "
            "a dtype such as np.uint8."
        )
    if min(stored.shape, default=0) < 0 or math.prod(stored.shape) * stored.dtype.itemsize != num_bytes:
        raise ValueError(
            f"{stored} says that it is {stored.dtype} of shape {stored.shape}, and is not as long; a whole array was needed: "
            "fetch or save it again."
        )


def map_numbers(stored: StoredArray) -> np.ndarray:
    order = "F" if stored.is_fortran else "C"
    with explain_parsing(stored.path, "an array"):
        return np.memmap(stored.path, stored.dtype, "r", stored.start or 0, stored.shape, order)


def read_numbers(stored: StoredArray, archive: zipfile.ZipFile) -> np.ndarray:
    with explain_parsing(stored.path, f"the array {stored.name}"), archive.open(f"{stored.name}.npy") as content:
        array = np.lib.format.read_array(content, allow_pickle=False)
        content.read(1)  # only at the end does zipfile compare the checksum
    return array


def explain_parsing(path: Path, needed: str) -> AbstractContextManager[None]:
    """Of all exceptions: zipfile and NumPy let out whatever they trip over, from BadZipFile to RuntimeError."""
    return explain_reading(path, f"{needed} was needed", "fetch or save it again", Exception)
