"""From images as they are stored to a batch of bytes: what training does to them, and what evaluation does.

Letters: B images, H x W pixels, C channels.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from vitrine.data.augment.crops import as_tensor, draw_crop_boxes, draw_offsets, resample_block, resample_images
from vitrine.data.augment.rand_augment import RandAugment
from vitrine.data.augment.random_erasing import NUM_DRAWS, random_erase
from vitrine.data.config import AugmentConfig
from vitrine.data.image import LazyImage, fit_channels
from vitrine.data.preprocessing import Preprocessing
from vitrine.data.sampling import RngStream, SampleRng

Images = Sequence[LazyImage] | np.ndarray
"""Images of their own, or a block (B, H, W, C) of bytes that lies in memory."""


class Transform(Protocol):
    def __call__(self, images: Images, draws: SampleRng) -> Tensor:
        """Bytes (B, C, H, W), the channels of a pixel side by side in memory (channels_last)."""
        ...


class EvalTransform:
    """Resize and centre crop of the preprocessing, nothing random."""

    def __init__(self, preprocessing: Preprocessing) -> None:
        self.preprocessing = preprocessing

    def __call__(self, images: Images, draws: SampleRng) -> Tensor:
        return to_tensor(self.prepare(images))

    def prepare(self, images: Images) -> np.ndarray:
        """(B, H, W, C), pixel for pixel what `Preprocessing.prepare` gives."""
        crop, num_channels = self.preprocessing.crop, self.preprocessing.num_channels
        if isinstance(images, np.ndarray):
            if self.preprocessing.compute_resized_size(*images.shape[1:3]) == images.shape[1:3] == crop:
                return fit_channels(images, num_channels)
            images = [LazyImage(pixels, "an image in memory") for pixels in images]
        prepared = np.empty((len(images), *crop, num_channels), dtype=np.uint8)
        for row, image in enumerate(images):
            cropped = self.preprocessing.resize_and_crop(image.to_pil(num_channels))
            prepared[row] = np.asarray(cropped).reshape(*crop, num_channels)
        return prepared


class TrainTransform:
    """A random crop, then flip, RandAugment and erasing, each drawn for the sample and the epoch."""

    def __init__(self, config: AugmentConfig, preprocessing: Preprocessing) -> None:
        """Size and channels are those that the model takes."""
        self.config = config
        self.evaluation = EvalTransform(preprocessing)
        self.size = preprocessing.crop
        self.num_channels = preprocessing.num_channels
        self.rand_augment = RandAugment(config.rand_augment_ops, config.rand_augment_magnitude)
        height, width = self.size
        side = config.resize
        self.square = (round(height * 8 / 7), round(width * 8 / 7)) if side is None else (side, side)
        if side is not None and side < max(self.size):
            raise ValueError(f"resize={side} must be at least the size that the model takes, {height} x {width}: raise it.")

    def __call__(self, images: Images, draws: SampleRng) -> Tensor:
        pixels = self.crop(images, draws)  # (B, H, W, C)
        if isinstance(images, np.ndarray) and np.may_share_memory(pixels, images):
            pixels = pixels.copy()  # what was given is left alone
        if self.config.flip:
            flip(pixels, draws.uniforms(RngStream.FLIP, 1)[:, 0] < 0.5)
        if self.config.rand_augment_ops > 0:
            pixels = self.rand_augment(pixels, draws.uniforms(RngStream.RAND_AUGMENT, self.rand_augment.num_draws))
        if self.config.erase_rate > 0:
            uniforms = draws.uniforms(RngStream.ERASING, NUM_DRAWS)
            pixels = random_erase(pixels, self.config.erase_rate, uniforms, self.config.erase_fill)
        return to_tensor(pixels)

    def crop(self, images: Images, draws: SampleRng) -> np.ndarray:
        kind, padding = self.config.crop, self.config.padding
        if kind == "none":
            return self.evaluation.prepare(images)
        sizes = measure(images)
        if kind == "inception":
            boxes = draw_crop_boxes(sizes, draws, self.config.crop_area, self.config.crop_ratio)
            return self.resample(images, boxes, self.size)
        whole = np.concatenate([np.zeros_like(sizes), sizes], axis=1)
        if kind == "pad":
            offsets = draw_offsets((2 * padding, 2 * padding), draws)
            return cut_windows(pad(self.resample(images, whole, self.size), padding), offsets, self.size)
        room = self.square[0] - self.size[0], self.square[1] - self.size[1]
        return cut_windows(self.resample(images, whole, self.square), draw_offsets(room, draws), self.size)

    def resample(self, images: Images, boxes: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        if isinstance(images, np.ndarray):
            return resample_block(images, boxes, size, self.config.interpolation, self.num_channels)
        return resample_images(images, boxes, size, self.config.interpolation, self.num_channels)


def measure(images: Images) -> np.ndarray:
    """Heights and widths (B, 2)."""
    if isinstance(images, np.ndarray):
        return np.tile(np.array(images.shape[1:3]), (len(images), 1))
    return np.array([(image.height, image.width) for image in images], dtype=np.int64).reshape(-1, 2)


def pad(images: np.ndarray, padding: int) -> np.ndarray:
    """Black pixels all around (B, H, W, C)."""
    height, width = images.shape[1:3]
    padded = np.zeros((len(images), height + 2 * padding, width + 2 * padding, images.shape[3]), dtype=np.uint8)
    padded[:, padding : padding + height, padding : padding + width] = images
    return padded


def cut_windows(images: np.ndarray, offsets: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """From each of (B, H, W, C) the window of `size` whose top and left are in `offsets` (B, 2)."""
    b, height, width, c = images.shape
    rows = images.reshape(b, height, width * c)  # so that a row of the window is one run of bytes
    windows = sliding_window_view(rows, (size[0], size[1] * c), axis=(1, 2))  # type: ignore[call-overload]
    return windows[np.arange(b), offsets[:, 0], offsets[:, 1] * c].reshape(b, *size, c)


def flip(images: np.ndarray, chosen: np.ndarray) -> None:
    """Swap left and right in the chosen of (B, H, W, C), in place."""
    rows = np.flatnonzero(chosen)
    # torch reverses rows of bytes many at a time, and NumPy one by one.
    turned = torch.from_numpy(images[rows]).permute(0, 3, 1, 2).flip(3).permute(0, 2, 3, 1)
    images[rows] = turned.numpy()


def to_tensor(pixels: np.ndarray) -> Tensor:
    return as_tensor(np.ascontiguousarray(pixels)).permute(0, 3, 1, 2)
