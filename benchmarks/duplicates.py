"""How long a search for near duplicates takes: `python benchmarks/duplicates.py`.

50,000 images against 10,000 to a million, two signatures each, in which copies of 1,000 queries are hidden that differ in 8 of
their 64 searched bits, any of them, which is harder than real copies, whose weak bits differ. Bits are random, as those of
unrelated photographs nearly are. A minute or two on two cores; `--json FILE` keeps the figures.
"""

import resource
import time
from pathlib import Path

import numpy as np
import tyro

from vitrine.core.console import format_bytes, print_table
from vitrine.core.files import write_json
from vitrine.data.quality.perceptual_hash import BAND_BITS, NUM_BANDS, NUM_WEAK, PerceptualHashes, search_both_ways

MOST_SECONDS = 60.0  # for a million
NUM_COPIES, NUM_FLIPPED = 1_000, 8


def main(
    sizes: tuple[int, ...] = (10_000, 100_000, 1_000_000), num_queries: int = 50_000, seed: int = 0, json: Path | None = None
) -> None:
    generator = np.random.default_rng(seed)
    queries = draw(generator, num_queries)
    results = []
    for size in sizes:
        database = draw(generator, size)
        hide_copies(database, queries, generator)
        start = time.perf_counter()
        pairs = search_both_ways(database, queries)
        seconds = time.perf_counter() - start
        num_found = int(np.sum(pairs[:, 0] == pairs[:, 1] * (size // NUM_COPIES)))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        results.append({"size": size, "seconds": seconds, "copies_found": num_found, "pairs": len(pairs), "memory_bytes": peak})
    rows = [
        (f"{each['size']:,}", f"{each['seconds']:.1f}", f"{each['copies_found']} of {NUM_COPIES}", f"{each['pairs']:,}",
         format_bytes(each["memory_bytes"]))
        for each in results
    ]  # fmt: skip
    print_table((f"images, searched for {num_queries:,}", "seconds", "copies found", "pairs to look at", "memory so far"), rows)
    verdict = "met" if results[-1]["seconds"] < MOST_SECONDS else "missed"
    print(f"{results[-1]['size']:,} images in {results[-1]['seconds']:.1f} s (needs < {MOST_SECONDS:g}: {verdict})")
    if json is not None:
        write_json(json, {"num_queries": num_queries, "seed": seed, "results": results})


def draw(generator: np.random.Generator, num_images: int) -> PerceptualHashes:
    words = generator.integers(0, 2**64, (num_images, 2, 2), dtype=np.uint64)
    ranks = generator.random((4096, NUM_BANDS, BAND_BITS)).argsort(axis=2).argsort(axis=2)
    weak = np.packbits((ranks < NUM_WEAK).reshape(-1, 64), axis=1, bitorder="little").view(np.uint64)[:, 0]
    return PerceptualHashes(words, generator.choice(weak, (num_images, 2)), np.zeros(num_images, dtype=bool))


def hide_copies(database: PerceptualHashes, queries: PerceptualHashes, generator: np.random.Generator) -> None:
    """Query i, with some bits the other way, at place i of every so many."""
    step = len(database) // NUM_COPIES
    for number in range(NUM_COPIES):
        flipped = generator.choice(64, NUM_FLIPPED, replace=False).astype(np.uint64)
        database.words[number * step] = queries.words[number]
        database.words[number * step, :, 0] ^= np.bitwise_or.reduce(np.uint64(1) << flipped)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
