"""Images that occur twice: stored as the same bytes, or the same picture, compressed, resized, brightened or cut a little.

The pre-training sets of arXiv:2010.11929 were cleared of the images of every test set so (section 4.1, as in BiT).
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.cluster.hierarchy import DisjointSet

from vitrine.core.console import track
from vitrine.data.decode import BadImage
from vitrine.data.reading import count_processors
from vitrine.data.second_look import LEAST_LIKENESS, SIDE, Look, compare, look_at, prepare
from vitrine.data.signature_search import search, search_both_ways
from vitrine.data.source import Source
from vitrine.data.survey import Survey

# Two images whose short sides are both below say too little to be told from others like them: the same bytes count alone.
LEAST_SIDE = 32
LOOKS_AT_ONCE = 8
MOST_LOOKS = 1024  # that are kept at a time, some 130 MB


@dataclass(frozen=True)
class Pairs:
    """Pairs of images that are the same. Of several copies not all pairs are named, but each with another one."""

    numbers: np.ndarray
    """(P, 2)"""
    likeness: np.ndarray
    """(P): 1 for the same bytes, else how alike they look, from 0.75."""
    is_exact: np.ndarray
    """bool (P): the same bytes."""

    def __len__(self) -> int:
        return len(self.numbers)


def find_across(
    first: Survey, first_source: Source, second: Survey, second_source: Source, show_progress: bool = False
) -> Pairs:
    """Pairs of an image of the first and one of the second; each that has a copy on the other side is named."""
    firsts, seconds = find_first_copies(first), find_first_copies(second)
    exact = pair_digests(first, second)
    ours, others = (np.flatnonzero(copies == np.arange(len(copies))) for copies in (firsts, seconds))
    found = search_both_ways(first.signatures.take(ours), second.signatures.take(others))
    candidates = np.stack([ours[found[:, 0]], others[found[:, 1]]], axis=1)
    candidates = candidates[(first.digests[candidates[:, 0]] != second.digests[candidates[:, 1]]).any(axis=1)]
    near, likeness = confirm(candidates, first, first_source, second, second_source, show_progress)
    near, likeness = spread_to_copies(near, likeness, firsts, seconds)
    return sort_pairs(exact, near, likeness)


def find_within(survey: Survey, source: Source, show_progress: bool = False) -> Pairs:
    """Pairs of two images of one source, the smaller number first; of several copies, each with the first it is a copy of."""
    firsts = find_first_copies(survey)
    numbers = np.arange(len(survey))
    exact = np.stack([firsts, numbers], axis=1)[firsts < numbers]
    kept = np.flatnonzero(firsts == numbers)
    signatures = survey.signatures.take(kept)
    found = np.sort(search(signatures, signatures), axis=1)
    candidates = kept[np.unique(found[found[:, 0] < found[:, 1]], axis=0)]
    near, likeness = confirm(candidates, survey, source, survey, source, show_progress)
    return sort_pairs(exact, near, likeness)


def find_first_copies(survey: Survey) -> np.ndarray:
    """For each image the first that has the same bytes; itself, where it is that or cannot be read."""
    _, firsts, members = np.unique(survey.digests, axis=0, return_index=True, return_inverse=True)
    found = firsts[members.reshape(-1)]
    return np.where(survey.digests.any(axis=1), found, np.arange(len(survey)))


def pair_digests(first: Survey, second: Survey) -> np.ndarray:
    """Pairs (P, 2) with the same bytes: of each side, every copy with the first of the other."""
    forth = list_shared(first.digests, second.digests)
    back = [(other, number) for number, other in list_shared(second.digests, first.digests)]
    return np.array(sorted({*forth, *back}), dtype=np.int64).reshape(-1, 2)


def list_shared(digests: np.ndarray, others: np.ndarray) -> list[tuple[int, int]]:
    """Each of the first that is among the others, with the first place there; zeros stand for what cannot be read."""
    places = {digest.tobytes(): number for number, digest in reversed(list(enumerate(others))) if digest.any()}
    return [(number, places[digest.tobytes()]) for number, digest in enumerate(digests) if digest.tobytes() in places]


def confirm(
    candidates: np.ndarray, first: Survey, first_source: Source, second: Survey, second_source: Source, show_progress: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Those of the candidates (P, 2), sorted, that a second look finds to be the same picture, and their likeness.

    Images that are connected by copies already are not compared again, so that a thousand shots of one scene take some
    thousand looks and not half a million.
    """
    sides = [each.sizes.min(axis=1) for each in (first, second)]
    candidates = candidates[np.maximum(sides[0][candidates[:, 0]], sides[1][candidates[:, 1]]) >= LEAST_SIDE]
    load, load_other = build_loader(first_source), build_loader(second_source)
    shift = 0 if first_source is second_source else len(first)  # numbers of the second, where they are other images
    connected = DisjointSet(np.unique(np.concatenate([candidates[:, 0], candidates[:, 1] + shift])).tolist())
    pairs: dict[tuple[int, int], float] = {}
    with ThreadPoolExecutor(count_processors()) as pool:
        for number, others in track(list_groups(candidates), count_groups(candidates), "a second look", show_progress):
            unknown = [other for other in others if not connected.connected(number, other + shift)]
            if not unknown:
                continue
            own = load(number)
            likeness = pool.map(lambda other, own=own: compare(own, load_other(other)), unknown)
            for other, found in zip(unknown, likeness, strict=True):
                if found >= LEAST_LIKENESS:
                    pairs[number, other] = found
                    connected.merge(number, other + shift)
    return np.array(list(pairs), dtype=np.int64).reshape(-1, 2), np.array(list(pairs.values()))


