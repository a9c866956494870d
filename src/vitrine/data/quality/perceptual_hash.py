"""DCT hashes of images, search in millions of them.

Perceptual signatures: bits that stay when an image is compressed, resized, made brighter or cut a little at its edges.

The bits are the signs of the lowest frequencies of the grey image (its cosine transform), which for unrelated photographs are
as good as independent: of 64 bits, two of them differ in 32 on average, with a spread of 4.2. An image has two signatures, one
of it whole and one of its inner part, so that an image and a piece of it have one that is nearly the same.
Which of many signatures are nearly the same, without comparing each with each.

Copies differ in some bits, but seldom in many of the same band of 16 bits, and mostly in bits that were nearly the other way.
So the signatures lie sorted by each of their bands, and every query is looked up under its own band and under those that
differ from it in up to three of its weakest bits. What is found there is compared bit by bit.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from itertools import combinations, product
from typing import Self

import numpy as np
from PIL import Image
from scipy.fft import dctn

from vitrine.data.image import LazyImage
from vitrine.data.scan import count_cpus

SIDE = 32
MARGINS = (0.0, 0.04)  # what each signature leaves out at every edge
NUM_BITS = 128  # in two words: the first is searched by, the second only compared
NUM_BANDS, BAND_BITS = 4, 16  # of the first word
NUM_WEAK = 6  # bits of each band that are likeliest to differ in a copy: those of the smallest coefficients
LEAST_CONTRAST = 2.0  # standard deviation of the grey values; below, there is nothing to tell images apart by

# The lowest frequencies but for the mean, those of both axes alike; every fourth of the first 64 lies in the same band.
ORDER = sorted((row + column, max(row, column), row, column) for row in range(16) for column in range(16) if row + column > 0)
ROWS, COLUMNS = np.array([entry[2:] for entry in ORDER[:NUM_BITS]]).T
PLACES = np.concatenate([np.arange(64).reshape(BAND_BITS, NUM_BANDS).T.reshape(-1), np.arange(64, NUM_BITS)])
ROWS, COLUMNS = ROWS[PLACES], COLUMNS[PLACES]
BIT_VALUES = np.uint64(1) << np.arange(64, dtype=np.uint64)


@dataclass(frozen=True)
class PerceptualHashes:
    """Of N images."""

    words: np.ndarray
    """uint64 (N, views, 2)."""
    weak: np.ndarray
    """uint64 (N, views): bits of the first word that are set where a copy is likeliest to differ."""
    is_flat: np.ndarray
    """bool (N): without contrast, so that the bits say nothing."""

    def __len__(self) -> int:
        return len(self.words)

    def take(self, places: np.ndarray) -> "PerceptualHashes":
        return PerceptualHashes(*(getattr(self, field.name)[places] for field in fields(self)))

    @classmethod
    def join(cls, parts: "list[PerceptualHashes]") -> Self:
        return cls(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)))

    @classmethod
    def empty(cls, num_images: int) -> Self:
        """All flat, so that nothing is like anything."""
        words = np.zeros((num_images, len(MARGINS), NUM_BITS // 64), np.uint64)
        return cls(words, words[..., 0].copy(), np.ones(num_images, dtype=bool))


def compute_perceptual_hash(image: LazyImage) -> PerceptualHashes:
    """Of one image."""
    return sign(shrink(image, SIDE))


def shrink(image: LazyImage, side: int) -> np.ndarray:
    """The grey image (views, side, side), whole and without its margins, each drawn out to a square."""
    pixels = Image.fromarray(image.to_numpy(1, at_least=(2 * side, 2 * side))[..., 0])
    views = []
    for margin in MARGINS:
        box = (margin * pixels.width, margin * pixels.height, (1 - margin) * pixels.width, (1 - margin) * pixels.height)
        views.append(np.asarray(pixels.resize((side, side), Image.Resampling.BILINEAR, box), dtype=np.float32))
    return np.stack(views)


def sign(views: np.ndarray) -> PerceptualHashes:
    """From grey squares (views, 32, 32)."""
    frequencies = np.asarray(dctn(views, axes=(1, 2), norm="ortho"))[:, ROWS, COLUMNS]  # (views, 128)
    bits = (frequencies > 0).reshape(len(views), -1, 64)
    words = (bits * BIT_VALUES).sum(axis=2, dtype=np.uint64)  # (views, 2)
    weak = mark_weakest(np.abs(frequencies[:, :64]))
    return PerceptualHashes(words[None], weak[None], np.array([views[0].std() < LEAST_CONTRAST]))


def mark_weakest(sizes: np.ndarray) -> np.ndarray:
    """The smallest of each band (views, 64), as set bits."""
    bands = sizes.reshape(-1, NUM_BANDS, BAND_BITS)
    ranks = bands.argsort(axis=2).argsort(axis=2).reshape(-1, 64)
    return ((ranks < NUM_WEAK) * BIT_VALUES).sum(axis=1, dtype=np.uint64)


# Differing bits of the first word and of both. Of unrelated photographs, three pairs in a million are so near.
MOST_OF_64, MOST_OF_128 = 15, 36
MOST_FLIPS = 3
FLIPS = [chosen for count in range(MOST_FLIPS + 1) for chosen in combinations(range(NUM_WEAK), count)]  # 42
PAIRS_AT_ONCE = 2**21  # a bound on memory
QUERIES_AT_ONCE = 2048


def search(database: PerceptualHashes, queries: PerceptualHashes) -> np.ndarray:
    """Pairs (P, 2) of a number in the database and one of a query that are alike in some view; flat images have none."""
    found = [np.zeros((0, 2), np.int64)]
    usable = np.flatnonzero(~queries.is_flat)
    blocks = [usable[start : start + QUERIES_AT_ONCE] for start in range(0, len(usable), QUERIES_AT_ONCE)]
    with ThreadPoolExecutor(count_cpus()) as pool:
        for view, band in product(range(len(MARGINS)), range(NUM_BANDS)):
            table = BandTable(database, view, band)
            found += pool.map(lambda block, table=table: search_block(table, queries, block), blocks)
    return np.unique(np.concatenate(found), axis=0)


def search_both_ways(first: PerceptualHashes, second: PerceptualHashes) -> np.ndarray:
    """Pairs (P, 2) of one of the first and one of the second; the weak bits are the query's, so some are found one way only."""
    return np.unique(np.concatenate([search(first, second), search(second, first)[:, ::-1]]), axis=0)


