"""Perceptual hashes of images, and search for similar ones among millions.

A hash holds the signs of the lowest frequencies (cosine transform) of the grey image. They survive compression, resizing,
brightening and slight cropping. For unrelated photographs they are nearly independent: of 64 bits, 32 differ on average, with
a standard deviation of 4.2. Every image has two hashes, of the whole image and of its inner part, so that an image and a crop
of it share one.

Search compares no hash with all others. Duplicates seldom differ in many bits of one band of 16, and mostly in bits whose
coefficient was close to zero (weak bits). So hashes are sorted by each band, and a query is looked up under its own band and
under the bands that differ from it in up to three weak bits. Candidates found there are compared bit by bit.

Letters: N images, Q queries, P pairs, V views (the whole image and its inner part).
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from itertools import product
from typing import Self

import numpy as np
from PIL import Image
from scipy.fft import dctn

from vitrine.data.image import LazyImage
from vitrine.data.scan import count_cpus

SIDE = 32
MARGINS = (0.0, 0.04)  # fraction that each view leaves out at every edge
NUM_BITS = 128  # in two words: the first is searched by, the second only compared
NUM_BANDS, BAND_BITS = 4, 16  # of the first word
NUM_WEAK = 6  # bits of each band with the smallest coefficients, likeliest to differ in a duplicate
MIN_CONTRAST = 2.0  # standard deviation of the grey values; below it, the bits are noise
BIT_VALUES = np.uint64(1) << np.arange(64, dtype=np.uint64)


def list_frequencies() -> tuple[np.ndarray, np.ndarray]:
    """Return rows and columns (128) of the DCT coefficients behind the bits: the lowest ones without the mean.

    Every fourth of the first 64 falls into the same band, so that each band has low and high frequencies.
    """
    by_frequency = sorted(
        (row + column, max(row, column), row, column) for row in range(16) for column in range(16) if row + column > 0
    )
    rows, columns = np.array([entry[2:] for entry in by_frequency[:NUM_BITS]]).T
    order = np.concatenate([np.arange(64).reshape(BAND_BITS, NUM_BANDS).T.reshape(-1), np.arange(64, NUM_BITS)])
    return rows[order], columns[order]


ROWS, COLUMNS = list_frequencies()


@dataclass(frozen=True)
class PerceptualHashes:
    """The hashes of N images."""

    words: np.ndarray
    """uint64 (N, V, 2)."""
    weak: np.ndarray
    """uint64 (N, V): the weak bits of the first word are set."""
    is_flat: np.ndarray
    """bool (N): an image without contrast, which matches nothing."""

    def __len__(self) -> int:
        return len(self.words)

    def take(self, indices: np.ndarray) -> "PerceptualHashes":
        """Return the hashes of some images."""
        return PerceptualHashes(*(getattr(self, field.name)[indices] for field in fields(self)))

    @classmethod
    def join(cls, parts: "list[PerceptualHashes]") -> Self:
        """Concatenate the hashes of several chunks of images."""
        return cls(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)))

    @classmethod
    def empty(cls, num_images: int) -> Self:
        """Return placeholders for unreadable images: all flat, so that they match nothing."""
        words = np.zeros((num_images, len(MARGINS), NUM_BITS // 64), np.uint64)
        return cls(words, words[..., 0].copy(), np.ones(num_images, dtype=bool))


def compute_perceptual_hash(image: LazyImage) -> PerceptualHashes:
    """Compute the hashes of one image."""
    return hash_views(resize_to_views(image, SIDE))


def resize_to_views(image: LazyImage, side: int) -> np.ndarray:
    """Return the grey image (V, side, side), whole and without margins, each stretched to a square."""
    pixels = Image.fromarray(image.to_numpy(1, at_least=(2 * side, 2 * side))[..., 0])
    views = []
    for margin in MARGINS:
        box = (margin * pixels.width, margin * pixels.height, (1 - margin) * pixels.width, (1 - margin) * pixels.height)
        views.append(np.asarray(pixels.resize((side, side), Image.Resampling.BILINEAR, box), dtype=np.float32))
    return np.stack(views)


def hash_views(views: np.ndarray) -> PerceptualHashes:
    """Compute the hashes of one image from its grey views (V, 32, 32)."""
    coefficients = np.asarray(dctn(views, axes=(1, 2), norm="ortho"))[:, ROWS, COLUMNS]  # (V, 128)
    bits = (coefficients > 0).reshape(len(views), -1, 64)
    words = (bits * BIT_VALUES).sum(axis=2, dtype=np.uint64)  # (V, 2)
    weak = mark_weak_bits(np.abs(coefficients[:, :64]))
    return PerceptualHashes(words[None], weak[None], np.array([views[0].std() < MIN_CONTRAST]))


def mark_weak_bits(magnitudes: np.ndarray) -> np.ndarray:
    """Set the bits of the smallest coefficients of each band, from magnitudes (V, 64) to words (V)."""
    bands = magnitudes.reshape(-1, NUM_BANDS, BAND_BITS)
    ranks = bands.argsort(axis=2).argsort(axis=2).reshape(-1, 64)
    return ((ranks < NUM_WEAK) * BIT_VALUES).sum(axis=1, dtype=np.uint64)


# Search.

# Differing bits of the first word and of both words. Three in a million pairs of unrelated photographs are this close.
MAX_DIFFERENT_OF_64, MAX_DIFFERENT_OF_128 = 15, 36
MAX_FLIPS = 3
FLIPS = np.array([flips for flips in product((0, 1), repeat=NUM_WEAK) if sum(flips) <= MAX_FLIPS])  # (42, 6), the first: none
MAX_PAIRS_AT_ONCE = 2**21  # bounds memory
QUERIES_AT_ONCE = 2048


def search(database: PerceptualHashes, queries: PerceptualHashes) -> np.ndarray:
    """Find similar images: pairs (P, 2) of a database index and a query index that are close in some view."""
    return HashIndex(database, np.arange(len(database))).search(queries, np.arange(len(queries)))


def search_both_ways(first: PerceptualHashes, second: PerceptualHashes) -> np.ndarray:
    """Find pairs (P, 2) of one image of each set. Weak bits are the query's, so both sets are searched with the other."""
    return unique_pairs(np.concatenate([search(first, second), search(second, first)[:, ::-1]]))


