"""One look at every image of a source: whether it can be read, how large it is, what it is by content and by appearance.

The images are looked at in chunks, by several processes, and by those of torchrun if there are any. What a chunk gave is
written down at once, so that whoever comes again, after an interruption or for another question, does not begin anew.
"""

import hashlib
import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from vitrine.core.console import track
from vitrine.data.decode import BadImage
from vitrine.data.fingerprint import digest_content
from vitrine.data.reading import count_processors
from vitrine.data.signature import Signatures, compute_signature
from vitrine.data.source import Source
from vitrine.data.stored import StoredImage

if TYPE_CHECKING:
    from vitrine.core.runtime import Runtime

CHUNK = 256  # images
DIGEST_BYTES = 16


@dataclass(frozen=True)
class Survey:
    """Of N images, in the order of their source."""

    digests: np.ndarray
    """(N, 16) bytes: the same for images that are stored as the same bytes; 0 where one cannot be read."""
    signatures: Signatures
    sizes: np.ndarray
    """(N, 2): height and width; 0 where the image cannot be read."""
    unreadable: dict[int, str] = field(default_factory=dict)
    """The numbers of images that cannot be read, and why."""
    disguised: dict[int, str] = field(default_factory=dict)
    """The numbers of files that are in another format than their name says, and in which."""

    def __len__(self) -> int:
        return len(self.sizes)

    @classmethod
    def join(cls, parts: "Sequence[Survey]") -> "Survey":
        starts = np.cumsum([0, *map(len, parts)])[:-1].tolist()
        unreadable, disguised = {}, {}
        for start, part in zip(starts, parts, strict=True):
            unreadable |= {start + number: reason for number, reason in part.unreadable.items()}
            disguised |= {start + number: kind for number, kind in part.disguised.items()}
        digests, sizes = (np.concatenate([getattr(part, name) for part in parts]) for name in ("digests", "sizes"))
        return cls(digests, Signatures.join([part.signatures for part in parts]), sizes, unreadable, disguised)


def survey_source(source: Source, title: str, runtime: "Runtime | None" = None, show_progress: bool = False) -> Survey:
    """From what was written down before, and from the images; every process of torchrun gets all of it."""
    from vitrine.data.survey_notes import open_notes

    chunks = [range(start, min(start + CHUNK, len(source))) for start in range(0, len(source), CHUNK)]
    notes = open_notes(source, [len(chunk) for chunk in chunks])
    # What is in no files, and so has no notes to hand over by, each process looks at by itself.
    rank, num_ranks = (0, 1) if runtime is None or notes is None else (runtime.rank, runtime.num_ranks)
    done = {} if notes is None else notes.load_all()
    mine = [number for number in range(rank, len(chunks), num_ranks) if number not in done]
    looked = look_at_chunks(source, [chunks[number] for number in mine])
    for number, survey in zip(mine, track(looked, len(mine), title, show_progress), strict=True):
        done[number] = survey
        if notes is not None:
            notes.save(number, survey)
    if runtime is not None and notes is not None and num_ranks > 1:
        runtime.agree([True])  # when all of them have come here, all chunks are written
        done |= {number: notes.require(number) for number in range(len(chunks)) if number not in done}
    return Survey.join([done[number] for number in range(len(chunks))])


def look_at_chunks(source: Source, chunks: Sequence[range]) -> Iterator[Survey]:
    """Several at a time, each by a process of its own; a few images are not worth one."""
    if len(chunks) < 2:
        yield from (look_at_chunk(source, chunk) for chunk in chunks)
        return
    with ProcessPoolExecutor(count_processors(), multiprocessing.get_context(), receive_source, (source,)) as pool:
        try:
            yield from pool.map(look_at_received, chunks)
        finally:
            pool.shutdown(cancel_futures=True)


RECEIVED: list[Source] = []  # in a process of the pool: the source, sent once


def receive_source(source: Source) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits for this one
    RECEIVED.append(source)


def look_at_received(chunk: range) -> Survey:
    return look_at_chunk(RECEIVED[0], chunk)


def look_at_chunk(source: Source, chunk: range) -> Survey:
    return Survey.join([look_at(source, index) for index in chunk])


def look_at(source: Source, index: int) -> Survey:
    """One image, decoded in as few pixels as its appearance needs, which finds a file that is cut short as well."""
    try:
        image, _ = source.read(index)
        kind = find_disguise(image)
        size = np.array([[image.height, image.width]], dtype=np.int64)
        signature = compute_signature(image)
    except BadImage as error:
        empty = np.zeros((1, DIGEST_BYTES), np.uint8)
        reason = " ".join(str(error).split())
        return Survey(empty, Signatures.empty(1), np.zeros((1, 2), np.int64), unreadable={0: reason})
    digest = hashlib.blake2b(digest_content(image.content), digest_size=DIGEST_BYTES).digest()
    digests = np.frombuffer(digest, dtype=np.uint8)[None]
    return Survey(digests, signature, size, disguised={} if kind is None else {0: kind})


def find_disguise(image: StoredImage) -> str | None:
    """The format of a file whose name ends as if it were in another; None for all that are what they say."""
    said = Image.registered_extensions().get(PurePath(image.name).suffix.lower())
    if image.opened is None or said is None or image.opened.format is None:
        return None
    return None if image.opened.format == said else image.opened.format
