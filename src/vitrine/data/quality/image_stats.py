"""Size, digest and hash of each image, cached in chunks.

One look at every image of a source: whether it can be read, how large it is, what it is by content and by appearance.

The images are looked at in chunks, by several processes, and by those of torchrun if there are any. What a chunk gave is
written down at once, so that whoever comes again, after an interruption or for another question, does not begin anew.
What a survey has found so far, on disk, chunk by chunk: for whoever goes on, asks again, or does the other half of it.
"""

import hashlib
import json
import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING
from zipfile import BadZipFile

import numpy as np
from PIL import Image

from vitrine.core.console import progress_bar, summarise_error, warn_user
from vitrine.core.files import atomic_file, find_cache_folder, make_folder
from vitrine.data.image import BadImage, LazyImage
from vitrine.data.quality.perceptual_hash import PerceptualHashes, compute_perceptual_hash
from vitrine.data.scan import count_cpus, digest_content, file_fingerprint
from vitrine.data.source import Source

if TYPE_CHECKING:
    from vitrine.core.runtime import Runtime

CHUNK = 256  # images
DIGEST_BYTES = 16


@dataclass(frozen=True)
class ImageStats:
    """Of N images, in the order of their source."""

    digests: np.ndarray
    """(N, 16) bytes: the same for images that are stored as the same bytes; 0 where one cannot be read."""
    signatures: PerceptualHashes
    sizes: np.ndarray
    """(N, 2): height and width; 0 where the image cannot be read."""
    unreadable: dict[int, str] = field(default_factory=dict)
    """The numbers of images that cannot be read, and why."""
    disguised: dict[int, str] = field(default_factory=dict)
    """The numbers of files that are in another format than their name says, and in which."""

    def __len__(self) -> int:
        return len(self.sizes)

    @classmethod
    def join(cls, parts: "Sequence[ImageStats]") -> "ImageStats":
        starts = np.cumsum([0, *map(len, parts)])[:-1].tolist()
        unreadable, disguised = {}, {}
        for start, part in zip(starts, parts, strict=True):
            unreadable |= {start + number: reason for number, reason in part.unreadable.items()}
            disguised |= {start + number: kind for number, kind in part.disguised.items()}
        digests, sizes = (np.concatenate([getattr(part, name) for part in parts]) for name in ("digests", "sizes"))
        return cls(digests, PerceptualHashes.join([part.signatures for part in parts]), sizes, unreadable, disguised)


def compute_image_stats(
    source: Source, title: str, runtime: "Runtime | None" = None, show_progress: bool = False
) -> ImageStats:
    """From what was written down before, and from the images; every process of torchrun gets all of it."""
    from vitrine.data.quality.image_stats import open_stats_cache

    chunks = [range(start, min(start + CHUNK, len(source))) for start in range(0, len(source), CHUNK)]
    notes = open_stats_cache(source, [len(chunk) for chunk in chunks])
    # What is in no files, and so has no notes to hand over by, each process looks at by itself.
    rank, world_size = (0, 1) if runtime is None or notes is None else (runtime.rank, runtime.world_size)
    done = {} if notes is None else notes.load_all()
    mine = [number for number in range(rank, len(chunks), world_size) if number not in done]
    looked = look_at_chunks(source, [chunks[number] for number in mine])
    for number, survey in zip(mine, progress_bar(looked, len(mine), title, show_progress), strict=True):
        done[number] = survey
        if notes is not None:
            notes.save(number, survey)
    if runtime is not None and notes is not None and world_size > 1:
        runtime.any_rank([True])  # when all of them have come here, all chunks are written
        done |= {number: notes.require(number) for number in range(len(chunks)) if number not in done}
    return ImageStats.join([done[number] for number in range(len(chunks))])


def look_at_chunks(source: Source, chunks: Sequence[range]) -> Iterator[ImageStats]:
    """Several at a time, each by a process of its own; a few images are not worth one."""
    if len(chunks) < 2:
        yield from (look_at_chunk(source, chunk) for chunk in chunks)
        return
    with ProcessPoolExecutor(count_cpus(), multiprocessing.get_context(), receive_source, (source,)) as pool:
        try:
            yield from pool.map(look_at_received, chunks)
        finally:
            pool.shutdown(cancel_futures=True)


RECEIVED: list[Source] = []  # in a process of the pool: the source, sent once


def receive_source(source: Source) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits for this one
    RECEIVED.append(source)


def look_at_received(chunk: range) -> ImageStats:
    return look_at_chunk(RECEIVED[0], chunk)


def look_at_chunk(source: Source, chunk: range) -> ImageStats:
    return ImageStats.join([look_at(source, index) for index in chunk])


