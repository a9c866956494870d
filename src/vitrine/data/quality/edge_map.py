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

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from typing import Self

import numpy as np
from PIL import Image

from vitrine.data.image import BadImage, LazyImage
from vitrine.data.scan import count_cpus, map_in_threads
from vitrine.data.source import Source

MAX_KEPT_EDGE_MAPS = 256  # some 34 MB
MIN_FOR_PROCESSES = 2000  # comparisons; fewer are done by threads before processes have started
PAIRS_AT_ONCE = 64
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


# Comparison of many pairs.


LoadEdgeMap = Callable[[int], EdgeMap]


def build_edge_map_loader(source: Source) -> LoadEdgeMap:
    """Return a function that loads the edge map of an image by index, with the latest ones cached."""

    @lru_cache(MAX_KEPT_EDGE_MAPS)
    def load(index: int) -> EdgeMap:
        """Load one edge map."""
        try:
            return load_edge_map(source.read(index)[0])
        except BadImage:  # readable before, and gone now: matches nothing
            return compute_edge_map(np.zeros((SIDE, SIDE), dtype=np.float32))

    return load


class ImageComparer:
    """Similarities of images of one or two sources, computed by threads, or by worker processes once there are many."""

    def __init__(self, *sources: Source) -> None:
        self.sources = sources
        self.loaders = [build_edge_map_loader(source) for source in sources]
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
            self.pool = ProcessPoolExecutor(count_cpus(), multiprocessing.get_context(), init_worker, self.sources)
        parts = [pairs[start : start + PAIRS_AT_ONCE] for start in range(0, len(pairs), PAIRS_AT_ONCE)]
        if self.pool is None:
            results = map_in_threads(lambda part: compare_pairs(self.loaders, parts[part], sides), len(parts))
        else:
            results = self.pool.map(compare_in_worker, parts, repeat(sides))
        for similarities in results:
            yield from similarities


def compare_pairs(loaders: Sequence[LoadEdgeMap], pairs: np.ndarray, sides: tuple[int, int]) -> list[float]:
    """Return the similarity of each pair (P, 2)."""
    load, load_other = loaders[sides[0]], loaders[sides[1]]
    return [compute_similarity(load(index), load_other(other)) for index, other in pairs.tolist()]


WORKER_LOADERS: list[LoadEdgeMap] = []  # in a worker process: the sources' edge maps


def init_worker(*sources: Source) -> None:
    """Keep the sources in a worker process, which leaves Ctrl-C to its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    WORKER_LOADERS[:] = [build_edge_map_loader(source) for source in sources]


def compare_in_worker(pairs: np.ndarray, sides: tuple[int, int]) -> list[float]:
    return compare_pairs(WORKER_LOADERS, pairs, sides)
