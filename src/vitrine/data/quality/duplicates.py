"""Exact and near duplicates: candidates, verification.

Whether two images that have like signatures are the same picture: their edges are laid over each other.

One may be a piece of the other, so it is tried against pieces that leave out up to a tenth of its width and of its height. What
is compared are the steps of brightness from pixel to pixel, not brightness itself: clouds on a blue sky are alike in that,
whatever they show. Of copies of photographs these correlate by 0.93 and more, of 32 x 32 pixels shrunk to half by 0.79; of
unrelated photographs with like signatures by 0.4 at most, of 32 x 32 pixels seldom by 0.75.
Images that occur twice: stored as the same bytes, or the same picture, compressed, resized, brightened or cut a little.

The pre-training sets of arXiv:2010.11929 were cleared of the images of every test set so (section 4.1, as in BiT).
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from PIL import Image
from scipy.cluster.hierarchy import DisjointSet

from vitrine.core.console import progress_bar
from vitrine.data.image import BadImage, LazyImage
from vitrine.data.quality.image_stats import ImageStats
from vitrine.data.quality.perceptual_hash import search, search_both_ways
from vitrine.data.scan import count_cpus
from vitrine.data.source import Source

SIDE, COMPARED = 48, 24  # pixels of an image, and of the pieces that are compared
SHARES = np.linspace(0, 0.1, 5)
PIECES = [(before, after) for before in SHARES for after in SHARES if before + after <= 0.1 + 1e-9]  # the whole comes first
LEAST_LIKENESS = 0.75


def build_window(before: float, after: float) -> np.ndarray:
    """(24, 48): the mean of what falls into each pixel of a piece that leaves out these shares at its two ends."""
    edges = np.linspace(before, 1 - after, COMPARED + 1) * SIDE
    cells = np.arange(SIDE)
    overlap = np.minimum(edges[1:, None], cells + 1) - np.maximum(edges[:-1, None], cells)
    weights = np.clip(overlap, 0, None)
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)


# Letters: A an image (48, 48), W a window (24, 48) of P, d the steps from one row to the next. A piece is W_i A W_j', its steps
# down are dW_i A W_j' and to the right W_i A dW_j', each without the first line of the other axis. Products with windows are
# moved from one side to the other, so that no piece has to be made.
WINDOWS = np.stack([build_window(before, after) for before, after in PIECES])  # (P, 24, 48)
STEPS, LINES = np.diff(WINDOWS, axis=1), WINDOWS[:, 1:]  # dW and W, (P, 23, 48)
SQUARES = (LINES.transpose(0, 2, 1) @ LINES).reshape(len(PIECES), -1)  # W'W, (P, 48 * 48)


@dataclass(frozen=True)
class EdgeMap:
    """What of an image is compared."""

    down: np.ndarray
    """dW_i A, (P, 23, 48)."""
    right: np.ndarray
    """dW_j A', (P, 23, 48)."""
    lengths: np.ndarray
    """(P, P): of the steps of each piece, as one vector."""
    whole: tuple[np.ndarray, np.ndarray]
    """The steps of the whole image, down and to the right, each (23, 23)."""


def prepare(image: LazyImage) -> EdgeMap:
    pixels = Image.fromarray(image.to_numpy(1, at_least=(2 * SIDE, 2 * SIDE))[..., 0])
    return look_at(np.asarray(pixels.resize((SIDE, SIDE), Image.Resampling.BILINEAR), dtype=np.float32))


def look_at(grey: np.ndarray) -> EdgeMap:
    """From a grey image (48, 48), drawn out to a square."""
    down, right = STEPS @ grey, STEPS @ grey.T
    squares_down, squares_right = (
        (steps.transpose(0, 2, 1) @ steps).reshape(len(PIECES), -1) @ SQUARES.T for steps in (down, right)
    )  # each (P, P): by the axis that steps are taken along, then by the other
    lengths = np.sqrt(np.maximum(squares_down + squares_right.T, 1e-6))
    return EdgeMap(down, right, lengths, (down[0] @ LINES[0].T, LINES[0] @ right[0].T))


def compare(first: EdgeMap, second: EdgeMap) -> float:
    """How alike two images are, in the best way to lay one over a piece of the other: at most 1."""
    return max(compare_pieces(first, second), compare_pieces(second, first))


def compare_pieces(larger: EdgeMap, smaller: EdgeMap) -> float:
    """The correlation of the steps of the smaller with those of the best piece of the larger."""
    num_pieces = len(PIECES)
    down, right = smaller.whole
    products = larger.down.reshape(num_pieces, -1) @ (down @ LINES).reshape(num_pieces, -1).T
    products += (larger.right.reshape(num_pieces, -1) @ (right.T @ LINES).reshape(num_pieces, -1).T).T
    return float((products / larger.lengths).max() / smaller.lengths[0, 0])


