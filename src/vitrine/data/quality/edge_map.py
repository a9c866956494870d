"""Edges of images, and the similarity of two images by their edges: what verifies candidates for duplicates.

The similarity of two images is the largest correlation between the edges of one and those of a crop of the other, over the
15 x 15 crops C that leave out up to 10 % of width and height:

    similarity(A, B) = max over crops c of  <edges(c(A)), edges(B)> / (|edges(c(A))| |edges(B)|)

Edges are differences of brightness between neighbouring pixels; brightness itself would make any two blue skies similar.
Duplicates of photographs correlate by 0.93 and more, 32 x 32 pixel images shrunk to half by 0.79; unrelated photographs with
similar hashes by 0.4 at most, 32 x 32 pixel images seldom by 0.75.

A crop is W_i A W_j', with a window matrix W (24, 48) for each axis. Its differences down are dW_i A W_j' and to the right
W_i A dW_j', each without the first line of the other axis. Products with windows are moved from one image to the other, so
that no crop is ever made.
"""

import math
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from typing import Self

import numpy as np
from PIL import Image

from vitrine.core.processes import follow_parent
from vitrine.data.image import BadImage, LazyImage
from vitrine.data.scan import count_cpus, map_in_threads
from vitrine.data.source import Source

MAX_KEPT_EDGE_MAPS = 256  # some 34 MB
MAX_KEPT_GREY = 1024  # some 9 MB
MIN_FOR_PROCESSES = 2000  # comparisons; fewer are done by threads before processes have started
PAIRS_AT_ONCE = 64
SIDE, CROP_SIDE = 48, 24  # pixels of an image, and of the crops that are compared
CUTS = np.linspace(0, 0.1, 5)
CROPS = [(before, after) for before in CUTS for after in CUTS if before + after <= 0.1 + 1e-9]  # the whole image first
MIN_SIMILARITY = 0.75
CLEAR_SIMILARITY = 0.9  # with a crop of one image; the other is then not cropped, and their similarity may be a little higher


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
class WholeEdges:
    """The edges of a whole image, each (23, 23), and their norm."""

    down: np.ndarray
    right: np.ndarray
    norm: float | np.floating


@dataclass(frozen=True)
class EdgeMap:
    """The edges of one image A, prepared for comparison with crops."""

    down: np.ndarray
    """dW_i A, (C, 23, 48)."""
    right: np.ndarray
    """dW_j A', (C, 23, 48)."""
    norms: np.ndarray
    """(C, C): norm of the edges of each crop."""
    whole: WholeEdges


def load_grey(image: LazyImage) -> np.ndarray:
    """Decode an image in grey and stretch it to a square (48, 48)."""
    pixels = Image.fromarray(image.to_numpy(1, at_least=(2 * SIDE, 2 * SIDE), stored_luma=True)[..., 0])
    return np.asarray(pixels.resize((SIDE, SIDE), Image.Resampling.BILINEAR), dtype=np.float32)


def compute_edge_map(grey: np.ndarray) -> EdgeMap:
    """Compute the edge map of a grey image (48, 48) that was stretched to a square."""
    down, right = DIFFERENCES @ grey, DIFFERENCES @ grey.T
    squares_down, squares_right = (
        (edges.transpose(0, 2, 1) @ edges).reshape(len(CROPS), -1) @ SQUARES.T for edges in (down, right)
    )  # each (C, C): first the axis of the differences, then the other
    norms = np.sqrt(np.maximum(squares_down + squares_right.T, 1e-6))
    return EdgeMap(down, right, norms, WholeEdges(down[0] @ LINES[0].T, LINES[0] @ right[0].T, norms[0, 0]))


def compute_whole_edges(grey: np.ndarray) -> WholeEdges:
    """Compute the edges of a grey image (48, 48) without those of its crops, which take most of the time."""
    down, right = DIFFERENCES[0] @ grey @ LINES[0].T, LINES[0] @ (DIFFERENCES[0] @ grey.T).T
    return WholeEdges(down, right, math.sqrt(max(np.vdot(down, down) + np.vdot(right, right), 1e-6)))


