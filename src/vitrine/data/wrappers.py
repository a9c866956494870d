"""Sources made of other sources: concatenated, relabelled, or loaded into memory."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vitrine.core.console import progress_bar
from vitrine.data.config import TrainBadImages
from vitrine.data.image import BadImage, LazyImage
from vitrine.data.scan import map_images
from vitrine.data.source import ArraySource, Labels, PackedStrings, Source
from vitrine.data.subsets import SubsetSource

MAX_BYTES = 2**34  # of images in memory


class ConcatSource(Source):
    """Images of several sources, one source after the other; they have the same classes and different names."""

    def __init__(self, parts: Sequence[Source]) -> None:
        assert len({part.class_names for part in parts}) == 1
        self.parts = tuple(parts)
        self.starts = np.cumsum([0, *map(len, parts)])
        self.labels = Labels.concatenate([part.labels for part in parts])
        self.class_names = parts[0].class_names

    def find_part(self, index: int) -> tuple[Source, int]:
        """Return the source that has the image, and its index there."""
        number = int(np.searchsorted(self.starts, index, side="right")) - 1
        return self.parts[number], index - int(self.starts[number])

    def fetch(self, index: int) -> bytes | np.ndarray:
        part, index_in_part = self.find_part(index)
        return part.fetch(index_in_part)

    def name(self, index: int) -> str:
        part, index_in_part = self.find_part(index)
        return part.name(index_in_part)

    def image_path(self, index: int) -> Path | None:
        part, index_in_part = self.find_part(index)
        return part.image_path(index_in_part)

    def files(self) -> list[Path]:
        return list(dict.fromkeys(file for part in self.parts for file in part.files()))

    def read_block(self, indices: np.ndarray) -> np.ndarray | None:
        """Read many images at once from the sources they belong to, if all of these can."""
        numbers = np.searchsorted(self.starts, indices, side="right") - 1  # (B), the part of each image
        blocks = [part.read_block(indices[numbers == i] - self.starts[i]) for i, part in enumerate(self.parts)]
        if any(block is None for block in blocks) or len({block.shape[1:] for block in blocks if block is not None}) > 1:
            return None
        together = np.concatenate([block for block in blocks if block is not None])
        block = np.empty_like(together)
        block[np.argsort(numbers, kind="stable")] = together  # from part by part to the order of `indices`
        return block


class RelabelledSource(Source):
    """Images of another source with other labels and class names."""

    def __init__(self, source: Source, labels: Labels, class_names: tuple[str, ...]) -> None:
        assert len(labels) == len(source)
        self.source = source
        self.labels = labels
        self.class_names = class_names

    def fetch(self, index: int) -> bytes | np.ndarray:
        return self.source.fetch(index)

    def name(self, index: int) -> str:
        return self.source.name(index)

    def image_path(self, index: int) -> Path | None:
        return self.source.image_path(index)

    def files(self) -> list[Path]:
        return self.source.files()

    def read_block(self, indices: np.ndarray) -> np.ndarray | None:
        return self.source.read_block(indices)


class InMemorySource(ArraySource):
    """Decoded images of another source, with their original names."""

    def __init__(self, pixels: np.ndarray, source: Source) -> None:
        super().__init__(pixels, source.labels, source.class_names, title="", files=source.files())
        self.names = PackedStrings.pack(source.name(index) for index in range(len(source)))

    def name(self, index: int) -> str:
        return self.names[index]


def load_into_memory(source: Source, bad_images: TrainBadImages = "error") -> Source:
    """Decode all images, which must have one size, into an array; those that cannot be read are an error or left out."""
    if source.read_block(np.zeros(0, np.int64)) is not None:
        return source
    pixels = np.zeros((0, 0, 0, 3), dtype=np.uint8)
    loaded = []
    images = map_images(source, LazyImage.to_numpy, bad_images)
    for index, image in progress_bar(images, len(source), "Loading images into memory", is_delayed=True):
        height, width = image.shape[:2]
        if not loaded:
            if len(source) * image.size > MAX_BYTES:
                needed = f"{len(source) * image.size / 1e9:.0f} GB for {len(source)} images of {height} x {width}"
                raise ValueError(f"in_memory would need {needed}: use vitrine data pack instead.")
            pixels = np.empty((len(source), height, width, 3), dtype=np.uint8)
        if image.shape != pixels.shape[1:]:
            found = f"{source.name(index)} is {height} x {width}, others are {pixels.shape[1]} x {pixels.shape[2]}"
            raise ValueError(f"in_memory needs images of one size; {found}: use vitrine data pack instead.")
        pixels[len(loaded)] = image
        loaded.append(index)
    if not loaded:
        raise BadImage(f"None of the {len(source)} images can be read: restore the data.")
    kept = source if len(loaded) == len(source) else SubsetSource(source, np.array(loaded))
    return InMemorySource(pixels[: len(loaded)], kept)
