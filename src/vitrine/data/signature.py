"""Perceptual signatures: bits that stay when an image is compressed, resized, made brighter or cut a little at its edges.

The bits are the signs of the lowest frequencies of the grey image (its cosine transform), which for unrelated photographs are
as good as independent: of 64 bits, two of them differ in 32 on average, with a spread of 4.2. An image has two signatures, one
of it whole and one of its inner part, so that an image and a piece of it have one that is nearly the same.
"""

from dataclasses import dataclass, fields
from typing import Self

import numpy as np
from PIL import Image
from scipy.fft import dctn

from vitrine.data.stored import StoredImage

SIDE = 32
MARGINS = (0.0, 0.04)  # what each signature leaves out at every edge
NUM_BITS = 128  # in two words: the first is searched by, the second only compared
NUM_BANDS, BAND_BITS = 4, 16  # of the first word
NUM_WEAK = 6  # bits of each band that are likeliest to differ in a copy: those of the smallest coefficients
LEAST_CONTRAST = 2.0  # standard deviation of the grey values; below, there is nothing to tell images apart by

# The lowest frequencies but for the mean, those of both axes alike; every fourth of the first 64 lies in the same band.
ORDER = sorted((row + column, max(row, column), row, column) for row in range(16) for column in range(16) if row + column > 0)
ROWS, COLUMNS = np.array([entry[2:] for entry in ORDER[:NUM_BITS]]).T
PLACES = np.concatenate([np.arange(64).reshape(BAND_BITS, NUM_BANDS).T.reshape(-1), np.arange(64, NUM_BITS)])
ROWS, COLUMNS = ROWS[PLACES], COLUMNS[PLACES]
BIT_VALUES = np.uint64(1) << np.arange(64, dtype=np.uint64)


@dataclass(frozen=True)
class Signatures:
    """Of N images."""

    words: np.ndarray
    """uint64 (N, views, 2)."""
    weak: np.ndarray
    """uint64 (N, views): bits of the first word that are set where a copy is likeliest to differ."""
    is_flat: np.ndarray
    """bool (N): without contrast, so that the bits say nothing."""

    def __len__(self) -> int:
        return len(self.words)

    def take(self, places: np.ndarray) -> "Signatures":
        return Signatures(*(getattr(self, field.name)[places] for field in fields(self)))

    @classmethod
    def join(cls, parts: "list[Signatures]") -> Self:
        return cls(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)))

    @classmethod
    def empty(cls, num_images: int) -> Self:
        """All flat, so that nothing is like anything."""
        words = np.zeros((num_images, len(MARGINS), NUM_BITS // 64), np.uint64)
        return cls(words, words[..., 0].copy(), np.ones(num_images, dtype=bool))


def compute_signature(image: StoredImage) -> Signatures:
    """Of one image."""
    return sign(shrink(image, SIDE))


def shrink(image: StoredImage, side: int) -> np.ndarray:
    """The grey image (views, side, side), whole and without its margins, each drawn out to a square."""
    pixels = Image.fromarray(image.pixels(1, at_least=(2 * side, 2 * side))[..., 0])
    views = []
    for margin in MARGINS:
        box = (margin * pixels.width, margin * pixels.height, (1 - margin) * pixels.width, (1 - margin) * pixels.height)
        views.append(np.asarray(pixels.resize((side, side), Image.Resampling.BILINEAR, box), dtype=np.float32))
    return np.stack(views)


def sign(views: np.ndarray) -> Signatures:
    """From grey squares (views, 32, 32)."""
    frequencies = np.asarray(dctn(views, axes=(1, 2), norm="ortho"))[:, ROWS, COLUMNS]  # (views, 128)
    bits = (frequencies > 0).reshape(len(views), -1, 64)
    words = (bits * BIT_VALUES).sum(axis=2, dtype=np.uint64)  # (views, 2)
    weak = mark_weakest(np.abs(frequencies[:, :64]))
    return Signatures(words[None], weak[None], np.array([views[0].std() < LEAST_CONTRAST]))


def mark_weakest(sizes: np.ndarray) -> np.ndarray:
    """The smallest of each band (views, 64), as set bits."""
    bands = sizes.reshape(-1, NUM_BANDS, BAND_BITS)
    ranks = bands.argsort(axis=2).argsort(axis=2).reshape(-1, 64)
    return ((ranks < NUM_WEAK) * BIT_VALUES).sum(axis=1, dtype=np.uint64)
