"""Duplicate images: identical bytes, or the same picture compressed, resized, brightened or cropped a little.

Perceptual hashes give candidates; each candidate pair is then verified by its edges. Section 4.1 of arXiv:2010.11929 removes
the images of every test set from the pre-training data in this way, following BiT.

Letters: N images, P pairs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.cluster.hierarchy import DisjointSet

from vitrine.core.console import progress_bar
from vitrine.data.open_data import DataLike, find_data, open_test
from vitrine.data.quality.crowds import MAX_SEARCHED, ImageSet, Pairs, find_candidates, pair_crowds
from vitrine.data.quality.edge_map import MIN_SIMILARITY, ImageComparer, compare_pairs
from vitrine.data.quality.image_stats import ImageStats, compute_image_stats
from vitrine.data.source import Source

if TYPE_CHECKING:
    from vitrine.core.runtime import Runtime

PAIRS_AT_ONCE, GROUPS_AT_ONCE = 8, 256  # pairs of one image, and such groups, that are compared in one go


@dataclass(frozen=True)
class DuplicatePairs:
    """Pairs of duplicates. Of several copies of one image not every pair is listed, but each copy is in some pair."""

    indices: np.ndarray
    """(P, 2)"""
    similarity: np.ndarray
    """(P): 1 for identical bytes, else the correlation of edges, at least 0.75."""
    is_exact: np.ndarray
    """bool (P): identical bytes."""

    def __len__(self) -> int:
        return len(self.indices)


@dataclass(frozen=True)
class Duplicates:
    """Training images that are also in a test set: what `find_duplicates` returns."""

    pairs: DuplicatePairs
    sources: tuple[Source, Source]
    """The training images and the test images."""
    num_unreadable: tuple[int, int]

    def names_to_exclude(self) -> list[str]:
        """Return the names of the training images that have a duplicate in the test set, for `data.exclude`."""
        return [self.sources[0].name(index) for index in dict.fromkeys(self.pairs.indices[:, 0].tolist())]


def find_duplicates(
    pretrain: DataLike,
    test: DataLike,
    split: str | None = None,
    test_split: str | None = None,
    runtime: "Runtime | None" = None,
) -> Duplicates:
    """Find the images of one dataset that are in another: what `vitrine data duplicates` prints.

    The splits default to train, and to test or val. Of several ranks, only rank 0 compares; the others return no pairs.
    """
    data, test_data = find_data(pretrain), find_data(test)
    first = data.open_train() if split is None else data.open(split)
    second = open_test(test_data, test_split)
    is_main = runtime is None or runtime.is_main
    stats = [
        compute_image_stats(source, f"reading {name}", runtime, show_progress=is_main)
        for source, name in ((first, data.name), (second, test_data.name))
    ]
    pairs = find_duplicates_between(stats[0], first, stats[1], second, show_progress=True) if is_main else NO_PAIRS
    return Duplicates(pairs, (first, second), (len(stats[0].unreadable), len(stats[1].unreadable)))


def find_duplicates_between(
    first: ImageStats, first_source: Source, second: ImageStats, second_source: Source, show_progress: bool = False
) -> DuplicatePairs:
    """Find pairs of an image of each source. Every image with a duplicate on the other side is in some pair."""
    first_copies, second_copies = find_first_copies(first), find_first_copies(second)
    exact = pair_identical(first, second)
    with ImageComparer(first_source, second_source) as comparer:
        images, others = ImageSet(first, first_copies, comparer), ImageSet(second, second_copies, comparer, side=1)
        crowds = pair_crowds(images, others, show_progress)
        candidates = find_candidates(images, others)
        candidates = candidates[(first.digests[candidates[:, 0]] != second.digests[candidates[:, 1]]).any(axis=1)]
        near, similarity = verify_candidates(candidates, images, others, crowds, show_progress)
    near, similarity = extend_to_copies(near, similarity, first_copies, second_copies)
    return sort_pairs(exact, near, similarity)


def find_duplicates_within(stats: ImageStats, source: Source, show_progress: bool = False) -> DuplicatePairs:
    """Find pairs of two images of one source, the smaller index first; each copy is paired with the first of its kind."""
    first_copies = find_first_copies(stats)
    indices = np.arange(len(stats))
    exact = np.stack([first_copies, indices], axis=1)[first_copies < indices]
    with ImageComparer(source) as comparer:
        images = ImageSet(stats, first_copies, comparer)
        crowds = pair_crowds(images, images, show_progress)
        near, similarity = verify_candidates(find_candidates(images, images), images, images, crowds, show_progress)
    return sort_pairs(exact, near, similarity)


# Identical bytes.


def find_first_copies(stats: ImageStats) -> np.ndarray:
    """Return for each image the first one with identical bytes; unreadable images are their own first copy."""
    _, firsts, members = np.unique(stats.digests, axis=0, return_index=True, return_inverse=True)
    found = firsts[members.reshape(-1)]
    return np.where(stats.digests.any(axis=1), found, np.arange(len(stats)))


def pair_identical(first: ImageStats, second: ImageStats) -> np.ndarray:
    """Return pairs (P, 2) with identical bytes: every copy on either side with the first copy on the other."""
    forward = match_digests(first.digests, second.digests)
    backward = [(other, index) for index, other in match_digests(second.digests, first.digests)]
    return np.array(sorted({*forward, *backward}), dtype=np.int64).reshape(-1, 2)


def match_digests(digests: np.ndarray, others: np.ndarray) -> list[tuple[int, int]]:
    """Pair each digest that is among the others with its first position there. Zeros mark unreadable images."""
    positions = {digest.tobytes(): index for index, digest in reversed(list(enumerate(others))) if digest.any()}
    return [(index, positions[digest.tobytes()]) for index, digest in enumerate(digests) if digest.tobytes() in positions]


def extend_to_copies(
    pairs: np.ndarray, similarity: np.ndarray, first_copies: np.ndarray, second_copies: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Add pairs for the other copies of images that were compared, since only the first copy of each was.

    Each gets the first few pairs of the first copy: with all of them, crowds on both sides would multiply.
    """
    rows = list(zip(pairs.tolist(), similarity.tolist(), strict=True))
    found = {(first, second): value for (first, second), value in rows}
    for side, copies in enumerate((first_copies, second_copies)):
        partners: dict[int, list[tuple[int, float]]] = {}
        for pair, value in rows:
            partners.setdefault(pair[side], []).append((pair[1 - side], value))
        for copy in np.flatnonzero(copies != np.arange(len(copies))).tolist():
            for partner, value in partners.get(int(copies[copy]), [])[:MAX_SEARCHED]:
                found[(copy, partner) if side == 0 else (partner, copy)] = value
    return np.array(list(found), dtype=np.int64).reshape(-1, 2), np.array(list(found.values()))


