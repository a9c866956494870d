"""Images decoded once and held in memory, so that whole batches of them are augmented at a time."""

import numpy as np

from vitrine.data.config import BadImages
from vitrine.data.decode import BadImage
from vitrine.data.names import Names
from vitrine.data.reading import read_all
from vitrine.data.source import ArraySource, Source
from vitrine.data.stored import StoredImage
from vitrine.data.subset import Selection

MAX_BYTES = 2**34


class HeldSource(ArraySource):
    """Pixels in memory under the names that they had."""

    def __init__(self, pixels: np.ndarray, source: Source) -> None:
        super().__init__(pixels, source.labels, source.class_names, title="", files=source.files())
        self.names = Names.pack(source.name(index) for index in range(len(source)))

    def name(self, index: int) -> str:
        return self.names[index]


def hold_in_memory(source: Source, bad_images: BadImages = "error") -> Source:
    """The same images as an array; they must have one size. What cannot be read is an error, or left out with a notice."""
    if source.read_block(np.zeros(0, np.int64)) is not None:
        return source
    pixels = np.zeros((0, 0, 0, 3), dtype=np.uint8)
    good = []
    for index, image in read_all(source, StoredImage.pixels, bad_images):
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
    return HeldSource(pixels[: len(good)], source if len(good) == len(source) else Selection(source, np.array(good)))


def reserve(num_images: int, size: tuple[int, ...]) -> np.ndarray:
    num_bytes = num_images * size[0] * size[1] * 3
    if num_bytes > MAX_BYTES:
        raise ValueError(
            f"in_memory would take {num_bytes / 1e9:.0f} GB for {num_images} images of {size[0]} x {size[1]}: "
            "pack them instead (vitrine data pack)."
        )
    return np.empty((num_images, *size, 3), dtype=np.uint8)
