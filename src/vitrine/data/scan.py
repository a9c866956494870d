"""Read every image once with threads; dataset fingerprints.

Every image of a source once, in order, decoded by several threads: for packing, holding in memory, looking for faults.
Whether some images are the same as before: by what they contain, and quickly, by what the disk says of their files.
"""

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from vitrine.core.console import join_names, warn_user
from vitrine.data.config import BadImages
from vitrine.data.image import BadImage, LazyImage
from vitrine.data.source import Source

Made = TypeVar("Made")

AHEAD = 4  # images per thread that may be ready before they are asked for: a bound on memory


def map_images(
    source: Source, make: Callable[[LazyImage], Made], bad_images: BadImages = "error"
) -> Iterator[tuple[int, Made]]:
    """The number of each image and what `make` makes of it; Pillow lets other threads go on while it decodes.

    An image that cannot be read is an error that names it; or, skipped, it is missing here and told of at the end.
    """
    skipped = []
    for index, made in enumerate(map_in_threads(lambda index: attempt(source, index, make), len(source))):
        if not isinstance(made, BadImage):
            yield index, made
        elif bad_images == "error":
            raise made
        else:
            skipped.append(source.name(index))
    if skipped:
        warn_user(f"Skipped {join_names(skipped)}: cannot be read ({len(skipped)} of {len(source)} images).")


def attempt(source: Source, index: int, make: Callable[[LazyImage], Made]) -> Made | BadImage:
    try:
        return make(source.read(index)[0])
    except BadImage as error:
        return error


def map_in_threads(call: Callable[[int], Made], count: int) -> Iterator[Made]:
    """call(0), call(1), .. by threads, which run a little ahead of whoever reads."""
    num_threads = count_cpus()
    waiting: deque[Future[Made]] = deque()
    with ThreadPoolExecutor(num_threads) as pool:
        try:
            for index in range(count):
                waiting.append(pool.submit(call, index))
                if len(waiting) > AHEAD * num_threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def count_cpus() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def content_fingerprint(source: Source) -> str:
    """Of the images as they are stored, in their order; labels and names do not matter. All of them are read."""
    digest = hashlib.blake2b(digest_size=16)
    for part in map_in_threads(lambda index: digest_image(source, index), len(source)):
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


def file_fingerprint(source: Source) -> str | None:
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
