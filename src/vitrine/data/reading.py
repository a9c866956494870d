"""Every image of a source once, in order, decoded by several threads: for packing, holding in memory, looking for faults."""

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from vitrine.core.notices import notice
from vitrine.core.sentences import list_names
from vitrine.data.config import BadImages
from vitrine.data.decode import BadImage
from vitrine.data.source import Source
from vitrine.data.stored import StoredImage

Made = TypeVar("Made")

AHEAD = 4  # images per thread that may be ready before they are asked for: a bound on memory


def read_all(
    source: Source, make: Callable[[StoredImage], Made], bad_images: BadImages = "error"
) -> Iterator[tuple[int, Made]]:
    """The number of each image and what `make` makes of it; Pillow lets other threads go on while it decodes.

    An image that cannot be read is an error that names it; or, skipped, it is missing here and told of at the end.
    """
    skipped = []
    for index, made in enumerate(map_ahead(lambda index: attempt(source, index, make), len(source))):
        if not isinstance(made, BadImage):
            yield index, made
        elif bad_images == "error":
            raise made
        else:
            skipped.append(source.name(index))
    if skipped:
        notice(f"Skipped {list_names(skipped)}: cannot be read ({len(skipped)} of {len(source)} images).")


def attempt(source: Source, index: int, make: Callable[[StoredImage], Made]) -> Made | BadImage:
    try:
        return make(source.read(index)[0])
    except BadImage as error:
        return error


def map_ahead(call: Callable[[int], Made], count: int) -> Iterator[Made]:
    """call(0), call(1), .. by threads, which run a little ahead of whoever reads."""
    num_threads = count_processors()
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


def count_processors() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
