"""Recall and false positives of duplicate detection: `python benchmarks/planted_copies.py FOLDER ...`.

Copies of every image of the folders are made in memory: recompressed (JPEG quality 50), at half the size, brightened by 30 %,
and cropped by 5 % in three ways. Each kind is searched for among the originals, as `vitrine data duplicates` does. Pairs of
different originals are real near duplicates or mistakes; only looking at them can tell, so their names are printed.
`--json FILE` saves the results.
"""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tyro
from PIL import Image, ImageEnhance

from vitrine.core.console import print_table
from vitrine.core.files import write_json
from vitrine.data.open_data import find_data
from vitrine.data.quality.duplicates import DuplicatePairs, find_duplicates_between, find_duplicates_within
from vitrine.data.quality.image_stats import compute_image_stats
from vitrine.data.source import Labels, Source


def main(folders: tyro.conf.Positional[tuple[str, ...]], json: Path | None = None) -> None:
    """Measure every split of every folder; print and save the results."""
    results = {}
    for folder in folders:
        data = find_data(folder)
        for split in data.splits or (None,):
            source = data.open(split)
            results[f"{Path(folder).name} {split or ''}".strip()] = measure(source)
    columns = ("images", "number", *COPIES, "pairs of originals", "per 1000")
    print_table(columns, [format_row(name, result) for name, result in results.items()])
    for result in results.values():
        for first, second, similarity in result["pairs"]:
            print(f"{similarity:.3f}  {first}  {second}")
    if json is not None:
        write_json(json, results)


def measure(source: Source) -> dict:
    """Return the recall of each kind of copy, and the pairs found among the originals."""
    stats = compute_image_stats(source, "originals")
    recall = {}
    for kind, copy in COPIES.items():
        copies = Copies(source, copy)
        pairs = find_duplicates_between(stats, source, compute_image_stats(copies, kind), copies)
        recall[kind] = float(np.sum(pairs.indices[:, 0] == pairs.indices[:, 1]) / len(source))
    return {"num_images": len(source), "recall": recall, "pairs": name_pairs(find_duplicates_within(stats, source), source)}


def name_pairs(pairs: DuplicatePairs, source: Source) -> list[tuple[str, str, float]]:
    """Return the names of both images of each pair and their similarity, the least similar first."""
    rows = zip(pairs.indices.tolist(), pairs.similarity.tolist(), strict=True)
    named = [(source.name(first), source.name(second), similarity) for (first, second), similarity in rows]
    return sorted(named, key=lambda row: row[2])


def format_row(name: str, result: dict) -> list[str]:
    recalls = [f"{recall:.4f}" for recall in result["recall"].values()]
    per_thousand = 1000 * len(result["pairs"]) / result["num_images"]
    return [name, str(result["num_images"]), *recalls, str(len(result["pairs"])), f"{per_thousand:.2f}"]


class Copies(Source):
    """The images of a source, each changed by a function."""

    def __init__(self, source: Source, change: Callable[[Image.Image, np.random.Generator], Image.Image]) -> None:
        self.source, self.change = source, change
        self.labels = Labels.none_each(len(source))
        self.class_names = ()

    def fetch(self, index: int) -> bytes:
        image = self.change(self.source.read(index)[0].to_pil(), np.random.default_rng(index))
        content = io.BytesIO()
        image.save(content, "JPEG", quality=50 if self.change is recompress else 95)
        return content.getvalue()

    def name(self, index: int) -> str:
        return f"copy of {self.source.name(index)}"

    def files(self) -> list[Path]:
        return []


def recompress(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    return image  # `Copies.fetch` writes it with a lower quality


def halve(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    return image.resize((max(1, image.width // 2), max(1, image.height // 2)), Image.Resampling.BICUBIC)


def brighten(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    return ImageEnhance.Brightness(image).enhance(1.3)


def cut_somewhere(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    """Cut off 5 % of width and height, divided at random between the two ends."""
    left, top = (0.05 * generator.random(2)).tolist()
    return cut(image, left, top, 0.05 - left, 0.05 - top)


def cut_each_edge(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    return cut(image, 0.05, 0.05, 0.05, 0.05)


def cut_one_edge(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    return cut(image, 0.05, 0, 0, 0)


def cut(image: Image.Image, left: float, top: float, right: float, bottom: float) -> Image.Image:
    """Cut off the given fractions of width and height."""
    width, height = image.size
    return image.crop((round(left * width), round(top * height), round((1 - right) * width), round((1 - bottom) * height)))


COPIES = {
    "recompressed": recompress,
    "half size": halve,
    "brightened": brighten,
    "cut somewhere": cut_somewhere,
    "cut at each edge": cut_each_edge,
    "cut at one edge": cut_one_edge,
}

if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
