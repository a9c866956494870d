"""RandAugment (arXiv:1909.13719) as in big_vision, with which the AugReg models were trained (arXiv:2106.10270).

Each image gets `num_ops` operations, drawn from sixteen with replacement, all at the same magnitude. The operations were
written for magnitudes up to 10; released recipes go to 20. Several do not do what their names say, and models were trained
that way: comments say where. Magnitude 0 changes images too: it inverts, equalises, blurs and darkens.

Letters: B images, H x W pixels, C channels (1 or 3).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from PIL import Image

from vitrine.core.config_checks import require_at_least, require_field_types
from vitrine.data.config import MAX_MAGNITUDE

MAX_LEVEL = 10
FILL = 128  # grey value where the image has no pixels
DRAWS_PER_OP = 3  # one chooses the operation, two are for its use
VALUES = np.arange(256)
LUMA = np.array([0.2989, 0.587, 0.114], dtype=np.float32)  # tf.image.rgb_to_grayscale

# Pixels at magnitude 10 in images of 224 x 224; in other sizes the same fraction of the image. The original has the same
# pixels at every size, with which a translation would empty an image of 32 pixels.
REFERENCE_SIDE = 224
TRANSLATION = 100.0
CUTOUT = 40.0  # half the side of the square

# The original means to use the mean of the image, but computes the mean of its histogram, pixels / 256 (big_vision, issue
# 109): this grey for every image of 224 x 224.
CONTRAST_GREY = REFERENCE_SIDE**2 // 256


class Strength(NamedTuple):
    """Strengths of the operations at one magnitude, for images of one size."""

    level: float
    """Magnitude / 10."""
    translation: float
    """Pixels."""
    cutout: int
    """Half the side of the square, in pixels."""

    @property
    def factor(self) -> float:
        """Factor of colour, contrast, brightness and sharpness: 1 leaves the image unchanged."""
        return 1.8 * self.level + 0.1


Operation = Callable[[np.ndarray, Strength, Sequence[float]], np.ndarray]
"""Takes an image (H, W, C), which it leaves unchanged, and two uniforms; returns the new image."""


@dataclass(frozen=True)
class RandAugment:
    """Callable that augments a batch of images with given random numbers."""

    num_ops: int
    magnitude: float

    def __post_init__(self) -> None:
        require_field_types(self)
        require_at_least(self, 0, "num_ops")
        if not 0 <= self.magnitude <= MAX_MAGNITUDE:
            raise ValueError(
                f"magnitude={self.magnitude} must be between 0 and {MAX_MAGNITUDE:g}; released models used 0 to 20."
            )

    @property
    def num_draws(self) -> int:
        """Number of uniforms that each image needs."""
        return DRAWS_PER_OP * self.num_ops

    def __call__(self, images: np.ndarray, draws: np.ndarray) -> np.ndarray:
        """Augment uint8 images (B, H, W, C) with uniforms (B, num_draws); with no operations, return the array itself."""
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] not in (1, 3):
            raise ValueError(f"images of {images.dtype} and shape {images.shape} must be uint8 (B, H, W, 1 or 3).")
        if draws.shape != (len(images), self.num_draws):
            raise ValueError(f"draws of shape {draws.shape} must be {(len(images), self.num_draws)}.")
        if self.num_ops == 0:
            return images
        strength = self.compute_strength(*images.shape[1:3])
        operations = list(OPERATIONS.values())
        augmented = np.empty(images.shape, dtype=np.uint8)
        for row, image_draws in enumerate(draws.reshape(-1, self.num_ops, DRAWS_PER_OP).tolist()):
            image = images[row]
            for choice, *rest in image_draws:
                image = operations[int(choice * len(operations))](image, strength, rest)
            augmented[row] = image
        return augmented

    def compute_strength(self, height: int, width: int) -> Strength:
        """Return the strengths of the operations for images of this size."""
        level, scale = self.magnitude / MAX_LEVEL, math.sqrt(height * width) / REFERENCE_SIDE
        return Strength(level, translation=level * TRANSLATION * scale, cutout=int(level * CUTOUT * scale))


def with_random_sign(amount: float, draws: Sequence[float]) -> float:
    """Return the amount, negated in half of the cases."""
    return amount if draws[0] < 0.5 else -amount


def look_up(table: np.ndarray, image: np.ndarray) -> np.ndarray:
    """Replace every value of an image by its entry in a table."""
    return np.take(table.astype(np.uint8), image)


def histogram_indices(image: np.ndarray) -> np.ndarray:
    """Return 256 c + value (H, W * C): indices into a table with 256 entries for each channel c."""
    height, width, num_channels = image.shape
    return image.reshape(height, -1) + np.tile(256 * np.arange(num_channels), width)


def count_histograms(indices: np.ndarray, num_channels: int) -> np.ndarray:
    """Return the histogram of each channel (C, 256)."""
    return np.bincount(indices.reshape(-1), minlength=256 * num_channels).reshape(num_channels, 256)


def blend(start: np.ndarray, end: np.ndarray, factor: float) -> np.ndarray:
    """Interpolate from `start` (factor 0) to `end` (1) and beyond, rounded down like in TensorFlow and Pillow."""
    start = start.astype(np.float32)
    # In place from here on: allocating another image takes longer than the arithmetic.
    blended = np.subtract(end, start, dtype=np.float32)
    blended *= np.float32(factor)
    blended += start
    return np.clip(blended, 0, 255, out=blended).astype(np.uint8)


def auto_contrast(image: np.ndarray) -> np.ndarray:
    """Stretch each channel so that its darkest value becomes 0 and its brightest 255."""
    indices = histogram_indices(image)
    present = count_histograms(indices, image.shape[2]) > 0  # (C, 256)
    low = present.argmax(axis=1)[:, None]
    high = 255 - present[:, ::-1].argmax(axis=1)[:, None]
    # In integers, so that the brightest is 255: the original's floats make it 254 for some ranges.
    stretched = (VALUES - low) * 255 // np.maximum(high - low, 1)
    table = np.where(high > low, np.clip(stretched, 0, 255), VALUES)
    return look_up(table, indices).reshape(image.shape)


def equalise(image: np.ndarray) -> np.ndarray:
    """Equalise the histogram of each channel, bit-equal to PIL.ImageOps.equalize, which is three times slower at 32 x 32."""
    indices = histogram_indices(image)
    counts = count_histograms(indices, image.shape[2])  # (C, 256)
    brightest = 255 - (counts[:, ::-1] > 0).argmax(axis=1)[:, None]
    steps = (counts.sum(axis=1, keepdims=True) - np.take_along_axis(counts, brightest, axis=1)) // 255
    below = np.cumsum(counts, axis=1) - counts
    spread = (below + steps // 2) // np.maximum(steps, 1)
    table = np.where(steps > 0, np.minimum(spread, 255), VALUES)
    return look_up(table, indices).reshape(image.shape)


def posterise(image: np.ndarray, level: float) -> np.ndarray:
    """Keep the upper bits: 4 at level 1 and all 8 at level 2, so a higher magnitude has less effect."""
    # The top bit always stays: TensorFlow shifts a byte by at most 7.
    bits = min(max(int(4 * level), 1), 8)
    return image & np.uint8(256 - (1 << (8 - bits)))


def solarise(image: np.ndarray, level: float) -> np.ndarray:
    """Invert values from a threshold on."""
    # The original's threshold is a byte and overflows: 256 and 512, at magnitudes 10 and 20, become 0 and invert everything
    # instead of nothing; magnitude 15 gives 128 (big_vision, issue 110).
    threshold = int(256 * level) % 256
    return look_up(np.where(threshold > VALUES, VALUES, 255 - VALUES), image)


def solarise_add(image: np.ndarray, level: float) -> np.ndarray:
    """Brighten values of the darker half."""
    return look_up(np.where(VALUES < 128, np.minimum(VALUES + int(110 * level), 255), VALUES), image)


def adjust_colour(image: np.ndarray, factor: float) -> np.ndarray:
    """Blend with the grey image; grey images stay as they are."""
    if image.shape[2] == 1:
        return image
    # TensorFlow converts to 0..1 and back, with factors 255 and 255.5, and rounds down.
    grey = (image.astype(np.float32) @ (LUMA * np.float32(255.5 / 255))).astype(np.uint8)
    return blend(np.repeat(grey, 3).reshape(image.shape), image, factor)


def sharpen(image: np.ndarray, factor: float) -> np.ndarray:
    """Blend with a smoothed image: the mean of the 3 x 3 neighbourhood, centre weighted five times; the border stays."""
    wide = image.astype(np.uint16)
    rows = wide[:-2] + wide[1:-1]  # (H - 2, W, C)
    rows += wide[2:]
    squares = rows[:, :-2] + rows[:, 1:-1]  # (H - 2, W - 2, C)
    squares += rows[:, 2:]
    squares += 4 * wide[1:-1, 1:-1]
    smooth = image.copy()
    smooth[1:-1, 1:-1] = squares // 13
    return blend(smooth, image, factor)


def affine(image: np.ndarray, matrix: tuple[float, float, float, float], centre: tuple[float, float]) -> np.ndarray:
    """Move to (x, y), relative to the centre, the pixel nearest to (a x + b y, c x + d y); pixels count from 0."""
    a, b, c, d = matrix
    x, y = centre[0] + 0.5, centre[1] + 0.5  # Pillow counts from the corner of a pixel, TensorFlow from its centre
    source = Image.fromarray(image if image.shape[2] == 3 else image[..., 0])
    moved = source.transform(
        source.size,
        Image.Transform.AFFINE,
        (a, b, x - a * x - b * y, c, d, y - c * x - d * y),
        Image.Resampling.NEAREST,
        fillcolor=(FILL,) * image.shape[2],
    )
    return np.asarray(moved).reshape(image.shape)


def rotate(image: np.ndarray, degrees: float) -> np.ndarray:
    """Rotate around the centre of the image."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    height, width = image.shape[:2]
    return affine(image, (cos, -sin, sin, cos), ((width - 1) / 2, (height - 1) / 2))


