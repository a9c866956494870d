"""Transforms from stored images to a batch of uint8 images: TrainTransform with augmentation, EvalTransform without.

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
from vitrine.data.batch import Target
from vitrine.data.config import AugmentConfig
from vitrine.data.image import LazyImage, fit_channels
from vitrine.data.preprocessing import Preprocessing
from vitrine.data.sampling import RngStream, SampleRng

Images = Sequence[LazyImage] | np.ndarray
"""Images of any size, or a uint8 block (B, H, W, C) in memory."""


class Transform(Protocol):
    """Function that makes a batch of images of equal size, and changes their targets where it has to."""

    def __call__(self, images: Images, targets: Target, rng: SampleRng) -> tuple[Tensor, Target]:
        """Return images as uint8 (B, C, H, W) in channels_last memory layout, and their targets.

        Arguments are left unchanged. Called once for each `rng.view` of the same images; the first view's targets are used.
        """
        ...


class EvalTransform:
    """Resize and centre crop as given by the preprocessing."""

    def __init__(self, preprocessing: Preprocessing) -> None:
        self.preprocessing = preprocessing

    def __call__(self, images: Images, targets: Target, rng: SampleRng) -> tuple[Tensor, Target]:
        return to_tensor(self.prepare(images)), targets

    def prepare(self, images: Images) -> np.ndarray:
        """Return (B, H, W, C), equal to `Preprocessing.prepare` of each image."""
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
    """Random crop, flip, RandAugment and random erasing, in this order. Targets stay as they are."""

    def __init__(self, config: AugmentConfig, preprocessing: Preprocessing) -> None:
        """Take image size and channels from the preprocessing."""
        self.config = config
        self.eval_transform = EvalTransform(preprocessing)
        self.size = preprocessing.crop
        self.num_channels = preprocessing.num_channels
        self.rand_augment = RandAugment(config.rand_augment_ops, config.rand_augment_magnitude)
        height, width = self.size
        side = config.resize
        self.square = (round(height * 8 / 7), round(width * 8 / 7)) if side is None else (side, side)
        if side is not None and side < max(self.size):
            raise ValueError(f"resize={side} must be at least the image size of the model, {height} x {width}.")

    def __call__(self, images: Images, targets: Target, rng: SampleRng) -> tuple[Tensor, Target]:
        pixels = self.crop(images, rng)  # (B, H, W, C)
        if isinstance(images, np.ndarray) and np.may_share_memory(pixels, images):
            pixels = pixels.copy()  # flips are done in place
        if self.config.flip:
            flip_left_right(pixels, rng.uniforms(RngStream.FLIP, 1)[:, 0] < 0.5)
        if self.config.rand_augment_ops > 0:
            pixels = self.rand_augment(pixels, rng.uniforms(RngStream.RAND_AUGMENT, self.rand_augment.num_draws))
        if self.config.erase_rate > 0:
            uniforms = rng.uniforms(RngStream.ERASING, NUM_DRAWS)
            pixels = random_erase(pixels, self.config.erase_rate, uniforms, self.config.erase_fill)
        return to_tensor(pixels), targets

    def crop(self, images: Images, rng: SampleRng) -> np.ndarray:
        """Crop and resize the images to (B, H, W, C), as `AugmentConfig.crop` says."""
        kind, padding = self.config.crop, self.config.padding
        if kind == "none":
            return self.eval_transform.prepare(images)
        sizes = image_sizes(images)
        if kind == "inception":
            boxes = draw_crop_boxes(sizes, rng, self.config.crop_area, self.config.crop_ratio)
            return self.resample(images, boxes, self.size)
        whole = np.concatenate([np.zeros_like(sizes), sizes], axis=1)
        if kind == "pad":
            padded = add_black_border(self.resample(images, whole, self.size), padding)
            return cut_windows(padded, draw_offsets((2 * padding, 2 * padding), rng), self.size)
        room = self.square[0] - self.size[0], self.square[1] - self.size[1]
        return cut_windows(self.resample(images, whole, self.square), draw_offsets(room, rng), self.size)

    def resample(self, images: Images, boxes: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        """Cut the boxes (B, 4) out of the images and resize them to one size."""
        resample = resample_block if isinstance(images, np.ndarray) else resample_images
        return resample(images, boxes, size, self.config.interpolation, self.num_channels)  # type: ignore[arg-type]


def image_sizes(images: Images) -> np.ndarray:
    """Return heights and widths (B, 2) of the images."""
    if isinstance(images, np.ndarray):
        return np.tile(np.array(images.shape[1:3]), (len(images), 1))
    return np.array([(image.height, image.width) for image in images], dtype=np.int64).reshape(-1, 2)


def add_black_border(images: np.ndarray, padding: int) -> np.ndarray:
    """Pad images (B, H, W, C) for the pad crop. `np.pad` makes the whole loader a fifth slower."""
    height, width = images.shape[1:3]
    padded = np.zeros((len(images), height + 2 * padding, width + 2 * padding, images.shape[3]), dtype=np.uint8)
    padded[:, padding : padding + height, padding : padding + width] = images
    return padded


def cut_windows(images: np.ndarray, offsets: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Cut a window of `size` out of each image (B, H, W, C), with its top and left from `offsets` (B, 2)."""
    b, height, width, c = images.shape
    rows = images.reshape(b, height, width * c)  # so that a row of the window is contiguous
    windows = sliding_window_view(rows, (size[0], size[1] * c), axis=(1, 2))  # type: ignore[call-overload]
    return windows[np.arange(b), offsets[:, 0], offsets[:, 1] * c].reshape(b, *size, c)


def flip_left_right(images: np.ndarray, chosen: np.ndarray) -> None:
    """Flip the chosen images of (B, H, W, C) in place."""
    rows = np.flatnonzero(chosen)
    # torch reverses many bytes at a time, NumPy one by one.
    flipped = torch.from_numpy(images[rows]).permute(0, 3, 1, 2).flip(3).permute(0, 2, 3, 1)
    images[rows] = flipped.numpy()


def to_tensor(pixels: np.ndarray) -> Tensor:
    """View (B, H, W, C) as a tensor (B, C, H, W)."""
    return as_tensor(np.ascontiguousarray(pixels)).permute(0, 3, 1, 2)
