"""Which of many signatures are nearly the same, without comparing each with each.

Copies differ in some bits, but seldom in many of the same band of 16 bits, and mostly in bits that were nearly the other way.
So the signatures lie sorted by each of their bands, and every query is looked up under its own band and under those that
differ from it in up to three of its weakest bits. What is found there is compared bit by bit.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations, product

import numpy as np

from vitrine.data.reading import count_processors
from vitrine.data.signature import BAND_BITS, MARGINS, NUM_BANDS, NUM_WEAK, Signatures

# Differing bits of the first word and of both. Of unrelated photographs, three pairs in a million are so near.
MOST_OF_64, MOST_OF_128 = 15, 36
MOST_FLIPS = 3
FLIPS = [chosen for count in range(MOST_FLIPS + 1) for chosen in combinations(range(NUM_WEAK), count)]  # 42
PAIRS_AT_ONCE = 2**21  # a bound on memory
QUERIES_AT_ONCE = 2048


def search(database: Signatures, queries: Signatures) -> np.ndarray:
    """Pairs (P, 2) of a number in the database and one of a query that are alike in some view; flat images have none."""
    found = [np.zeros((0, 2), np.int64)]
    usable = np.flatnonzero(~queries.is_flat)
    blocks = [usable[start : start + QUERIES_AT_ONCE] for start in range(0, len(usable), QUERIES_AT_ONCE)]
    with ThreadPoolExecutor(count_processors()) as pool:
        for view, band in product(range(len(MARGINS)), range(NUM_BANDS)):
            table = BandTable(database, view, band)
            found += pool.map(lambda block, table=table: search_block(table, queries, block), blocks)
    return np.unique(np.concatenate(found), axis=0)


def search_both_ways(first: Signatures, second: Signatures) -> np.ndarray:
    """Pairs (P, 2) of one of the first and one of the second; the weak bits are the query's, so some are found one way only."""
    return np.unique(np.concatenate([search(first, second), search(second, first)[:, ::-1]]), axis=0)


class BandTable:
    """The signatures of one view, sorted by one band of theirs."""

    def __init__(self, database: Signatures, view: int, band: int) -> None:
        self.band = band
        numbers = np.flatnonzero(~database.is_flat)
        keys = read_band(database.words[numbers, view, 0], band)
        order = np.argsort(keys, kind="stable")
        self.numbers = numbers[order]
        self.words = database.words[self.numbers, view]  # (N, 2)
        self.counts = np.bincount(keys, minlength=2**BAND_BITS)  # of each band
        self.starts = np.cumsum(self.counts) - self.counts


def search_block(table: BandTable, queries: Signatures, block: np.ndarray) -> np.ndarray:
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
