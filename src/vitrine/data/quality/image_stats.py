"""Statistics of every image of a source: readable or not, size, digest of the bytes, perceptual hash.

Images are read in chunks by several processes, and by all ranks under torchrun. The result of each chunk is written to a cache
at once, so that an interrupted or repeated command reads only images that it has not read, or that have changed since.
"""

import hashlib
import json
import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from vitrine.core.caches import cache_folder
from vitrine.core.checksums import load_arrays, save_arrays
from vitrine.core.config_checks import is_whole
from vitrine.core.console import progress_bar, summarise_error, warn_user
from vitrine.core.files import make_folder
from vitrine.core.processes import follow_parent
from vitrine.data.image import BadImage, LazyImage
from vitrine.data.quality.perceptual_hash import PerceptualHashes, compute_perceptual_hash
from vitrine.data.scan import count_cpus, digest_content, file_fingerprint
from vitrine.data.source import Source

if TYPE_CHECKING:
    from vitrine.core.runtime import Runtime

CHUNK = 256  # images
DIGEST_BYTES = 16
VERSION = 1  # of the cache; raise it when the same images give other statistics


@dataclass(frozen=True)
class ImageStats:
    """Statistics of N images, in the order of their source."""

    digests: np.ndarray
    """uint8 (N, 16): equal for images with identical bytes; 0 for unreadable ones."""
    hashes: PerceptualHashes
    sizes: np.ndarray
    """(N, 2): height and width; 0 for unreadable images."""
    unreadable: dict[int, str] = field(default_factory=dict)
    """Indices of unreadable images, with the reason."""
    misnamed: dict[int, str] = field(default_factory=dict)
    """Indices of files in another format than their extension says, with that format."""

    def __len__(self) -> int:
        return len(self.sizes)

    @classmethod
    def join(cls, parts: "Sequence[ImageStats]") -> "ImageStats":
        """Concatenate the statistics of several chunks."""
        starts = np.cumsum([0, *map(len, parts)])[:-1].tolist()
        unreadable, misnamed = {}, {}
        for start, part in zip(starts, parts, strict=True):
            unreadable |= {start + index: reason for index, reason in part.unreadable.items()}
            misnamed |= {start + index: kind for index, kind in part.misnamed.items()}
        digests, sizes = (np.concatenate([getattr(part, name) for part in parts]) for name in ("digests", "sizes"))
        return cls(digests, PerceptualHashes.join([part.hashes for part in parts]), sizes, unreadable, misnamed)


def compute_image_stats(
    source: Source, title: str, runtime: "Runtime | None" = None, show_progress: bool = False
) -> ImageStats:
    """Read every image once, or take its statistics from the cache. Every rank gets the statistics of all images."""
    chunks = [range(start, min(start + CHUNK, len(source))) for start in range(0, len(source), CHUNK)]
    cache = open_stats_cache(source, [len(chunk) for chunk in chunks])
    # Ranks exchange chunks through the cache. Without one (images not in files), each rank reads all of them.
    rank, world_size = (0, 1) if runtime is None or cache is None else (runtime.rank, runtime.world_size)
    done = {} if cache is None else cache.load_all()
    mine = [number for number in range(rank, len(chunks), world_size) if number not in done]
    computed = map_chunks(source, [chunks[number] for number in mine])
    for number, stats in zip(mine, progress_bar(computed, len(mine), title, show_progress), strict=True):
        done[number] = stats
        if cache is not None:
            cache.save(number, stats)
    if runtime is not None and cache is not None and world_size > 1:
        runtime.any_rank([True])  # a barrier: all chunks are written once every rank is here
        done |= {number: cache.require(number) for number in range(len(chunks)) if number not in done}
    return ImageStats.join([done[number] for number in range(len(chunks))])


def map_chunks(source: Source, chunks: Sequence[range]) -> Iterator[ImageStats]:
    """Yield the statistics of each chunk, computed by worker processes unless there is only one."""
    if len(chunks) < 2:
        yield from (stats_of_chunk(source, chunk) for chunk in chunks)
        return
    with ProcessPoolExecutor(count_cpus(), multiprocessing.get_context(), init_worker, (source,)) as pool:
        try:
            yield from pool.map(stats_in_worker, chunks)
        finally:
            pool.shutdown(cancel_futures=True)


WORKER_SOURCE: list[Source] = []  # in a worker process: the source, sent once


def init_worker(source: Source) -> None:
    """Keep the source in a worker process."""
    follow_parent()
    WORKER_SOURCE.append(source)


def stats_in_worker(chunk: range) -> ImageStats:
    return stats_of_chunk(WORKER_SOURCE[0], chunk)


def stats_of_chunk(source: Source, chunk: range) -> ImageStats:
    return ImageStats.join([stats_of_image(source, index) for index in chunk])


