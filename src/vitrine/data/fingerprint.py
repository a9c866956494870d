"""Whether some images are the same as before: by what they contain, and quickly, by what the disk says of their files."""

import hashlib
import os

import numpy as np

from vitrine.data.reading import map_ahead
from vitrine.data.source import Source


def compute_content_key(source: Source) -> str:
    """Of the images as they are stored, in their order; labels and names do not matter. All of them are read."""
    digest = hashlib.blake2b(digest_size=16)
    for part in map_ahead(lambda index: digest_image(source, index), len(source)):
        digest.update(part)
    return digest.hexdigest()


def digest_image(source: Source, index: int) -> bytes:
    try:
        content = source.fetch(index)
    except OSError as error:  # as long as it cannot be read, it is the same
        return hashlib.blake2b(str(error).encode(), digest_size=32).digest()
    return digest_content(content)


def digest_content(content: bytes | np.ndarray) -> bytes:
    """Of an image as it is stored."""
    if isinstance(content, bytes):
        return hashlib.blake2b(content, digest_size=16).digest()
    head = hashlib.blake2b(str(content.shape).encode(), digest_size=16).digest()
    return head + hashlib.blake2b(content.tobytes(), digest_size=16).digest()


def compute_disk_key(source: Source) -> str | None:
    """Of the names of the images, and of size and times of the files that they are in; None where they are in no files.

    The time of change is the file system's own, which nobody can set back, so that a file whose content was replaced has
    another key even if its size and its time of modification were kept.
    """
    files = source.files()
    if not files:
        return None
    digest = hashlib.blake2b(digest_size=16)
    for index in range(len(source)):
        digest.update(source.name(index).encode("utf-8", "surrogateescape") + b"\0")
    for path in files:
        digest.update(os.fsencode(path) + b"\0")
        try:
            found = os.stat(path)
        except OSError:
            continue
        digest.update(f"{found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}\0".encode())
    return digest.hexdigest()