# Two images whose short sides are both below say too little to be told from others like them: the same bytes count alone.
LEAST_SIDE = 32
LOOKS_AT_ONCE = 8
MOST_LOOKS = 1024  # that are kept at a time, some 130 MB


@dataclass(frozen=True)
class DuplicatePairs:
    """Pairs of images that are the same. Of several copies not all pairs are named, but each with another one."""

    numbers: np.ndarray
    """(P, 2)"""
    likeness: np.ndarray
    """(P): 1 for the same bytes, else how alike they look, from 0.75."""
    is_exact: np.ndarray
    """bool (P): the same bytes."""

    def __len__(self) -> int:
        return len(self.numbers)


def find_duplicates_between(
    first: ImageStats, first_source: Source, second: ImageStats, second_source: Source, show_progress: bool = False
) -> DuplicatePairs:
    """Pairs of an image of the first and one of the second; each that has a copy on the other side is named."""
    firsts, seconds = find_first_copies(first), find_first_copies(second)
    exact = pair_digests(first, second)
    ours, others = (np.flatnonzero(copies == np.arange(len(copies))) for copies in (firsts, seconds))
    found = search_both_ways(first.signatures.take(ours), second.signatures.take(others))
    candidates = np.stack([ours[found[:, 0]], others[found[:, 1]]], axis=1)
    candidates = candidates[(first.digests[candidates[:, 0]] != second.digests[candidates[:, 1]]).any(axis=1)]
    near, likeness = verify_candidates(candidates, first, first_source, second, second_source, show_progress)
    near, likeness = spread_to_copies(near, likeness, firsts, seconds)
    return sort_pairs(exact, near, likeness)


def find_duplicates_within(survey: ImageStats, source: Source, show_progress: bool = False) -> DuplicatePairs:
    """Pairs of two images of one source, the smaller number first; of several copies, each with the first it is a copy of."""
    firsts = find_first_copies(survey)
    numbers = np.arange(len(survey))
    exact = np.stack([firsts, numbers], axis=1)[firsts < numbers]
    kept = np.flatnonzero(firsts == numbers)
    signatures = survey.signatures.take(kept)
    found = np.sort(search(signatures, signatures), axis=1)
    candidates = kept[np.unique(found[found[:, 0] < found[:, 1]], axis=0)]
    near, likeness = verify_candidates(candidates, survey, source, survey, source, show_progress)
    return sort_pairs(exact, near, likeness)


def find_first_copies(survey: ImageStats) -> np.ndarray:
    """For each image the first that has the same bytes; itself, where it is that or cannot be read."""
    _, firsts, members = np.unique(survey.digests, axis=0, return_index=True, return_inverse=True)
    found = firsts[members.reshape(-1)]
    return np.where(survey.digests.any(axis=1), found, np.arange(len(survey)))


def pair_digests(first: ImageStats, second: ImageStats) -> np.ndarray:
    """Pairs (P, 2) with the same bytes: of each side, every copy with the first of the other."""
    forth = list_shared(first.digests, second.digests)
    back = [(other, number) for number, other in list_shared(second.digests, first.digests)]
    return np.array(sorted({*forth, *back}), dtype=np.int64).reshape(-1, 2)


def list_shared(digests: np.ndarray, others: np.ndarray) -> list[tuple[int, int]]:
    """Each of the first that is among the others, with the first place there; zeros stand for what cannot be read."""
    places = {digest.tobytes(): number for number, digest in reversed(list(enumerate(others))) if digest.any()}
    return [(number, places[digest.tobytes()]) for number, digest in enumerate(digests) if digest.tobytes() in places]


def verify_candidates(
    candidates: np.ndarray,
    first: ImageStats,
    first_source: Source,
    second: ImageStats,
    second_source: Source,
    show_progress: bool,
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
    with ThreadPoolExecutor(count_cpus()) as pool:
        for number, others in progress_bar(list_groups(candidates), count_groups(candidates), "a second look", show_progress):
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


def build_loader(source: Source) -> Callable[[int], EdgeMap]:
    """Images as they are compared, the last ones kept."""

    @lru_cache(MOST_LOOKS)
    def load(number: int) -> EdgeMap:
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


def sort_pairs(exact: np.ndarray, near: np.ndarray, likeness: np.ndarray) -> DuplicatePairs:
    numbers = np.concatenate([exact, near])
    order = np.lexsort((numbers[:, 1], numbers[:, 0]))
    is_exact = np.arange(len(numbers)) < len(exact)
    return DuplicatePairs(numbers[order], np.concatenate([np.ones(len(exact)), likeness])[order], is_exact[order])
