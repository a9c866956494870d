"""RandAugment (arXiv:1909.13719) as big_vision has it, with which the AugReg models were trained (arXiv:2106.10270).

Each image gets `num_ops` operations, drawn from sixteen with replacement, every one at the same magnitude. 10 is the top of the
scale that the strengths were written for; the released recipes go to 20. Several operations are not what their names promise,
and models were trained with what they are: the comments say where. Magnitude 0 leaves few images as they were: it
inverts, equalises, blurs and darkens.

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
FILL = 128  # where nothing of the image is left
DRAWS_PER_OP = 3  # which operation, and two for it to use
VALUES = np.arange(256)
LUMA = np.array([0.2989, 0.587, 0.114], dtype=np.float32)  # tf.image.rgb_to_grayscale


class Strength(NamedTuple):
    """What a magnitude means for images of one size."""

    level: float
    """1 at the top of the scale, and beyond it more."""
    translation: float
    """In pixels."""
    cutout: int
    """Half the side of the square, in pixels."""
    contrast_grey: int
    """What contrast moves pixels away from, or to."""

    @property
    def factor(self) -> float:
        """Of colour, contrast, brightness and sharpness: 1 leaves the image as it was."""
        return 1.8 * self.level + 0.1


Operation = Callable[[np.ndarray, Strength, Sequence[float]], np.ndarray]
"""Takes an image (H, W, C), which it leaves alone, and two uniforms; gives the new image."""


@dataclass(frozen=True)
class RandAugment:
    """A function of images and uniforms, and of nothing else."""

    num_ops: int
    magnitude: float
    translate_const: float = 100.0
    """Pixels of a translation at magnitude 10, in images of `reference_side`."""
    cutout_const: float = 40.0
    """Half the side of the square that is cut out at magnitude 10, in images of `reference_side`."""
    reference_side: int | None = 224
    """Images of this side get exactly the original's pixel counts, others the same share of themselves; None: the same pixels
    at every size, as in the original, where a translation would empty an image of 32 pixels."""

    def __post_init__(self) -> None:
        require_field_types(self)
        require_at_least(self, 0, "num_ops", "translate_const", "cutout_const")
        if self.reference_side is not None:
            require_at_least(self, 1, "reference_side")
        if not 0 <= self.magnitude <= MAX_MAGNITUDE:
            raise ValueError(f"magnitude={self.magnitude} must be 0 to {MAX_MAGNITUDE:g}; released models had 0 to 20.")

    @property
    def num_draws(self) -> int:
        """How many uniforms each image needs."""
        return DRAWS_PER_OP * self.num_ops

    def __call__(self, images: np.ndarray, draws: np.ndarray) -> np.ndarray:
        """Bytes (B, H, W, C) from the same and uniforms (B, num_draws); without operations, the very array that was given."""
        require_batch(images, draws, self.num_draws)
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
        num_pixels, scale = height * width, 1.0
        if self.reference_side is not None:
            scale = math.sqrt(num_pixels) / self.reference_side
            num_pixels = self.reference_side**2
        level = self.magnitude / MAX_LEVEL
        return Strength(
            level=level,
            translation=level * self.translate_const * scale,
            cutout=int(level * self.cutout_const * scale),
            # The original means to take the mean of the image but takes that of its histogram, pixels / 256: 196 for 224 x 224,
            # whatever the image (big_vision, issue 109).
            contrast_grey=min(num_pixels // 256, 255),
        )


def require_batch(images: np.ndarray, draws: np.ndarray, num_draws: int) -> None:
    """The images are bytes (B, H, W, C), and each has its uniforms."""
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] not in (1, 3):
        raise ValueError(f"images of {images.dtype} and shape {images.shape} must be bytes (B, H, W, 1 or 3): convert them.")
    if draws.shape != (len(images), num_draws):
        raise ValueError(f"draws of shape {draws.shape} must be {(len(images), num_draws)}, {num_draws} for each image.")


def signed(amount: float, draws: Sequence[float]) -> float:
    """Negative in half of the cases."""
    return amount if draws[0] < 0.5 else -amount


def look_up(table: np.ndarray, image: np.ndarray) -> np.ndarray:
    return np.take(table.astype(np.uint8), image)


def separate_channels(image: np.ndarray) -> np.ndarray:
    """256 c + value (H, W * C): rows of a table that has 256 for each channel c."""
    height, width, num_channels = image.shape
    return image.reshape(height, -1) + np.tile(256 * np.arange(num_channels), width)


def count_values(channel_values: np.ndarray, num_channels: int) -> np.ndarray:
    """How often each channel has each value (C, 256)."""
    return np.bincount(channel_values.reshape(-1), minlength=256 * num_channels).reshape(num_channels, 256)


def blend(start: np.ndarray, end: np.ndarray, factor: float) -> np.ndarray:
    """`end` at factor 1, and beyond it more unlike `start`; fractions are dropped, as by TensorFlow and by Pillow."""
    start = start.astype(np.float32)
    # In place from here on: fetching memory for another image takes longer than the arithmetic.
    mixed = np.subtract(end, start, dtype=np.float32)
    mixed *= np.float32(factor)
    mixed += start
    return np.clip(mixed, 0, 255, out=mixed).astype(np.uint8)


def stretch(image: np.ndarray) -> np.ndarray:
    """The darkest value of each channel becomes 0 and the brightest 255."""
    channel_values = separate_channels(image)
    present = count_values(channel_values, image.shape[2]) > 0  # (C, 256)
    low = present.argmax(axis=1)[:, None]
    high = 255 - present[:, ::-1].argmax(axis=1)[:, None]
    # In whole numbers, so that the brightest is 255: the original's floats make it 254 for some ranges.
    stretched = (VALUES - low) * 255 // np.maximum(high - low, 1)
    table = np.where(high > low, np.clip(stretched, 0, 255), VALUES)
    return look_up(table, channel_values).reshape(image.shape)


def equalise(image: np.ndarray) -> np.ndarray:
    """Values of each channel are spread so that all are about as frequent, exactly as Pillow does it."""
    channel_values = separate_channels(image)
    counts = count_values(channel_values, image.shape[2])  # (C, 256)
    brightest = 255 - (counts[:, ::-1] > 0).argmax(axis=1)[:, None]
    steps = (counts.sum(axis=1, keepdims=True) - np.take_along_axis(counts, brightest, axis=1)) // 255
    below = np.cumsum(counts, axis=1) - counts
    spread = (below + steps // 2) // np.maximum(steps, 1)
    table = np.where(steps > 0, np.minimum(spread, 255), VALUES)
    return look_up(table, channel_values).reshape(image.shape)


def posterise(image: np.ndarray, level: float) -> np.ndarray:
    """The upper bits: 4 at the top of the scale and all 8 at twice that, so more of magnitude is less of effect."""
    # The top bit always stays: TensorFlow shifts a byte by at most 7.
    bits = min(max(int(4 * level), 1), 8)
    return image & np.uint8(256 - (1 << (8 - bits)))


def solarise(image: np.ndarray, level: float) -> np.ndarray:
    """Values from the threshold on are inverted."""
    # The original's threshold is a byte and overflows: 256, at magnitudes 10 and 20, is 0 and inverts everything, where it
    # should have inverted nothing; 15 is 128 (big_vision, issue 110).
    threshold = int(256 * level) % 256
    return look_up(np.where(threshold > VALUES, VALUES, 255 - VALUES), image)


def solarise_add(image: np.ndarray, level: float) -> np.ndarray:
    """Values of the darker half are raised."""
    return look_up(np.where(VALUES < 128, np.minimum(VALUES + int(110 * level), 255), VALUES), image)


def colour(image: np.ndarray, factor: float) -> np.ndarray:
    if image.shape[2] == 1:
        return image
    # TensorFlow goes to 0..1 and back, by 255 and 255.5, and drops the fraction.
    grey = (image.astype(np.float32) @ (LUMA * np.float32(255.5 / 255))).astype(np.uint8)
    return blend(np.repeat(grey, 3).reshape(image.shape), image, factor)


def sharpen(image: np.ndarray, factor: float) -> np.ndarray:
    """Away from, or below factor 1 towards, its mean with the eight pixels around, itself five times; the border stays."""
    wide = image.astype(np.uint16)
    rows = wide[:-2] + wide[1:-1]  # (H - 2, W, C)
    rows += wide[2:]
    squares = rows[:, :-2] + rows[:, 1:-1]  # (H - 2, W - 2, C)
    squares += rows[:, 2:]
    squares += 4 * wide[1:-1, 1:-1]
    smooth = image.copy()
    smooth[1:-1, 1:-1] = squares // 13
    return blend(smooth, image, factor)


def transform(image: np.ndarray, matrix: tuple[float, float, float, float], centre: tuple[float, float]) -> np.ndarray:
    """What lands at (x, y) from the centre is the pixel nearest to (a x + b y, c x + d y) from it; pixels counted from 0."""
    a, b, c, d = matrix
    x, y = centre[0] + 0.5, centre[1] + 0.5  # Pillow counts from the corner of a pixel, TensorFlow from its middle
    picture = Image.fromarray(image if image.shape[2] == 3 else image[..., 0])
    moved = picture.transform(
        picture.size,
        Image.Transform.AFFINE,
        (a, b, x - a * x - b * y, c, d, y - c * x - d * y),
        Image.Resampling.NEAREST,
        fillcolor=(FILL,) * image.shape[2],
    )
    return np.asarray(moved).reshape(image.shape)


def rotate(image: np.ndarray, degrees: float) -> np.ndarray:
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    height, width = image.shape[:2]
    return transform(image, (cos, -sin, sin, cos), ((width - 1) / 2, (height - 1) / 2))


def translate(image: np.ndarray, down: float, right: float) -> np.ndarray:
    """By whole pixels, the nearest to those given."""
    height, width = image.shape[:2]
    down, right = (max(-side, min(side, round(amount))) for side, amount in ((height, down), (width, right)))
    moved = np.full_like(image, FILL)
    source = image[max(0, -down) : height - max(0, down), max(0, -right) : width - max(0, right)]
    moved[max(0, down) : height + min(0, down), max(0, right) : width + min(0, right)] = source
    return moved


def cut_out(image: np.ndarray, half: int, draws: Sequence[float]) -> np.ndarray:
    """A grey square whose middle lies anywhere in the image, so that at the border less of it is seen."""
    row, column = int(draws[0] * image.shape[0]), int(draws[1] * image.shape[1])
    cut = image.copy()
    cut[max(0, row - half) : row + half, max(0, column - half) : column + half] = FILL
    return cut


OPERATIONS: dict[str, Operation] = {
    "AutoContrast": lambda image, strength, draws: stretch(image),
    "Equalize": lambda image, strength, draws: equalise(image),
    "Invert": lambda image, strength, draws: 255 - image,
    "Rotate": lambda image, strength, draws: rotate(image, signed(30 * strength.level, draws)),
    "Posterize": lambda image, strength, draws: posterise(image, strength.level),
    "Solarize": lambda image, strength, draws: solarise(image, strength.level),
    "Color": lambda image, strength, draws: colour(image, strength.factor),
    "Contrast": lambda image, strength, draws: look_up(
        blend(np.full(256, strength.contrast_grey), VALUES, strength.factor), image
    ),
    "Brightness": lambda image, strength, draws: look_up(blend(np.zeros(256), VALUES, strength.factor), image),
    "Sharpness": lambda image, strength, draws: sharpen(image, strength.factor),
    "ShearX": lambda image, strength, draws: transform(image, (1, signed(0.3 * strength.level, draws), 0, 1), (0, 0)),
    "ShearY": lambda image, strength, draws: transform(image, (1, 0, signed(0.3 * strength.level, draws), 1), (0, 0)),
    "TranslateX": lambda image, strength, draws: translate(image, 0, signed(strength.translation, draws)),
    "TranslateY": lambda image, strength, draws: translate(image, signed(strength.translation, draws), 0),
    "Cutout": lambda image, strength, draws: cut_out(image, strength.cutout, draws),
    "SolarizeAdd": lambda image, strength, draws: solarise_add(image, strength.level),
}
