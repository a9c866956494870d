"""Images that occur twice: stored as the same bytes, or the same picture, compressed, resized, brightened or cut a little.

The pre-training sets of arXiv:2010.11929 were cleared of the images of every test set so (section 4.1, as in BiT).
"""

from dataclasses import dataclass

import numpy as np

from vitrine.data.decode import BadImage
from vitrine.data.second_look import LEAST_LIKENESS, SIDE, measure_likeness, prepare
from vitrine.data.signature_search import search, search_within
from vitrine.data.source import Source
from vitrine.data.survey import Survey


@dataclass(frozen=True)
class Pairs:
    """Pairs of images that are the same."""

    numbers: np.ndarray
    """(P, 2)"""
    likeness: np.ndarray
    """(P): 1 for the same bytes, else how alike they look, from 0.75."""
    is_exact: np.ndarray
    """bool (P): the same bytes."""

    def __len__(self) -> int:
        return len(self.numbers)


def find_across(first: Survey, first_source: Source, second: Survey, second_source: Source) -> Pairs:
    """Pairs of an image of the first and one of the second. Of images with the same bytes, all pairs are named."""
    exact = pair_digests(first.digests, second.digests)
    near = search(first.signatures, second.signatures)
    return confirm(exact, near, first_source, second_source)


def find_within(survey: Survey, source: Source) -> Pairs:
    """Pairs of two images of one source, the smaller number first; of several with the same bytes, each with the first."""
    _, firsts, members = np.unique(survey.digests, axis=0, return_index=True, return_inverse=True)
    first = firsts[members.reshape(-1)]
    numbers = np.arange(len(survey))
    is_copy = (first < numbers) & survey.digests.any(axis=1)
    exact = np.stack([first, numbers], axis=1)[is_copy]
    kept = np.flatnonzero(~is_copy)  # what is like one of several copies is paired with the first of them only
    near = kept[search_within(survey.signatures.take(kept))]
    return confirm(exact, near, source, source)


def pair_digests(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Pairs (P, 2) of the same rows, but for rows of zeros, which stand for what cannot be read."""
    by_digest: dict[bytes, list[int]] = {}
    for number, digest in enumerate(first):
        by_digest.setdefault(digest.tobytes(), []).append(number)
    by_digest.pop(bytes(first.shape[1]), None)
    pairs = [(number, other) for other, digest in enumerate(second) for number in by_digest.get(digest.tobytes(), ())]
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def confirm(exact: np.ndarray, candidates: np.ndarray, first: Source, second: Source) -> Pairs:
    """The exact ones, and of the candidates those that a second look finds to be the same picture."""
    known = set(map(tuple, exact.tolist()))
    near = np.array([pair for pair in candidates.tolist() if tuple(pair) not in known], dtype=np.int64).reshape(-1, 2)
    likeness = measure_likeness(near, lambda number: load(first, number), lambda number: load(second, number))
    is_same = likeness >= LEAST_LIKENESS
    numbers = np.concatenate([exact, near[is_same]])
    is_exact = np.arange(len(numbers)) < len(exact)
    order = np.lexsort((numbers[:, 1], numbers[:, 0]))
    return Pairs(numbers[order], np.concatenate([np.ones(len(exact)), likeness[is_same]])[order], is_exact[order])


def load(source: Source, number: int) -> np.ndarray:
    try:
        return prepare(source.read(int(number))[0])
    except BadImage:  # it could be read before, and is gone: like nothing
        return np.zeros((SIDE, SIDE), dtype=np.float32)