def look_at(source: Source, index: int) -> ImageStats:
    """One image, decoded in as few pixels as its appearance needs, which finds a file that is cut short as well."""
    try:
        image, _ = source.read(index)
        kind = find_disguise(image)
        size = np.array([[image.height, image.width]], dtype=np.int64)
        signature = compute_perceptual_hash(image)
    except BadImage as error:
        empty = np.zeros((1, DIGEST_BYTES), np.uint8)
        reason = " ".join(str(error).split())
        return ImageStats(empty, PerceptualHashes.empty(1), np.zeros((1, 2), np.int64), unreadable={0: reason})
    digest = hashlib.blake2b(digest_content(image.content), digest_size=DIGEST_BYTES).digest()
    digests = np.frombuffer(digest, dtype=np.uint8)[None]
    return ImageStats(digests, signature, size, disguised={} if kind is None else {0: kind})


def find_disguise(image: LazyImage) -> str | None:
    """The format of a file whose name ends as if it were in another; None for all that are what they say."""
    said = Image.registered_extensions().get(PurePath(image.name).suffix.lower())
    if image.opened is None or said is None or image.opened.format is None:
        return None
    return None if image.opened.format == said else image.opened.format


VERSION = 1  # raise it when the same images give another survey


@dataclass
class StatsCache:
    folder: Path
    chunk_sizes: Sequence[int]
    is_writable: bool = True

    def load_all(self) -> dict[int, ImageStats]:
        """Those that are there, by their number."""
        found = {number: self.load(number) for number in range(len(self.chunk_sizes)) if self.locate(number).is_file()}
        return {number: survey for number, survey in found.items() if survey is not None}

    def load(self, number: int) -> ImageStats | None:
        """None for one that cannot be relied on, as of a disk that failed."""
        try:
            with self.locate(number).open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                survey = parse_chunk(dict(arrays))
        except (OSError, ValueError, KeyError, BadZipFile, EOFError):
            return None
        return survey if is_sound(survey, self.chunk_sizes[number]) else None

    def require(self, number: int) -> ImageStats:
        """One that another process wrote."""
        survey = self.load(number)
        if survey is None:
            raise ValueError(
                f"{self.locate(number)} of another process cannot be read here: set VITRINE_CACHE to a folder that all "
                "processes share."
            )
        return survey

    def save(self, number: int, survey: ImageStats) -> None:
        """A disk that is full is no reason to stop: it is only lost for the next time."""
        if not self.is_writable:
            return
        try:
            make_folder(self.folder)
            with atomic_file(self.locate(number), is_concurrent=True) as partial, partial.open("wb") as file:
                np.savez(file, **list_arrays(survey))  # pyright: ignore[reportArgumentType]  (an array is taken for its flag)
        except OSError as error:
            self.is_writable = False
            warn_user(f"What is found cannot be kept for the next time ({summarise_error(error)}).")

    def locate(self, number: int) -> Path:
        return self.folder / f"{number:06}.npz"


def open_stats_cache(source: Source, chunk_sizes: Sequence[int]) -> StatsCache | None:
    """By what the disk says of the files, so that images which have changed are looked at again; None: there are no files."""
    key = file_fingerprint(source)
    return None if key is None else StatsCache(find_cache_folder() / "surveys" / f"{key}-{VERSION}", chunk_sizes)


def list_arrays(survey: ImageStats) -> dict[str, np.ndarray]:
    signatures = survey.signatures
    texts = json.dumps([list(survey.unreadable.items()), list(survey.disguised.items())])
    return {
        "digests": survey.digests,
        "sizes": survey.sizes,
        "words": signatures.words,
        "weak": signatures.weak,
        "is_flat": signatures.is_flat,
        "texts": np.frombuffer(texts.encode(), dtype=np.uint8),
    }


def parse_chunk(arrays: dict[str, np.ndarray]) -> ImageStats:
    unreadable, disguised = json.loads(arrays["texts"].tobytes())
    signatures = PerceptualHashes(arrays["words"], arrays["weak"], arrays["is_flat"])
    return ImageStats(arrays["digests"], signatures, arrays["sizes"], dict(unreadable), dict(disguised))


def is_sound(survey: ImageStats, num_images: int) -> bool:
    like = PerceptualHashes.empty(num_images)
    expected = {"digests": (num_images, DIGEST_BYTES), "sizes": (num_images, 2)}
    shapes_fit = all(getattr(survey, name).shape == shape for name, shape in expected.items())
    return shapes_fit and all(
        getattr(survey.signatures, name).shape == getattr(like, name).shape
        and getattr(survey.signatures, name).dtype == getattr(like, name).dtype
        for name in ("words", "weak", "is_flat")
    )
