"""Candidates for duplicates in a search that a crowd does not slow down: more than 16 copies of one picture.

All pairs of n copies would be n * n / 2. So crowds are found first: each copy is verified against one representative, the first
of them, and all but eight leave the search. What is left makes at most some 16 pairs for each image. Groups of up to 16 copies
are searched as they are, and so are pictures whose hashes are similar but whose edges are not.

A crowd is found by looking up random images, four times as many in each round as in the one before. The larger a crowd, the
sooner one of its images is drawn, and then it is gone. So the images drawn in all rounds together find a few pairs for each
image, however large the crowds are.
"""

import numpy as np

from vitrine.core.console import progress_bar
from vitrine.data.quality.edge_map import MIN_SIMILARITY, ImageComparer
from vitrine.data.quality.image_stats import ImageStats
from vitrine.data.quality.perceptual_hash import HashIndex, unique_pairs

MIN_SIDE = 32  # two images both smaller than this have too few edges to compare: only identical bytes count
MAX_SEARCHED = 16  # copies of one picture; more are a crowd
NUM_KEPT = 8  # of the copies of a crowd, which stay in the search
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

    def find_first_copies(self, candidates: dict[int, np.ndarray], others: "ImageSet") -> dict[int, int]:
        """Return for images of `others` the first of their candidates here that is a copy, where there is one.

        The first is mostly a copy. So candidates are compared in parts that double, each part of all images at once.
        """
        found: dict[int, int] = {}
        left, start, size = dict(candidates), 0, 1
        while left:
            parts = {image: each[start : start + size] for image, each in left.items()}
            pairs = np.concatenate([np.stack([part, np.full_like(part, image)], axis=1) for image, part in parts.items()])
            similarity = np.array(list(self.comparer.compare(pairs, (self.side, others.side))))
            for index, image in pairs[similarity >= MIN_SIMILARITY].tolist():
                found.setdefault(image, index)
            start, size = start + size, 2 * size
            left = {image: each for image, each in left.items() if image not in found and len(each) > start}
        return found


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
    """Draw some of the searched images of a set, at most one in 16: no more are needed to find crowds."""
    searched = np.flatnonzero(images.is_searched)
    return np.sort(generator.choice(searched, min(num_drawn, len(searched) // MAX_SEARCHED), replace=False))


def pair_drawn(images: ImageSet, others: ImageSet, drawn: np.ndarray, show_progress: bool) -> Pairs:
    """Find the crowds of `images` that have drawn images of `others` among them; those without a common image at once."""
    waiting = list(split_by_query(images.find_similar(others, drawn), drawn).items())
    pairs: Pairs = {}
    while waiting:
        is_taken = np.zeros(len(images), dtype=bool)
        chosen, rest = dict[int, np.ndarray](), []
        for index, part in waiting:
            candidates = part[images.is_searched[part]]  # those that the crowds before this one have left
            if images is others:
                candidates = candidates[candidates != index]
            if not others.is_searched[index] or len(candidates) <= MAX_SEARCHED:
                continue
            if is_taken[candidates].any():
                rest.append((index, part))
            else:
                is_taken[candidates] = True
                chosen[index] = candidates
        pairs |= pair_disjoint(images, others, chosen, show_progress)
        waiting = rest
    return pairs


def split_by_query(pairs: np.ndarray, queries: np.ndarray) -> dict[int, np.ndarray]:
    """Return what `find_similar` found for each of the queries, which are sorted."""
    pairs = pairs[np.argsort(pairs[:, 1], kind="stable")]
    return dict(zip(queries.tolist(), np.split(pairs[:, 0], np.searchsorted(pairs[:, 1], queries[1:])), strict=False))


def pair_disjoint(images: ImageSet, others: ImageSet, crowds: dict[int, np.ndarray], show_progress: bool) -> Pairs:
    """Pair copies with a representative, the first image of `others` like them; all but eight of each crowd leave the search.

    `crowds` has the candidates of each drawn image, which are in no other crowd.
    """
    nearest = images.find_first_copies(crowds, others)  # drawn image -> the first candidate that is a copy of it
    copies = np.sort(np.array(list(nearest.values()), dtype=np.int64))
    similar = split_by_query(others.find_similar(images, copies), copies)
    candidates = {copy: np.union1d(similar[copy], drawn) for drawn, copy in nearest.items()}
    representatives = others.find_first_copies(candidates, images)
    members: list[np.ndarray] = []  # of each crowd, pairs of a candidate and the representative
    for drawn, copy in nearest.items():
        if copy not in representatives:  # `drawn` is a copy, so this is only for images that have just become unreadable
            continue
        representative = representatives[copy]
        crowd = crowds[drawn]
        if images is others:
            crowd = np.setdiff1d(np.union1d(crowd, drawn), representative)
        members.append(np.stack([crowd, np.full_like(crowd, representative)], axis=1))
    if not members:
        return {}
    compared = np.concatenate(members)
    similarities = images.comparer.compare(compared, (images.side, others.side))
    similarity = np.array(list(progress_bar(similarities, len(compared), "comparing copies", show_progress)))
    pairs: Pairs = {}
    for crowd, values in zip(members, np.split(similarity, np.cumsum([len(each) for each in members])[:-1]), strict=True):
        copies, values = crowd[values >= MIN_SIMILARITY], values[values >= MIN_SIMILARITY]
        if len(copies) > MAX_SEARCHED:
            # The least similar may lead to more images of the crowd, the most similar are found by any copy.
            by_similarity = copies[np.argsort(values, kind="stable"), 0]
            images.is_searched[by_similarity[NUM_KEPT // 2 : -NUM_KEPT // 2]] = False
            pairs |= dict(zip(map(tuple, copies.tolist()), values.tolist(), strict=True))
    return pairs
