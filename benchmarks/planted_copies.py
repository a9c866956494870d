"""How many copies are found, and what else is taken for one: `python benchmarks/planted_copies.py FOLDER ...`.

Of every image of the folders, copies are made in memory: recompressed (JPEG 50), at half the size, brightened by 30 %, and with
5 % cut off, in three ways. Then each is searched for among the originals, as `vitrine data duplicates` does. Pairs of different
originals are counted too: they are real near duplicates or mistakes, which only looking at them can tell, so their names are
printed. `--json FILE` keeps the figures.
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
from vitrine.data.quality.image_stats import CHUNK, ImageStats, look_at_chunks
from vitrine.data.source import Labels, Source

NEEDED = {"recompressed": 0.99, "half size": 0.99, "brightened": 0.99, "cut": 0.95}


def main(folders: tyro.conf.Positional[tuple[str, ...]], json: Path | None = None) -> None:
    results = {}
    for folder in folders:
        data = find_data(folder)
        for split in data.splits or (None,):
            source = data.open(split)
            results[f"{Path(folder).name} {split or ''}".strip()] = measure(source)
    columns = ("images", "number", *COPIES, "pairs of originals", "per 1000")
    print_table(columns, [format_row(name, result) for name, result in results.items()])
    for result in results.values():
        for first, second, likeness in result["pairs"]:
            print(f"{likeness:.3f}  {first}  {second}")
    if json is not None:
        write_json(json, results)


def measure(source: Source) -> dict:
    survey = look(source)
    recall = {}
    for kind, copy in COPIES.items():
        copies = Copies(source, copy)
        pairs = find_duplicates_between(survey, source, look(copies), copies)
        recall[kind] = float(np.sum(pairs.indices[:, 0] == pairs.indices[:, 1]) / len(source))
    return {"num_images": len(source), "recall": recall, "pairs": name_pairs(find_duplicates_within(survey, source), source)}


def name_pairs(pairs: DuplicatePairs, source: Source) -> list[tuple[str, str, float]]:
    named = [
        (source.name(a), source.name(b), float(c)) for (a, b), c in zip(pairs.indices.tolist(), pairs.similarity, strict=True)
    ]
    return sorted(named, key=lambda entry: entry[2])


def format_row(name: str, result: dict) -> list[str]:
    shares = [f"{share:.4f}" for share in result["recall"].values()]
    per_thousand = 1000 * len(result["pairs"]) / result["num_images"]
    return [name, str(result["num_images"]), *shares, str(len(result["pairs"])), f"{per_thousand:.2f}"]


def look(source: Source) -> ImageStats:
    chunks = [range(start, min(start + CHUNK, len(source))) for start in range(0, len(source), CHUNK)]
    return ImageStats.join(list(look_at_chunks(source, chunks)))


class Copies(Source):
    """The images of a source, each changed."""

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
    return image  # written with less quality


def halve(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    return image.resize((max(1, image.width // 2), max(1, image.height // 2)), Image.Resampling.BICUBIC)


def brighten(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    return ImageEnhance.Brightness(image).enhance(1.3)


def cut_somewhere(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    """5 % of the width and of the height, divided at random between the two ends."""
    left, top = (0.05 * generator.random(2)).tolist()
    return cut(image, left, top, 0.05 - left, 0.05 - top)


def cut_each_edge(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    return cut(image, 0.05, 0.05, 0.05, 0.05)


def cut_one_edge(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    return cut(image, 0.05, 0, 0, 0)


def cut(image: Image.Image, left: float, top: float, right: float, bottom: float) -> Image.Image:
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
