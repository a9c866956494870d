"""Checksums of our own files, and of the members of zip archives.

A cache file ends with its checksum (`seal`). A large file that is memory-mapped is read through on first use only:
`verify_once` remembers in the cache folder that a file with this size and time was intact.
"""

import hashlib
import io
import math
import os
import zipfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np

from vitrine.core.caches import cache_folder
from vitrine.core.console import progress_bar, summarise_error
from vitrine.core.files import atomic_file, make_folder

MARK = b"\nvitrine-checksum:"
CHUNK_BYTES = 2**24
# The largest checkpoints have a few thousand tensors; listing more members only takes time.
MAX_MEMBERS = 10_000
# The end record of a zip archive, with the longest comment (APPNOTE.TXT 4.3.16). ZIP64 keeps the count elsewhere.
END_BYTES, UNKNOWN_COUNT = 22 + 65_535, 0xFFFF


def hash_bytes(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def compute_crc(path: Path) -> str:
    """Return the CRC-32 of a large file, with a progress bar: four times as fast as a hash, which damage does not need."""
    crc = 0
    with path.open("rb") as file:
        num_chunks = math.ceil(path.stat().st_size / CHUNK_BYTES)
        for chunk in progress_bar(iter(lambda: file.read(CHUNK_BYTES), b""), num_chunks, f"Verifying {path.name}"):
            crc = zlib.crc32(chunk, crc)
    return f"crc32:{crc:08x}"


class CrcWriter:
    """Writes to a binary file and computes the CRC on the way, so that a large file need not be read again for it."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.crc, self.num_bytes = file, 0, 0

    def write(self, content: memoryview) -> None:
        """Append bytes to the file."""
        self.file.write(content)
        self.crc = zlib.crc32(content, self.crc)
        self.num_bytes += content.nbytes

    def checksum(self) -> str:
        """Return what `compute_crc` returns for the file."""
        return f"crc32:{self.crc:08x}"


def seal(content: bytes) -> bytes:
    """Append the checksum of the content to it."""
    return content + MARK + hash_bytes(content).encode()


def unseal(sealed: bytes) -> bytes:
    """Return the content of a sealed file, or of one from before there were checksums; raise ValueError if it is damaged."""
    content, mark, checksum = sealed.rpartition(MARK)
    if mark and hash_bytes(content).encode() != checksum:
        raise ValueError("it does not match its checksum")
    return content if mark else sealed


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write a sealed .npz file, which several processes may do at once."""
    content = io.BytesIO()
    np.savez(content, **arrays)  # pyright: ignore[reportArgumentType]  (an array is taken for its flag)
    with atomic_file(path, is_concurrent=True) as partial:
        partial.write_bytes(seal(content.getvalue()))


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read a file of `save_arrays`; raise ValueError with the reason if it is damaged."""
    sealed = path.read_bytes()
    try:
        content = unseal(sealed)
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            # Arrays are stored uncompressed, so larger ones would be a decompression bomb.
            if sum(member.file_size for member in file.zip.infolist()) > len(content):
                raise ValueError("arrays are larger than the file")
            return dict(file)
    except Exception as error:  # NumPy and zipfile raise anything for damaged bytes, from RuntimeError to MemoryError
        raise ValueError(summarise_error(error)) from None


def verify_once(path: Path, checksum: str, verify: Callable[[], None]) -> None:
    """Call `verify`, which raises if the file is damaged, unless it passed before with this checksum, size and time."""
    status, name = path.stat(), os.fsencode(path.resolve())
    # ctime is set by the file system only: a file whose size and modification time were kept is verified again, too.
    stamp = f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {checksum}".encode()
    record, note = name + b"\n" + stamp, cache_folder("verified") / hash_bytes(name)
    with suppress(OSError):
        if note.read_bytes() == record:
            return
    verify()
    with suppress(OSError):  # the cache may be read-only: then it is verified again next time
        make_folder(note.parent)
        with atomic_file(note, is_concurrent=True) as partial:
            partial.write_bytes(record)


def open_zip(path: Path) -> zipfile.ZipFile:
    """Open a zip archive; raise ValueError for one with too many members, or with fewer than it states."""
    archive = zipfile.ZipFile(path)
    found, stated = len(archive.infolist()), read_member_count(path)
    if found <= MAX_MEMBERS and stated in (found, UNKNOWN_COUNT):
        return archive
    archive.close()
    if found > MAX_MEMBERS:
        raise ValueError(f"it has {found:,} members; expected at most {MAX_MEMBERS:,}")
    raise ValueError(f"its directory is damaged: it lists {found:,} of {stated:,} members")


def read_member_count(path: Path) -> int:
    """Return how many members the end record of a zip archive states, which zipfile does not compare with its directory."""
    with path.open("rb") as file:
        file.seek(-min(END_BYTES, path.stat().st_size), os.SEEK_END)
        tail = file.read()
    return int.from_bytes(tail[tail.rfind(b"PK\5\6") + 10 :][:2], "little")


def check_members(archive: zipfile.ZipFile) -> None:
    """Compare the members of a zip archive with its directory: zipfile raises if a name or a checksum (CRC) differs.

    Compressed members are not read, because a bomb would take hours; their checksums are compared when they are used.
    """
    if not any(member.CRC for member in archive.infolist()):
        return  # torch.save can be told to leave them out
    for member in archive.infolist():
        with archive.open(member) as content:
            while member.compress_type == zipfile.ZIP_STORED and content.read(CHUNK_BYTES):
                pass
