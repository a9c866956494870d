"""Candidates for duplicates in a search that a crowd does not slow down: more than 32 copies of one picture.

All pairs of n copies would be n * n / 2. So crowds are found first: each copy is verified against one representative, the first
of them, and all but 32 leave the search. What is left makes at most some 32 pairs for each image. Groups of up to 32 copies are
searched as they are, and so are pictures whose hashes are similar but whose edges are not.

A crowd is found by looking up random images, four times as many in each round as in the one before. The larger a crowd, the
sooner one of its images is drawn, and then it is gone. So the images drawn in all rounds together find a few pairs for each
image, however large the crowds are.
"""

import numpy as np

from vitrine.core.console import progress_bar
from vitrine.data.quality.edge_map import MIN_SIMILARITY, EdgeMap, ImageComparer, compute_similarity
from vitrine.data.quality.image_stats import ImageStats
from vitrine.data.quality.perceptual_hash import HashIndex, unique_pairs

MIN_SIDE = 32  # two images both smaller than this have too few edges to compare: only identical bytes count
MAX_SEARCHED = 32  # copies of one picture; more are a crowd
GROWTH = 4  # of the number of images drawn from round to round
MAX_OUTDATED = 0.1  # fraction of an index that may have left the search before it is built again

Pairs = dict[tuple[int, int], float]
"""Pairs of an image of the first and of the second set, with their similarity."""


class ImageSet:
    """The images of one source that are searched: at first one of each group with identical bytes."""

    def __init__(self, stats: ImageStats, first_copies: np.ndarray, comparer: ImageComparer, side: int = 0) -> None:
        """Take images of source number `side` of the comparer."""
        self.hashes = stats.hashes
        self.comparer, self.side = comparer, side
        self.edge_maps = comparer.edge_maps[side]
        self.is_tiny = stats.sizes.min(axis=1) < MIN_SIDE
        self.is_searched = first_copies == np.arange(len(stats))
        self.indexes: dict[bool, HashIndex] = {}

    def __len__(self) -> int:
        return len(self.is_searched)

    def find_similar(self, queries: "ImageSet", indices: np.ndarray) -> np.ndarray:
        """Find pairs (P, 2) of an image of this set and a query with similar hashes, except pairs of two tiny images."""
        pairs = [np.zeros((0, 2), np.int64)]
        for is_tiny in (False, True):
            chosen = indices[queries.is_tiny[indices] == is_tiny]
            if len(chosen):
                pairs.append(self.build_index(without_tiny=is_tiny).search(queries.hashes, chosen))
        found = np.concatenate(pairs)
        return found[self.is_searched[found[:, 0]]]

    def build_index(self, without_tiny: bool) -> HashIndex:
        """Return an index of the searched images; a few that have left may still be in it."""
        searched = np.flatnonzero(self.is_searched & ~self.is_tiny if without_tiny else self.is_searched)
        index = self.indexes.get(without_tiny)
        if index is None or len(searched) < (1 - MAX_OUTDATED) * index.size:
            index = self.indexes[without_tiny] = HashIndex(self.hashes, searched)
        return index

    def find_copy(self, indices: np.ndarray, other: EdgeMap) -> int | None:
        """Return the first of some images that is a copy of another one."""
        return next(
            (index for index in indices.tolist() if compute_similarity(self.edge_maps.load(index), other) >= MIN_SIMILARITY),
            None,
        )


def find_candidates(first: ImageSet, second: ImageSet) -> np.ndarray:
    """Find pairs (P, 2), sorted, of searched images with similar hashes; within one set, the smaller index first.

    The weak bits that are flipped are the query's, so both sets are searched with the images of the other.
    """
    found = first.find_similar(second, np.flatnonzero(second.is_searched))
    if first is second:
        found = np.sort(found, axis=1)
        return unique_pairs(found[found[:, 0] < found[:, 1]])
    return unique_pairs(np.concatenate([found, second.find_similar(first, np.flatnonzero(first.is_searched))[:, ::-1]]))


def pair_crowds(first: ImageSet, second: ImageSet, show_progress: bool = False) -> Pairs:
    """Pair the copies of each crowd with their representative in the other set, or in the same, and search only a few."""
    generator = np.random.default_rng(0)
    pairs: Pairs = {}
    num_drawn = 1
    while num_drawn < GROWTH * max(len(first), len(second)) / MAX_SEARCHED:
        pairs |= pair_drawn(first, second, draw_searched(second, num_drawn, generator), show_progress)
        if first is not second:
            found = pair_drawn(second, first, draw_searched(first, num_drawn, generator), show_progress)
            pairs |= {(image, other): similarity for (other, image), similarity in found.items()}
        num_drawn *= GROWTH
    if first is second:
        pairs = {(min(pair), max(pair)): similarity for pair, similarity in pairs.items()}
    return pairs


def draw_searched(images: ImageSet, num_drawn: int, generator: np.random.Generator) -> np.ndarray:
    """Draw some of the searched images of a set, at most one in 32: no more are needed to find crowds."""
    searched = np.flatnonzero(images.is_searched)
    return np.sort(generator.choice(searched, min(num_drawn, len(searched) // MAX_SEARCHED), replace=False))


def pair_drawn(images: ImageSet, others: ImageSet, drawn: np.ndarray, show_progress: bool) -> Pairs:
    """Find the crowds of `images` that have drawn images of `others` among them."""
    found = images.find_similar(others, drawn)
    found = found[np.argsort(found[:, 1], kind="stable")]
    pairs: Pairs = {}
    for index, part in zip(drawn.tolist(), np.split(found[:, 0], np.searchsorted(found[:, 1], drawn[1:])), strict=False):
        candidates = part[images.is_searched[part]]  # those that the crowds before this one have left
        if images is others:
            candidates = candidates[candidates != index]
        if others.is_searched[index] and len(candidates) > MAX_SEARCHED:
            pairs |= pair_crowd(images, candidates, others, index, show_progress)
    return pairs


def pair_crowd(images: ImageSet, candidates: np.ndarray, others: ImageSet, drawn: int, show_progress: bool) -> Pairs:
    """Pair the copies of a drawn image with the first image of `others` like it; all but 32 of them leave the search."""
    nearest = images.find_copy(candidates, others.edge_maps.load(drawn))
    if nearest is None:
        return {}
    similar = np.union1d(others.find_similar(images, np.array([nearest]))[:, 0], drawn)
    representative = others.find_copy(similar, images.edge_maps.load(nearest))
    if representative is None:  # `drawn` is similar, so this is only for images that have just become unreadable
        return {}
    if images is others:
        candidates = np.setdiff1d(np.union1d(candidates, drawn), representative)
    pairs = np.stack([candidates, np.full_like(candidates, representative)], axis=1)
    compared = images.comparer.compare(pairs, (images.side, others.side))
    similarity = np.array(list(progress_bar(compared, len(candidates), "comparing copies", show_progress)))
    is_copy = similarity >= MIN_SIMILARITY
    copies = candidates[is_copy]
    if len(copies) <= MAX_SEARCHED:
        return {}
    images.is_searched[copies[MAX_SEARCHED:]] = False
    return {(copy, representative): value for copy, value in zip(copies.tolist(), similarity[is_copy].tolist(), strict=True)}