def stats_of_image(source: Source, index: int) -> ImageStats:
    """Compute the statistics of one image. It is decoded at a low resolution, which also finds truncated files."""
    try:
        image, _ = source.read(index)
        actual_format = find_misnamed_format(image)
        size = np.array([[image.height, image.width]], dtype=np.int64)
        hashes = compute_perceptual_hash(image)
    except BadImage as error:
        no_digest = np.zeros((1, DIGEST_BYTES), np.uint8)
        reason = " ".join(str(error).split())
        return ImageStats(no_digest, PerceptualHashes.empty(1), np.zeros((1, 2), np.int64), unreadable={0: reason})
    digest = hashlib.blake2b(digest_content(image.content), digest_size=DIGEST_BYTES).digest()
    digests = np.frombuffer(digest, dtype=np.uint8)[None]
    return ImageStats(digests, hashes, size, misnamed={} if actual_format is None else {0: actual_format})


def find_misnamed_format(image: LazyImage) -> str | None:
    """Return the format of a file whose extension names another one; None where they agree."""
    expected = Image.registered_extensions().get(PurePath(image.name).suffix.lower())
    if image.opened is None or expected is None or image.opened.format is None:
        return None
    return None if image.opened.format == expected else image.opened.format


@dataclass
class StatsCache:
    """A folder with one .npz file for each chunk of a source."""

    folder: Path
    chunk_sizes: Sequence[int]
    is_writable: bool = True

    def load_all(self) -> dict[int, ImageStats]:
        """Return the cached chunks by number."""
        found = {number: self.load(number) for number in range(len(self.chunk_sizes))}
        return {number: stats for number, stats in found.items() if stats is not None}

    def load(self, number: int) -> ImageStats | None:
        """Return one chunk; None if its file is missing, or damaged, which costs a warning."""
        path = self.path_of(number)
        if not path.is_file():
            return None
        try:
            stats = stats_from_arrays(load_arrays(path))
            check_stats(stats, self.chunk_sizes[number])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            warn_user(f"{path} cannot be used ({summarise_error(error)}); reading its images again.")
            return None
        return stats

    def require(self, number: int) -> ImageStats:
        """Return a chunk that another rank wrote."""
        stats = self.load(number)
        if stats is None:
            path = self.path_of(number)
            raise ValueError(
                f"{path} of another process cannot be read: set VITRINE_CACHE to a folder that all processes share."
            )
        return stats

    def save(self, number: int, stats: ImageStats) -> None:
        """Write one chunk. A full disk costs a warning: the statistics are only not there next time."""
        if not self.is_writable:
            return
        try:
            make_folder(self.folder)
            save_arrays(self.path_of(number), stats_to_arrays(stats))
        except OSError as error:
            self.is_writable = False
            warn_user(f"Image statistics cannot be cached ({summarise_error(error)}).")

    def path_of(self, number: int) -> Path:
        return self.folder / f"{number:06}.npz"


def open_stats_cache(source: Source, chunk_sizes: Sequence[int]) -> StatsCache | None:
    """Return the cache of a source, keyed by its files with size and time; None if its images are not in files."""
    key = file_fingerprint(source)
    return None if key is None else StatsCache(cache_folder("image-stats") / f"{key}-{VERSION}", chunk_sizes)


def stats_to_arrays(stats: ImageStats) -> dict[str, np.ndarray]:
    """Return the content of a cache file; `stats_from_arrays` reads it."""
    texts = json.dumps([list(stats.unreadable.items()), list(stats.misnamed.items())])
    return {
        "digests": stats.digests,
        "sizes": stats.sizes,
        "words": stats.hashes.words,
        "weak": stats.hashes.weak,
        "is_flat": stats.hashes.is_flat,
        "texts": np.frombuffer(texts.encode(), dtype=np.uint8),
    }


def stats_from_arrays(arrays: dict[str, np.ndarray]) -> ImageStats:
    """Return the statistics of a cache file, written by `stats_to_arrays`."""
    unreadable, misnamed = json.loads(arrays["texts"].tobytes())
    hashes = PerceptualHashes(arrays["words"], arrays["weak"], arrays["is_flat"])
    return ImageStats(arrays["digests"], hashes, arrays["sizes"], dict(unreadable), dict(misnamed))


def check_stats(stats: ImageStats, num_images: int) -> None:
    """Raise ValueError if the statistics of a cache file are not those of so many images."""
    expected = PerceptualHashes.empty(num_images)
    pairs = [(getattr(stats.hashes, name), getattr(expected, name)) for name in ("words", "weak", "is_flat")]
    pairs.append((stats.digests, np.empty((num_images, DIGEST_BYTES), np.uint8)))
    pairs.append((stats.sizes, np.empty((num_images, 2), np.int64)))
    if any((found.shape, found.dtype) != (right.shape, right.dtype) for found, right in pairs):
        raise ValueError("its arrays have other shapes or types")
    texts = [*stats.unreadable.items(), *stats.misnamed.items()]
    if not all(is_whole(index) and 0 <= index < num_images and isinstance(text, str) for index, text in texts):
        raise ValueError("its reasons do not belong to its images")
