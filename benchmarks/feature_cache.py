"""Time cached features against computing them: `python benchmarks/feature_cache.py MODEL DATA`.

Each round computes the features of all training images into an empty cache and then reads them from it, which includes
checking that neither model nor images have changed. `--json FILE` writes the results.
"""

import statistics
import tempfile
import time
from pathlib import Path

import torch
import tyro
from rich.console import Console

from vitrine.core.files import write_json
from vitrine.data.open_data import find_data
from vitrine.evaluation.features import FeatureCache
from vitrine.evaluation.predictor import Predictor

MIN_RATIO = 50.0


def main(model: tyro.conf.Positional[str], data: tyro.conf.Positional[str], rounds: int = 3, json: Path | None = None) -> None:
    """Time both in each round; print and save the results."""
    if rounds < 1:
        raise SystemExit(f"--rounds {rounds} must be at least 1.")
    predictor, source = Predictor(model, "cpu", show_progress=True), find_data(data).open_train()
    ratios, seconds = [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            cache = FeatureCache(Path(folder))
            times = []
            for _ in range(2):
                start = time.perf_counter()
                predictor.features(source, cache)
                times.append(time.perf_counter() - start)
        seconds.append(times)
        ratios.append(times[0] / times[1])
    ratio = statistics.median(ratios)
    console = Console()
    computed, cached = (statistics.median(column) for column in zip(*seconds, strict=True))
    console.print(f"{len(source)} images: computed in {computed:.1f} s, cached in {cached:.3f} s")
    console.print(f"cache is {ratio:.0f} times faster (needs >= {MIN_RATIO:g}: {'met' if ratio >= MIN_RATIO else 'missed'})")
    if json is not None:
        write_json(json, {"torch": torch.__version__, "num_images": len(source), "seconds": seconds, "ratio": ratio})


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
