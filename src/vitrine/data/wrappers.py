"""Sources made of sources: joined, relabelled, in memory.

Several sources one after another, as one.
The images of a source under other labels.
Images decoded once and held in memory, so that whole batches of them are augmented at a time.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vitrine.data.config import BadImages
from vitrine.data.image import BadImage, LazyImage
from vitrine.data.scan import map_images
from vitrine.data.source import ArraySource, Labels, PackedStrings, Source
from vitrine.data.subsets import SubsetSource


class ConcatSource(Source):
    """Images of all parts, whose classes are the same and whose names differ, in the order of the parts."""

    def __init__(self, parts: Sequence[Source]) -> None:
        assert len({part.class_names for part in parts}) == 1
        self.parts = tuple(parts)
        self.starts = np.cumsum([0, *map(len, parts)])
        self.labels = Labels.concatenate([part.labels for part in parts])
        self.class_names = parts[0].class_names

    def find(self, index: int) -> tuple[Source, int]:
        """The part that has the image, and its number there."""
        place = int(np.searchsorted(self.starts, index, side="right")) - 1
        return self.parts[place], index - int(self.starts[place])

    def fetch(self, index: int) -> bytes | np.ndarray:
        part, within = self.find(index)
        return part.fetch(within)

    def name(self, index: int) -> str:
        part, within = self.find(index)
        return part.name(within)

    def files(self) -> list[Path]:
        return list(dict.fromkeys(file for part in self.parts for file in part.files()))

    def read_block(self, indices: np.ndarray) -> np.ndarray | None:
        places = np.searchsorted(self.starts, indices, side="right") - 1  # (B)
        blocks = [part.read_block(indices[places == i] - self.starts[i]) for i, part in enumerate(self.parts)]
        if any(block is None for block in blocks) or len({block.shape[1:] for block in blocks if block is not None}) > 1:
            return None
        order = np.argsort(places, kind="stable")  # from here to there: the images part by part
        together = np.concatenate([block for block in blocks if block is not None])
        block = np.empty_like(together)
        block[order] = together
        return block


class RelabelledSource(Source):
    def __init__(self, source: Source, labels: Labels, class_names: tuple[str, ...]) -> None:
        assert len(labels) == len(source)
        self.source = source
        self.labels = labels
        self.class_names = class_names

    def fetch(self, index: int) -> bytes | np.ndarray:
        return self.source.fetch(index)

    def name(self, index: int) -> str:
        return self.source.name(index)

    def files(self) -> list[Path]:
        return self.source.files()

    def read_block(self, indices: np.ndarray) -> np.ndarray | None:
        return self.source.read_block(indices)


MAX_BYTES = 2**34


class InMemorySource(ArraySource):
    """Pixels in memory under the names that they had."""

    def __init__(self, pixels: np.ndarray, source: Source) -> None:
        super().__init__(pixels, source.labels, source.class_names, title="", files=source.files())
        self.names = PackedStrings.pack(source.name(index) for index in range(len(source)))

    def name(self, index: int) -> str:
        return self.names[index]


def load_into_memory(source: Source, bad_images: BadImages = "error") -> Source:
    """The same images as an array; they must have one size. What cannot be read is an error, or left out with a notice."""
    if source.read_block(np.zeros(0, np.int64)) is not None:
        return source
    pixels = np.zeros((0, 0, 0, 3), dtype=np.uint8)
    good = []
    for index, image in map_images(source, LazyImage.to_numpy, bad_images):
        if not good:
            pixels = reserve(len(source), image.shape[:2])
        if image.shape != pixels.shape[1:]:
            shapes = (f"{shape[0]} x {shape[1]}" for shape in (image.shape, pixels.shape[1:]))
            raise ValueError(
                f"in_memory needs images of one size, and {source.name(index)} is {' where others are '.join(shapes)}: "
                "pack them instead (vitrine data pack)."
            )
        pixels[len(good)] = image
        good.append(index)
    if not good:
        raise BadImage(f"None of the {len(source)} images can be read: fetch the data again.")
    return InMemorySource(pixels[: len(good)], source if len(good) == len(source) else SubsetSource(source, np.array(good)))


def reserve(num_images: int, size: tuple[int, ...]) -> np.ndarray:
    num_bytes = num_images * size[0] * size[1] * 3
    if num_bytes > MAX_BYTES:
        raise ValueError(
            f"in_memory would take {num_bytes / 1e9:.0f} GB for {num_images} images of {size[0]} x {size[1]}: "
            "pack them instead (vitrine data pack)."
        )
    return np.empty((num_images, *size, 3), dtype=np.uint8)
