"""Duplicate images: identical bytes, or the same picture compressed, resized, brightened or cropped a little.

Perceptual hashes give candidates; each candidate pair is then verified by its edges. Section 4.1 of arXiv:2010.11929 removes
the images of every test set from the pre-training data in this way, following BiT.

Letters: N images, P pairs, C crops.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image
from scipy.cluster.hierarchy import DisjointSet

from vitrine.core.console import progress_bar
from vitrine.data.image import BadImage, LazyImage
from vitrine.data.open_data import DataLike, find_data, open_test
from vitrine.data.quality.image_stats import ImageStats, compute_image_stats
from vitrine.data.quality.perceptual_hash import search, search_both_ways
from vitrine.data.scan import count_cpus
from vitrine.data.source import Source

if TYPE_CHECKING:
    from vitrine.core.runtime import Runtime

MIN_SIDE = 32  # two images both smaller than this have too few edges to compare: only identical bytes count
PAIRS_AT_ONCE = 8
MAX_KEPT_EDGE_MAPS = 1024  # some 130 MB


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
    ours, others = (np.flatnonzero(copies == np.arange(len(copies))) for copies in (first_copies, second_copies))
    matches = search_both_ways(first.hashes.take(ours), second.hashes.take(others))
    candidates = np.stack([ours[matches[:, 0]], others[matches[:, 1]]], axis=1)
    candidates = candidates[(first.digests[candidates[:, 0]] != second.digests[candidates[:, 1]]).any(axis=1)]
    near, similarity = verify_candidates(candidates, first, first_source, second, second_source, show_progress)
    near, similarity = extend_to_copies(near, similarity, first_copies, second_copies)
    return sort_pairs(exact, near, similarity)


def find_duplicates_within(stats: ImageStats, source: Source, show_progress: bool = False) -> DuplicatePairs:
    """Find pairs of two images of one source, the smaller index first; each copy is paired with the first of its kind."""
    first_copies = find_first_copies(stats)
    indices = np.arange(len(stats))
    exact = np.stack([first_copies, indices], axis=1)[first_copies < indices]
    kept = np.flatnonzero(first_copies == indices)
    hashes = stats.hashes.take(kept)
    matches = np.sort(search(hashes, hashes), axis=1)
    candidates = kept[np.unique(matches[matches[:, 0] < matches[:, 1]], axis=0)]
    near, similarity = verify_candidates(candidates, stats, source, stats, source, show_progress)
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
    """Add pairs for the other copies of images that were compared, since only the first copy of each was."""
    found = {tuple(pair): value for pair, value in zip(pairs.tolist(), similarity.tolist(), strict=True)}
    for side, copies in enumerate((first_copies, second_copies)):
        others = np.flatnonzero(copies != np.arange(len(copies)))
        by_first: dict[int, list[int]] = {}
        for other in others.tolist():
            by_first.setdefault(int(copies[other]), []).append(other)
        for pair, value in zip(pairs.tolist(), similarity.tolist(), strict=True):
            for other in by_first.get(pair[side], ()):
                found[(other, pair[1]) if side == 0 else (pair[0], other)] = value
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
    candidates: np.ndarray,
    first: ImageStats,
    first_source: Source,
    second: ImageStats,
    second_source: Source,
    show_progress: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Keep the candidate pairs (P, 2), sorted, whose edges match, with their similarity.

    Images already connected through other duplicates are not compared again, so that a thousand shots of one scene take about
    a thousand comparisons instead of half a million.
    """
    sides = [stats.sizes.min(axis=1) for stats in (first, second)]
    candidates = candidates[np.maximum(sides[0][candidates[:, 0]], sides[1][candidates[:, 1]]) >= MIN_SIDE]
    load, load_other = build_edge_map_loader(first_source), build_edge_map_loader(second_source)
    shift = 0 if first_source is second_source else len(first)  # images of another source get indices of their own
    connected = DisjointSet(np.unique(np.concatenate([candidates[:, 0], candidates[:, 1] + shift])).tolist())
    pairs: dict[tuple[int, int], float] = {}
    with ThreadPoolExecutor(count_cpus()) as pool:
        _, counts = np.unique(candidates[:, 0], return_counts=True)
        num_groups = int(np.sum(-(-counts // PAIRS_AT_ONCE)))
        for index, others in progress_bar(group_candidates(candidates), num_groups, "comparing", show_progress):
            unknown = [other for other in others if not connected.connected(index, other + shift)]
            if not unknown:
                continue
            own = load(index)
            similarities = pool.map(lambda other, own=own: compute_similarity(own, load_other(other)), unknown)
            for other, similarity in zip(unknown, similarities, strict=True):
                if similarity >= MIN_SIMILARITY:
                    pairs[index, other] = similarity
                    connected.merge(index, other + shift)
    return np.array(list(pairs), dtype=np.int64).reshape(-1, 2), np.array(list(pairs.values()))


def group_candidates(candidates: np.ndarray) -> Iterator[tuple[int, list[int]]]:
    """Yield each first index with up to eight others to compare it with."""
    indices, starts = np.unique(candidates[:, 0], return_index=True)
    for index, part in zip(indices.tolist(), np.split(candidates[:, 1], starts)[1:], strict=True):
        for start in range(0, len(part), PAIRS_AT_ONCE):
            yield index, part[start : start + PAIRS_AT_ONCE].tolist()


def build_edge_map_loader(source: Source) -> Callable[[int], "EdgeMap"]:
    """Return a function that loads the edge map of an image by index, with the latest ones cached."""

    @lru_cache(MAX_KEPT_EDGE_MAPS)
    def load(index: int) -> EdgeMap:
        """Load one edge map."""
        try:
            return load_edge_map(source.read(index)[0])
        except BadImage:  # readable before, and gone now: matches nothing
            return compute_edge_map(np.zeros((SIDE, SIDE), dtype=np.float32))

    return load


# Similarity of two images: the largest correlation between the edges of one and those of a crop of the other, over the 15 x 15
# crops C that leave out up to 10 % of width and height:
#
#     similarity(A, B) = max over crops c of  <edges(c(A)), edges(B)> / (|edges(c(A))| |edges(B)|)
#
# Edges are differences of brightness between neighbouring pixels; brightness itself would make any two blue skies similar.
# Duplicates of photographs correlate by 0.93 and more, 32 x 32 pixel images shrunk to half by 0.79; unrelated photographs with
# similar hashes by 0.4 at most, 32 x 32 pixel images seldom by 0.75.
#
# A crop is W_i A W_j', with a window matrix W (24, 48) for each axis. Its differences down are dW_i A W_j' and to the right
# W_i A dW_j', each without the first line of the other axis. Products with windows are moved from one image to the other, so
# that no crop is ever made.

SIDE, CROP_SIDE = 48, 24  # pixels of an image, and of the crops that are compared
CUTS = np.linspace(0, 0.1, 5)
CROPS = [(before, after) for before in CUTS for after in CUTS if before + after <= 0.1 + 1e-9]  # the whole image first
MIN_SIMILARITY = 0.75


def build_window(before: float, after: float) -> np.ndarray:
    """Return the matrix (24, 48) that crops one axis by two fractions and averages what falls into each pixel."""
    edges = np.linspace(before, 1 - after, CROP_SIDE + 1) * SIDE
    cells = np.arange(SIDE)
    overlap = np.minimum(edges[1:, None], cells + 1) - np.maximum(edges[:-1, None], cells)
    weights = np.clip(overlap, 0, None)
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)


WINDOWS = np.stack([build_window(before, after) for before, after in CROPS])  # W, (C, 24, 48)
DIFFERENCES, LINES = np.diff(WINDOWS, axis=1), WINDOWS[:, 1:]  # dW, and W without its first row, both (C, 23, 48)
SQUARES = (LINES.transpose(0, 2, 1) @ LINES).reshape(len(CROPS), -1)  # W'W, (C, 48 * 48)


@dataclass(frozen=True)
class EdgeMap:
    """The edges of one image A, prepared for comparison with crops."""

    down: np.ndarray
    """dW_i A, (C, 23, 48)."""
    right: np.ndarray
    """dW_j A', (C, 23, 48)."""
    norms: np.ndarray
    """(C, C): norm of the edges of each crop."""
    whole: tuple[np.ndarray, np.ndarray]
    """Edges of the whole image, down and to the right, each (23, 23)."""


def load_edge_map(image: LazyImage) -> EdgeMap:
    """Decode an image in grey and compute its edge map."""
    pixels = Image.fromarray(image.to_numpy(1, at_least=(2 * SIDE, 2 * SIDE))[..., 0])
    return compute_edge_map(np.asarray(pixels.resize((SIDE, SIDE), Image.Resampling.BILINEAR), dtype=np.float32))


def compute_edge_map(grey: np.ndarray) -> EdgeMap:
    """Compute the edge map of a grey image (48, 48) that was stretched to a square."""
    down, right = DIFFERENCES @ grey, DIFFERENCES @ grey.T
    squares_down, squares_right = (
        (edges.transpose(0, 2, 1) @ edges).reshape(len(CROPS), -1) @ SQUARES.T for edges in (down, right)
    )  # each (C, C): first the axis of the differences, then the other
    norms = np.sqrt(np.maximum(squares_down + squares_right.T, 1e-6))
    return EdgeMap(down, right, norms, (down[0] @ LINES[0].T, LINES[0] @ right[0].T))


def compute_similarity(first: EdgeMap, second: EdgeMap) -> float:
    """Return the largest correlation of one image with a crop of the other, at most 1."""
    return max(correlate_with_crops(first, second), correlate_with_crops(second, first))


def correlate_with_crops(larger: EdgeMap, smaller: EdgeMap) -> float:
    """Return the largest correlation of the edges of `smaller` with those of a crop of `larger`."""
    num_crops = len(CROPS)
    down, right = smaller.whole
    products = larger.down.reshape(num_crops, -1) @ (down @ LINES).reshape(num_crops, -1).T
    products += (larger.right.reshape(num_crops, -1) @ (right.T @ LINES).reshape(num_crops, -1).T).T
    return float((products / larger.norms).max() / smaller.norms[0, 0])