def translate(image: np.ndarray, down: float, right: float) -> np.ndarray:
    """Move the image by amounts rounded to whole pixels."""
    height, width = image.shape[:2]
    down, right = (max(-side, min(side, round(amount))) for side, amount in ((height, down), (width, right)))
    moved = np.full_like(image, FILL)
    source = image[max(0, -down) : height - max(0, down), max(0, -right) : width - max(0, right)]
    moved[max(0, down) : height + min(0, down), max(0, right) : width + min(0, right)] = source
    return moved


def cut_out(image: np.ndarray, half: int, draws: Sequence[float]) -> np.ndarray:
    """Cut out a grey square around a uniform centre; near the border it is clipped."""
    row, column = int(draws[0] * image.shape[0]), int(draws[1] * image.shape[1])
    cut = image.copy()
    cut[max(0, row - half) : row + half, max(0, column - half) : column + half] = FILL
    return cut


OPERATIONS: dict[str, Operation] = {
    "AutoContrast": lambda image, strength, draws: auto_contrast(image),
    "Equalize": lambda image, strength, draws: equalise(image),
    "Invert": lambda image, strength, draws: 255 - image,
    "Rotate": lambda image, strength, draws: rotate(image, with_random_sign(30 * strength.level, draws)),
    "Posterize": lambda image, strength, draws: posterise(image, strength.level),
    "Solarize": lambda image, strength, draws: solarise(image, strength.level),
    "Color": lambda image, strength, draws: adjust_colour(image, strength.factor),
    "Contrast": lambda image, strength, draws: look_up(blend(np.full(256, CONTRAST_GREY), VALUES, strength.factor), image),
    "Brightness": lambda image, strength, draws: look_up(blend(np.zeros(256), VALUES, strength.factor), image),
    "Sharpness": lambda image, strength, draws: sharpen(image, strength.factor),
    "ShearX": lambda image, strength, draws: affine(image, (1, with_random_sign(0.3 * strength.level, draws), 0, 1), (0, 0)),
    "ShearY": lambda image, strength, draws: affine(image, (1, 0, with_random_sign(0.3 * strength.level, draws), 1), (0, 0)),
    "TranslateX": lambda image, strength, draws: translate(image, 0, with_random_sign(strength.translation, draws)),
    "TranslateY": lambda image, strength, draws: translate(image, with_random_sign(strength.translation, draws), 0),
    "Cutout": lambda image, strength, draws: cut_out(image, strength.cutout, draws),
    "SolarizeAdd": lambda image, strength, draws: solarise_add(image, strength.level),
}