def correlate_with_crops(larger: EdgeMap, smaller: WholeEdges) -> float:
    """Return the largest correlation of the edges of `smaller` with those of a crop of `larger`."""
    num_crops = len(CROPS)
    products = larger.down.reshape(num_crops, -1) @ (smaller.down @ LINES).reshape(num_crops, -1).T
    products += (larger.right.reshape(num_crops, -1) @ (smaller.right.T @ LINES).reshape(num_crops, -1).T).T
    return float((products / larger.norms).max() / smaller.norm)


# Comparison of many images.


class EdgeMaps:
    """The edge maps of the images of a source, by index."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.load_grey = lru_cache(MAX_KEPT_GREY)(self.decode_grey)
        self.load = lru_cache(MAX_KEPT_EDGE_MAPS)(lambda index: compute_edge_map(self.load_grey(index)))

    def decode_grey(self, index: int) -> np.ndarray:
        """Load the pixels of an image; one that was readable before and no longer is has no edges, and matches nothing."""
        try:
            return load_grey(self.source.read(index)[0])
        except BadImage:
            return np.zeros((SIDE, SIDE), dtype=np.float32)


def compare_pairs(images: EdgeMaps, others: EdgeMaps, pairs: np.ndarray) -> list[float]:
    """Return the similarity of each pair (P, 2). The second image should be the same in many pairs: it is always cropped.

    The first is cropped only if the pair is not clear without: cropping takes as long as decoding a small JPEG.
    """
    similarities = []
    for index, other in pairs.tolist():
        other_map = others.load(other)
        similarity = correlate_with_crops(other_map, compute_whole_edges(images.load_grey(index)))
        if similarity < CLEAR_SIMILARITY:
            similarity = max(similarity, correlate_with_crops(images.load(index), other_map.whole))
        similarities.append(similarity)
    return similarities


class ImageComparer:
    """Similarities of images of one or two sources, computed by threads, or by worker processes once there are many."""

    def __init__(self, *sources: Source) -> None:
        self.edge_maps = [EdgeMaps(source) for source in sources]
        self.num_compared = 0
        self.pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)

    def compare(self, pairs: np.ndarray, sides: tuple[int, int]) -> Iterator[float]:
        """Yield the similarity of each pair (P, 2) of indices; `sides` says of which sources they are."""
        self.num_compared += len(pairs)
        if self.pool is None and self.num_compared > MIN_FOR_PROCESSES:
            sources = tuple(edge_maps.source for edge_maps in self.edge_maps)
            self.pool = ProcessPoolExecutor(count_cpus(), multiprocessing.get_context(), init_worker, sources)
        size = min(PAIRS_AT_ONCE, max(1, math.ceil(len(pairs) / (2 * count_cpus()))))  # few pairs are work for all, too
        parts = [pairs[start : start + size] for start in range(0, len(pairs), size)]
        if self.pool is None:
            first, second = (self.edge_maps[side] for side in sides)
            results = map_in_threads(lambda part: compare_pairs(first, second, parts[part]), len(parts))
        else:
            results = self.pool.map(compare_in_worker, parts, repeat(sides))
        for similarities in results:
            yield from similarities


WORKER_EDGE_MAPS: list[EdgeMaps] = []  # in a worker process: those of each source


def init_worker(*sources: Source) -> None:
    """Keep the sources in a worker process."""
    follow_parent()
    WORKER_EDGE_MAPS[:] = [EdgeMaps(source) for source in sources]


def compare_in_worker(pairs: np.ndarray, sides: tuple[int, int]) -> list[float]:
    return compare_pairs(WORKER_EDGE_MAPS[sides[0]], WORKER_EDGE_MAPS[sides[1]], pairs)