def unique_pairs(pairs: np.ndarray) -> np.ndarray:
    """Return the different ones of pairs of indices (P, 2), sorted."""
    stride = int(pairs.max(initial=0)) + 1
    codes = np.sort(pairs[:, 0] * stride + pairs[:, 1])
    codes = codes[np.diff(codes, prepend=-1) > 0]  # five times as fast as np.unique, which hashes
    return np.stack(np.divmod(codes, stride), axis=1)


class HashIndex:
    """The hashes of some images, in a table for each view and band."""

    def __init__(self, hashes: PerceptualHashes, indices: np.ndarray) -> None:
        self.size = len(indices)
        usable = indices[~hashes.is_flat[indices]]
        self.tables = [BandTable(hashes, usable, view, band) for view, band in product(range(len(MARGINS)), range(NUM_BANDS))]

    def search(self, queries: PerceptualHashes, indices: np.ndarray) -> np.ndarray:
        """Find pairs (P, 2), sorted, of an index of an image here and of one of the given queries."""
        usable = indices[~queries.is_flat[indices]]
        blocks = [usable[start : start + QUERIES_AT_ONCE] for start in range(0, len(usable), QUERIES_AT_ONCE)]
        if len(blocks) < 2:  # starting threads takes longer than one block
            return self.search_tables(queries, usable)
        with ThreadPoolExecutor(count_cpus()) as pool:
            return unique_pairs(np.concatenate(list(pool.map(lambda block: self.search_tables(queries, block), blocks))))

    def search_tables(self, queries: PerceptualHashes, block: np.ndarray) -> np.ndarray:
        """Find the different pairs of a block of queries. Most pairs are in several tables."""
        pairs = np.zeros((0, 2), np.int64)
        for table in self.tables:
            pairs = unique_pairs(np.concatenate([pairs, search_block(table, queries, block)]))
        return pairs


class BandTable:
    """The hashes of one view, sorted by one band, so that all with a given band are a range."""

    def __init__(self, hashes: PerceptualHashes, indices: np.ndarray, view: int, band: int) -> None:
        self.view, self.band = view, band
        keys = extract_band(hashes.words[indices, view, 0], band)
        self.indices = indices[np.argsort(keys.astype(np.uint16), kind="stable")]  # 16 bits are sorted by radix
        self.words = hashes.words[self.indices, view]  # (N, 2)
        self.counts = np.bincount(keys, minlength=2**BAND_BITS)
        self.starts = np.cumsum(self.counts) - self.counts


def search_block(table: BandTable, queries: PerceptualHashes, block: np.ndarray) -> np.ndarray:
    """Find the matches of a block of queries, in any of their views, in one table."""
    pairs = [np.zeros((0, 2), np.int64)]
    for view in range(len(MARGINS)):
        words = queries.words[block, view]
        keys = list_probes(words[:, 0], queries.weak[block, view], table.band)  # (Q, 42)
        starts, counts = table.starts[keys].reshape(-1), table.counts[keys].reshape(-1)
        for part in split_by_sum(counts):
            rows = expand_ranges(starts[part], counts[part])
            owners = np.repeat(np.arange(part.start, part.stop) // len(FLIPS), counts[part])
            is_close = np.bitwise_count(table.words[rows, 0] ^ words[owners, 0]) <= MAX_DIFFERENT_OF_64
            rows, owners = rows[is_close], owners[is_close]
            is_close = np.bitwise_count(table.words[rows] ^ words[owners]).sum(axis=1) <= MAX_DIFFERENT_OF_128
            pairs.append(np.stack([table.indices[rows[is_close]], block[owners[is_close]]], axis=1))
    return np.concatenate(pairs)


def list_probes(words: np.ndarray, weak: np.ndarray, band: int) -> np.ndarray:
    """Return the bands (Q, 42) to look up for each query: its own first, then those with up to three weak bits flipped."""
    rest = extract_band(weak, band)
    bits = np.empty((len(words), NUM_WEAK), dtype=np.int64)
    for position in range(NUM_WEAK):
        bits[:, position] = rest & np.negative(rest)  # the lowest bit that is set
        rest = rest - bits[:, position]
    return extract_band(words, band)[:, None] ^ (bits @ FLIPS.T)


def extract_band(words: np.ndarray, band: int) -> np.ndarray:
    """Return 16 bits of each word as an integer."""
    return (words >> np.uint64(band * BAND_BITS)).astype(np.int64) & (2**BAND_BITS - 1)


def split_by_sum(counts: np.ndarray) -> Iterator[slice]:
    """Yield consecutive slices whose counts add up to at most MAX_PAIRS_AT_ONCE, or hold a single entry."""
    ends = np.cumsum(counts)
    start = 0
    while start < len(counts):
        done = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, done + MAX_PAIRS_AT_ONCE, side="right")))
        yield slice(start, stop)
        start = stop


def expand_ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Concatenate the integer ranges that begin at `starts` and have `counts` elements."""
    shifts = starts - (np.cumsum(counts) - counts)
    return np.repeat(shifts, counts) + np.arange(counts.sum())