def sort_pairs(exact: np.ndarray, near: np.ndarray, similarity: np.ndarray) -> DuplicatePairs:
    """Join identical and near duplicates, sorted by index."""
    indices = np.concatenate([exact, near])
    order = np.lexsort((indices[:, 1], indices[:, 0]))
    is_exact = np.arange(len(indices)) < len(exact)
    return DuplicatePairs(indices[order], np.concatenate([np.ones(len(exact)), similarity])[order], is_exact[order])


NO_PAIRS = sort_pairs(np.zeros((0, 2), np.int64), np.zeros((0, 2), np.int64), np.zeros(0))


# Verification of candidates.


def verify_candidates(
    candidates: np.ndarray, first: ImageSet, second: ImageSet, crowds: Pairs, show_progress: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Keep the candidate pairs (P, 2), sorted, whose edges match, with their similarity, and add the pairs of crowds.

    Images already connected through other duplicates are not compared again, so that a thousand shots of one scene take about
    a thousand comparisons instead of half a million.
    """
    shift = 0 if first is second else len(first)  # images of another source get indices of their own
    pairs = dict(crowds)
    known = np.concatenate([candidates, np.array(list(pairs), dtype=np.int64).reshape(-1, 2)])
    connected = DisjointSet(np.unique(known + np.array([0, shift])).tolist())
    for index, other in pairs:
        connected.merge(index, other + shift)

    def list_unknown(index: int, others: list[int]) -> list[int]:
        root = connected[index]
        return [other for other in others if connected[other + shift] != root]

    def verify(wave: list[tuple[int, list[int]]]) -> None:
        likely = list_likely(wave, shift)
        swapped = np.array(likely, dtype=np.int64).reshape(-1, 2)[:, ::-1]  # the image of many pairs comes second
        similarities = dict(zip(likely, first.comparer.compare(swapped, (second.side, first.side)), strict=True))
        for index, others in wave:
            for other in list_unknown(index, others):
                similarity = similarities.get((index, other))
                if similarity is None:
                    (similarity,) = compare_pairs(second.edge_maps, first.edge_maps, np.array([[other, index]]))
                if similarity >= MIN_SIMILARITY:
                    pairs[index, other] = similarity
                    connected.merge(index, other + shift)

    wave = []
    groups = list(group_candidates(candidates))
    for index, others in progress_bar(groups, len(groups), "comparing", show_progress):
        unknown = list_unknown(index, others)
        if unknown:
            wave.append((index, unknown))
        if len(wave) == GROUPS_AT_ONCE:
            verify(wave)
            wave = []
    verify(wave)
    return np.array(list(pairs), dtype=np.int64).reshape(-1, 2), np.array(list(pairs.values()))


def list_likely(wave: list[tuple[int, list[int]]], shift: int) -> list[tuple[int, int]]:
    """List the pairs of a wave that can be compared at once, since the pairs before them will hardly connect them."""
    likely, seen = [], set[int]()
    for index, others in wave:
        if index not in seen:
            new = [other for other in others if other + shift not in seen]
            likely += [(index, other) for other in new or others[:1]]
        seen.update(other + shift for other in others)
    return likely


def group_candidates(candidates: np.ndarray) -> Iterator[tuple[int, list[int]]]:
    """Yield each first index with up to eight others to compare it with."""
    indices, starts = np.unique(candidates[:, 0], return_index=True)
    for index, part in zip(indices.tolist(), np.split(candidates[:, 1], starts)[1:], strict=True):
        for start in range(0, len(part), PAIRS_AT_ONCE):
            yield index, part[start : start + PAIRS_AT_ONCE].tolist()
