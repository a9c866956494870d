"""Time of a search for near duplicates: `python benchmarks/duplicates.py`.

The perceptual hashes of 50,000 images are searched among those of 10,000 to a million. Bits are random, as those of unrelated
photographs nearly are. Each database contains copies of 1,000 queries, which differ in any 8 of their 64 searched bits; real
copies are easier to find, because their weak bits differ. Takes a minute or two on two cores; `--json FILE` saves the results.
"""

import resource
import time
from pathlib import Path

import numpy as np
import tyro

from vitrine.core.console import format_bytes, print_table
from vitrine.core.files import write_json
from vitrine.data.quality.perceptual_hash import BAND_BITS, NUM_BANDS, NUM_WEAK, PerceptualHashes, search_both_ways

MAX_SECONDS = 60.0  # for a million images
NUM_COPIES, NUM_FLIPPED = 1_000, 8


def main(
    sizes: tuple[int, ...] = (10_000, 100_000, 1_000_000), num_queries: int = 50_000, seed: int = 0, json: Path | None = None
) -> None:
    """Search databases of each size; print and save the results."""
    generator = np.random.default_rng(seed)
    queries = draw_hashes(generator, num_queries)
    results = []
    for size in sizes:
        database = draw_hashes(generator, size)
        plant_copies(database, queries, generator)
        start = time.perf_counter()
        pairs = search_both_ways(database, queries)
        seconds = time.perf_counter() - start
        num_found = int(np.sum(pairs[:, 0] == pairs[:, 1] * (size // NUM_COPIES)))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        results.append({"size": size, "seconds": seconds, "copies_found": num_found, "pairs": len(pairs), "memory_bytes": peak})
    rows = [
        (f"{row['size']:,}", f"{row['seconds']:.1f}", f"{row['copies_found']} of {NUM_COPIES}", f"{row['pairs']:,}",
         format_bytes(row["memory_bytes"]))
        for row in results
    ]  # fmt: skip
    print_table((f"images, {num_queries:,} queries", "seconds", "copies found", "candidate pairs", "peak memory"), rows)
    verdict = "met" if results[-1]["seconds"] < MAX_SECONDS else "missed"
    print(f"{results[-1]['size']:,} images in {results[-1]['seconds']:.1f} s (needs < {MAX_SECONDS:g}: {verdict})")
    if json is not None:
        write_json(json, {"num_queries": num_queries, "seed": seed, "results": results})


def draw_hashes(generator: np.random.Generator, num_images: int) -> PerceptualHashes:
    """Draw hashes with random bits and random weak bits."""
    words = generator.integers(0, 2**64, (num_images, 2, 2), dtype=np.uint64)
    ranks = generator.random((4096, NUM_BANDS, BAND_BITS)).argsort(axis=2).argsort(axis=2)
    weak = np.packbits((ranks < NUM_WEAK).reshape(-1, 64), axis=1, bitorder="little").view(np.uint64)[:, 0]
    return PerceptualHashes(words, generator.choice(weak, (num_images, 2)), np.zeros(num_images, dtype=bool))


def plant_copies(database: PerceptualHashes, queries: PerceptualHashes, generator: np.random.Generator) -> None:
    """Overwrite every `step`-th hash of the database by a query with some bits flipped."""
    step = len(database) // NUM_COPIES
    for number in range(NUM_COPIES):
        flipped = generator.choice(64, NUM_FLIPPED, replace=False).astype(np.uint64)
        database.words[number * step] = queries.words[number]
        database.words[number * step, :, 0] ^= np.bitwise_or.reduce(np.uint64(1) << flipped)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
