"""What a survey has found so far, on disk, chunk by chunk: for whoever goes on, asks again, or does the other half of it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from vitrine.core.files import find_cache_folder, make_folder, whole_file
from vitrine.core.notices import notice
from vitrine.core.sentences import summarise
from vitrine.data.fingerprint import compute_disk_key
from vitrine.data.signature import Signatures
from vitrine.data.source import Source
from vitrine.data.survey import DIGEST_BYTES, Survey

VERSION = 1  # raise it when the same images give another survey


@dataclass
class SurveyNotes:
    folder: Path
    chunk_sizes: Sequence[int]
    is_writable: bool = True

    def load_all(self) -> dict[int, Survey]:
        """Those that are there, by their number."""
        found = {number: self.load(number) for number in range(len(self.chunk_sizes)) if self.locate(number).is_file()}
        return {number: survey for number, survey in found.items() if survey is not None}

    def load(self, number: int) -> Survey | None:
        """None for one that cannot be relied on, as of a disk that failed."""
        try:
            with self.locate(number).open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                survey = parse_chunk(dict(arrays))
        except (OSError, ValueError, KeyError, BadZipFile, EOFError):
            return None
        return survey if is_sound(survey, self.chunk_sizes[number]) else None

    def require(self, number: int) -> Survey:
        """One that another process wrote."""
        survey = self.load(number)
        if survey is None:
            raise ValueError(
                f"{self.locate(number)} of another process cannot be read here: set VITRINE_CACHE to a folder that all "
                "processes share."
            )
        return survey

    def save(self, number: int, survey: Survey) -> None:
        """A disk that is full is no reason to stop: it is only lost for the next time."""
        if not self.is_writable:
            return
        try:
            make_folder(self.folder)
            with whole_file(self.locate(number), by_many=True) as partial, partial.open("wb") as file:
                np.savez(file, **list_arrays(survey))  # pyright: ignore[reportArgumentType]  (an array is taken for its flag)
        except OSError as error:
            self.is_writable = False
            notice(f"What is found cannot be kept for the next time ({summarise(error)}).")

    def locate(self, number: int) -> Path:
        return self.folder / f"{number:06}.npz"


def open_notes(source: Source, chunk_sizes: Sequence[int]) -> SurveyNotes | None:
    """By what the disk says of the files, so that images which have changed are looked at again; None: there are no files."""
    key = compute_disk_key(source)
    return None if key is None else SurveyNotes(find_cache_folder() / "surveys" / f"{key}-{VERSION}", chunk_sizes)


def list_arrays(survey: Survey) -> dict[str, np.ndarray]:
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


def parse_chunk(arrays: dict[str, np.ndarray]) -> Survey:
    unreadable, disguised = json.loads(arrays["texts"].tobytes())
    signatures = Signatures(arrays["words"], arrays["weak"], arrays["is_flat"])
    return Survey(arrays["digests"], signatures, arrays["sizes"], dict(unreadable), dict(disguised))


def is_sound(survey: Survey, num_images: int) -> bool:
    like = Signatures.empty(num_images)
    expected = {"digests": (num_images, DIGEST_BYTES), "sizes": (num_images, 2)}
    shapes_fit = all(getattr(survey, name).shape == shape for name, shape in expected.items())
    return shapes_fit and all(
        getattr(survey.signatures, name).shape == getattr(like, name).shape
        and getattr(survey.signatures, name).dtype == getattr(like, name).dtype
        for name in ("words", "weak", "is_flat")
    )