def list_groups(candidates: np.ndarray) -> Iterator[tuple[int, list[int]]]:
    """Each first number with those that it is to be compared with, a few at a time."""
    numbers, starts = np.unique(candidates[:, 0], return_index=True)
    for number, part in zip(numbers.tolist(), np.split(candidates[:, 1], starts)[1:], strict=True):
        for start in range(0, len(part), LOOKS_AT_ONCE):
            yield number, part[start : start + LOOKS_AT_ONCE].tolist()


def count_groups(candidates: np.ndarray) -> int:
    _, counts = np.unique(candidates[:, 0], return_counts=True)
    return int(np.sum(-(-counts // LOOKS_AT_ONCE)))


def build_loader(source: Source) -> Callable[[int], Look]:
    """Images as they are compared, the last ones kept."""

    @lru_cache(MOST_LOOKS)
    def load(number: int) -> Look:
        try:
            return prepare(source.read(number)[0])
        except BadImage:  # it could be read before, and is gone: like nothing
            return look_at(np.zeros((SIDE, SIDE), dtype=np.float32))

    return load


def spread_to_copies(
    pairs: np.ndarray, likeness: np.ndarray, firsts: np.ndarray, seconds: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of the first of several copies, for every other copy of them too, against the one that was looked at."""
    found = {tuple(pair): value for pair, value in zip(pairs.tolist(), likeness.tolist(), strict=True)}
    for side, copies in enumerate((firsts, seconds)):
        others = np.flatnonzero(copies != np.arange(len(copies)))
        by_first: dict[int, list[int]] = {}
        for other in others.tolist():
            by_first.setdefault(int(copies[other]), []).append(other)
        for pair, value in zip(pairs.tolist(), likeness.tolist(), strict=True):
            for other in by_first.get(pair[side], ()):
                found[(other, pair[1]) if side == 0 else (pair[0], other)] = value
    return np.array(list(found), dtype=np.int64).reshape(-1, 2), np.array(list(found.values()))


def sort_pairs(exact: np.ndarray, near: np.ndarray, likeness: np.ndarray) -> Pairs:
    numbers = np.concatenate([exact, near])
    order = np.lexsort((numbers[:, 1], numbers[:, 0]))
    is_exact = np.arange(len(numbers)) < len(exact)
    return Pairs(numbers[order], np.concatenate([np.ones(len(exact)), likeness])[order], is_exact[order])
