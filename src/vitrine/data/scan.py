"""Reading of every image of a source once, with threads, and fingerprints that tell whether images have changed."""

import hashlib
import os
from collections import deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from vitrine.core.console import join_names, progress_bar, warn_user
from vitrine.data.config import TrainBadImages
from vitrine.data.image import BadImage, LazyImage
from vitrine.data.source import Source

Result = TypeVar("Result")

# More bad images than both of these are not an accident: training stops, unless they are to be skipped in any number.
MAX_BAD_IMAGES, MAX_BAD_FRACTION = 3, 0.01
MAX_NAMED = 20  # of them in the message

AHEAD = 4  # results per thread that may be ready before they are used: a bound on memory


def map_images(
    source: Source, function: Callable[[LazyImage], Result], bad_images: TrainBadImages = "error"
) -> Iterator[tuple[int, Result]]:
    """Yield each image's index and the function's result, computed by threads; bad images raise, or are left out and named."""

    def call(index: int) -> Result | BadImage:
        """Read and process one image in a thread."""
        try:
            return function(source.read(index)[0])
        except BadImage as error:
            return error

    skipped = []
    for index, result in enumerate(map_in_threads(call, len(source))):
        if not isinstance(result, BadImage):
            yield index, result
        elif bad_images == "error":
            raise result
        else:
            skipped.append(source.name(index))
            if bad_images == "skip-few":
                reject_many_bad_images(skipped, len(source))
    if skipped:
        warn_user(f"Skipped {join_names(skipped)}: cannot be read ({len(skipped)} of {len(source)} images).")


def reject_many_bad_images(names: Collection[str], num_images: int) -> None:
    """Raise ValueError if too many of a run's training images cannot be read, with their names and the ways to continue."""
    if len(names) > MAX_BAD_IMAGES and len(names) > MAX_BAD_FRACTION * num_images:
        found = f"{len(names)} of {num_images} training images cannot be read so far: {join_names(sorted(names), MAX_NAMED)}"
        raise ValueError(
            f"{found}. Repair or remove them; or list all with `vitrine data check DATA --leave-out bad.txt` and set "
            "data.exclude to that file; or set data.bad_images='skip' to train on the others."
        )


def map_in_threads(call: Callable[[int], Result], count: int) -> Iterator[Result]:
    """Yield call(0), call(1), ... in order, computed by threads that run a little ahead of the consumer."""
    num_threads = count_cpus()
    pending: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(num_threads) as pool:
        try:
            for index in range(count):
                pending.append(pool.submit(call, index))
                if len(pending) > AHEAD * num_threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def count_cpus() -> int:
    """Return the number of CPUs available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def content_fingerprint(source: Source) -> str:
    """Hash all images as stored, in order; labels and names do not matter. Slow: reads everything."""

    def digest_image(index: int) -> bytes:
        """Return the digest of one image for `content_fingerprint`."""
        try:
            return digest_content(source.fetch(index))
        except OSError as error:  # equal as long as the image stays unreadable
            return hashlib.blake2b(str(error).encode(), digest_size=32).digest()

    digest = hashlib.blake2b(digest_size=16)
    for part in progress_bar(map_in_threads(digest_image, len(source)), len(source), "Hashing images"):
        digest.update(part)
    return digest.hexdigest()


def digest_content(content: bytes | np.ndarray) -> bytes:
    """Hash the bytes of an image file, or the shape and the pixels of an array."""
    if isinstance(content, bytes):
        return hashlib.blake2b(content, digest_size=16).digest()
    head = hashlib.blake2b(str(content.shape).encode(), digest_size=16).digest()
    return head + hashlib.blake2b(content.tobytes(), digest_size=16).digest()


def file_fingerprint(source: Source) -> str | None:
    """Hash the names of the images, and sizes and times of their files, without reading them; None if there are no files."""
    files = source.files()
    if not files:
        return None
    digest = hashlib.blake2b(digest_size=16)
    for index in range(len(source)):
        digest.update(source.name(index).encode("utf-8", "surrogateescape") + b"\0")
    for path in progress_bar(files, len(files), "Looking for changed files", is_delayed=True):
        digest.update(os.fsencode(path) + b"\0")
        try:
            status = os.stat(path)
        except OSError:
            continue
        # ctime is set by the file system only: a replaced file is noticed even if its size and modification time were kept.
        digest.update(f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}\0".encode())
    return digest.hexdigest()