class BandTable:
    """The signatures of one view, sorted by one band of theirs."""

    def __init__(self, database: PerceptualHashes, view: int, band: int) -> None:
        self.band = band
        numbers = np.flatnonzero(~database.is_flat)
        keys = read_band(database.words[numbers, view, 0], band)
        order = np.argsort(keys, kind="stable")
        self.numbers = numbers[order]
        self.words = database.words[self.numbers, view]  # (N, 2)
        self.counts = np.bincount(keys, minlength=2**BAND_BITS)  # of each band
        self.starts = np.cumsum(self.counts) - self.counts


def search_block(table: BandTable, queries: PerceptualHashes, block: np.ndarray) -> np.ndarray:
    """Pairs of some queries, in any of their views."""
    found = [np.zeros((0, 2), np.int64)]
    for view in range(len(MARGINS)):
        words = queries.words[block, view]
        keys = list_probes(words[:, 0], queries.weak[block, view], table.band)  # (Q, 42)
        firsts, counts = table.starts[keys].reshape(-1), table.counts[keys].reshape(-1)
        for part in split_evenly(counts):
            places = expand_ranges(firsts[part], counts[part])
            owners = np.repeat(np.arange(part.start, part.stop) // len(FLIPS), counts[part])
            is_near = count_differing(table.words[places, 0], words[owners, 0]) <= MOST_OF_64
            places, owners = places[is_near], owners[is_near]
            is_near = count_differing(table.words[places], words[owners]).sum(axis=1) <= MOST_OF_128
            found.append(np.stack([table.numbers[places[is_near]], block[owners[is_near]]], axis=1))
    return np.concatenate(found)


def list_probes(words: np.ndarray, weak: np.ndarray, band: int) -> np.ndarray:
    """The bands (Q, 42) under which to look: the query's own first, then with some of its weak bits the other way."""
    rest = read_band(weak, band)
    bits = np.empty((len(words), NUM_WEAK), dtype=np.int64)
    for place in range(NUM_WEAK):
        bits[:, place] = rest & np.negative(rest)  # the lowest bit that is set
        rest = rest - bits[:, place]
    flips = [bits[:, list(chosen)].sum(axis=1) for chosen in FLIPS]
    return read_band(words, band)[:, None] ^ np.stack(flips, axis=1)


def read_band(words: np.ndarray, band: int) -> np.ndarray:
    return (words >> np.uint64(band * BAND_BITS)).astype(np.int64) & (2**BAND_BITS - 1)


def count_differing(words: np.ndarray, others: np.ndarray) -> np.ndarray:
    return np.bitwise_count(words ^ others)


def split_evenly(counts: np.ndarray) -> Iterator[slice]:
    """Parts whose counts come to no more than `PAIRS_AT_ONCE`, or are a single one."""
    ends = np.cumsum(counts)
    start = 0
    while start < len(counts):
        done = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, done + PAIRS_AT_ONCE, side="right")))
        yield slice(start, stop)
        start = stop


def expand_ranges(firsts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """firsts[0], firsts[0] + 1, .. so many as counts[0], then those of the next."""
    shifts = firsts - (np.cumsum(counts) - counts)
    return np.repeat(shifts, counts) + np.arange(counts.sum())
