"""Random erasing (Zhong et al. 2017, arXiv:1708.04896): overwrite a rectangle of some images.

Letters: B images, H x W pixels, C channels, A attempts.
"""

from typing import get_args

import numpy as np

from vitrine.data.augment.crops import to_integers
from vitrine.data.config import EraseFill

# Values of torchvision. The paper has areas up to 0.4 and draws the ratio uniformly; since then its logarithm is drawn, so that
# tall and wide are equally likely.
AREA = (0.02, 0.33)  # smallest and largest fraction of the image
RATIO = (0.3, 3.3)  # height / width
GREY = 128

MAX_ATTEMPTS = 10
NUM_DRAWS = 2 + 4 * MAX_ATTEMPTS  # whether to erase, noise; area, ratio, top and left of each attempt


def random_erase(images: np.ndarray, rate: float, draws: np.ndarray, fill: EraseFill = "noise") -> np.ndarray:
    """Erase a rectangle in a fraction `rate` of uint8 images (B, H, W, C), given uniforms (B, NUM_DRAWS).

    Returns a copy, or the given array if no image is erased. Images in which no attempted rectangle fits stay unchanged.
    """
    if images.dtype != np.uint8 or images.ndim != 4:
        raise ValueError(f"images of {images.dtype} and shape {images.shape} must be uint8 (B, H, W, C).")
    if draws.shape != (len(images), NUM_DRAWS):
        raise ValueError(f"draws of shape {draws.shape} must be {(len(images), NUM_DRAWS)}: {NUM_DRAWS} for each image.")
    if not 0 <= rate <= 1:
        raise ValueError(f"rate={rate} must be between 0 and 1.")
    if fill not in get_args(EraseFill):
        raise ValueError(f"fill={fill!r} must be one of {', '.join(get_args(EraseFill))}.")
    boxes, fits = draw_rectangles(images.shape[1], images.shape[2], draws[:, 2:])
    rows = np.flatnonzero(fits & (draws[:, 0] < rate))
    if len(rows) == 0:
        return images
    erased = images.copy()
    for row, (top, left, height, width) in zip(rows, boxes[rows], strict=True):
        inside = erased[row, top : top + height, left : left + width]
        inside[:] = GREY
        if fill == "noise":
            generator = np.random.Generator(np.random.Philox(key=int(draws[row, 1] * 2**53)))
            inside[:] = np.frombuffer(generator.bytes(inside.size), dtype=np.uint8).reshape(inside.shape)
    return erased


def draw_rectangles(height: int, width: int, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return boxes (B, 4) of (top, left, height, width) from the first attempt that fits, and whether one fits (B,)."""
    uniforms = draws.reshape(-1, MAX_ATTEMPTS, 4)  # (B, A, 4)
    areas = height * width * (AREA[0] + (AREA[1] - AREA[0]) * uniforms[..., 0])
    ratios = RATIO[0] * (RATIO[1] / RATIO[0]) ** uniforms[..., 1]
    shapes = np.rint(np.sqrt(np.stack([areas * ratios, areas / ratios], axis=2)))  # (B, A, 2)
    image_size = np.array([height, width])
    fits = np.all((shapes >= 1) & (shapes <= image_size), axis=2)  # (B, A)
    first = np.arange(len(uniforms)), fits.argmax(axis=1)
    offsets = to_integers(uniforms[first][:, 2:], image_size - shapes[first] + 1)
    return np.concatenate([offsets, shapes[first].astype(np.int64)], axis=1), np.any(fits, axis=1)
