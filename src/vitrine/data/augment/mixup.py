"""Mixup (arXiv:1710.09412) and CutMix (arXiv:1905.04899) of a batch: each image is mixed with its partner, targets alike.

The partner of image i is image i xor 1, and the mixing fraction is a function of seed and step. So any even-sized part of a
batch that begins at an even index is mixed as within the whole batch, for any number of ranks and micro-steps. It is drawn on
the host (`draw_mixing`), and images are mixed on their device (`mixup_batch`), by operations that are the same at every step.
Letters: B images, C channels, H x W pixels, K classes.
"""

import math

import numpy as np
import torch
from torch import Tensor

from vitrine.data.batch import Draws, Target
from vitrine.data.config import MixupConfig
from vitrine.data.sampling import RngStream, hash_keys


def draw_mixing(config: MixupConfig, image_size: tuple[int, int], seed: int, index: Tensor, step: int) -> Draws:
    """Draw how the images `index` of a step are mixed, each in the same way.

    `blended` (B) is the partner's fraction of every pixel (mixup), `box` (B, 4) what is pasted from the partner (CutMix: top,
    left, bottom, right), and `fraction` (B) the partner's part of the target. Either the first is 0 or the box is empty.
    """
    generator = np.random.Generator(np.random.Philox(key=int(hash_keys(seed, RngStream.MIXING, step))))
    use_cutmix = generator.random() < 0.5 if config.mixup > 0 and config.cutmix > 0 else config.cutmix > 0
    if use_cutmix:
        height, width = image_size
        box = top, left, bottom, right = draw_cutmix_box(generator, config.cutmix, height, width)
        fraction = (bottom - top) * (right - left) / (height * width)  # of the box after clipping, not as it was drawn
        blended = 0.0
    else:
        fraction = generator.beta(config.mixup, config.mixup)
        blended = fraction = min(fraction, 1 - fraction)  # the image itself keeps the larger part, as in big_vision
        box = (0, 0, 0, 0)
    numbers = {"blended": torch.tensor(blended), "box": torch.tensor(box), "fraction": torch.tensor(fraction)}
    return {name: number.expand(len(index), *number.shape).contiguous() for name, number in numbers.items()}


def mixup_batch(images: Tensor, targets: Target, config: MixupConfig, draws: Draws, num_classes: int) -> tuple[Tensor, Tensor]:
    """Return mixed images (B, C, H, W) and float targets (B, K), on the device of the given ones, which are left unchanged.

    Mixup turns uint8 images into float32 in 0..1, which `Preprocessing.normalise` accepts; CutMix alone keeps them uint8.
    """
    check_mixable(images, targets, num_classes)
    targets = one_hot_targets(targets, num_classes)
    if not config.is_on:
        return images, targets
    if config.mixup > 0:
        images = images.float() / 255 if images.dtype == torch.uint8 else images
        mixed = blend_with_partners(images, draws["blended"])
    else:
        mixed = images
    if config.cutmix > 0:
        mixed = torch.where(find_inside(draws["box"], *images.shape[2:]), select_partners(images), mixed)
    return mixed, blend_with_partners(targets, draws["fraction"])


def find_inside(box: Tensor, height: int, width: int) -> Tensor:
    """Return which pixels, bool (B, 1, H, W), are inside of the boxes (B, 4)."""
    top, left, bottom, right = box.unbind(dim=1)
    rows, columns = (torch.arange(size, device=box.device) for size in (height, width))
    in_rows = (rows >= top[:, None]) & (rows < bottom[:, None])  # (B, H)
    in_columns = (columns >= left[:, None]) & (columns < right[:, None])  # (B, W)
    return (in_rows[:, :, None] & in_columns[:, None, :])[:, None]


def check_mixable(images: Tensor, targets: Target, num_classes: int) -> None:
    """Raise ValueError unless types and shapes of images and targets fit each other and the number of classes."""
    if images.ndim != 4 or not (images.dtype == torch.uint8 or images.is_floating_point()):
        raise ValueError(f"images of {images.dtype} and shape {tuple(images.shape)} must be uint8 or float of (B, C, H, W).")
    is_classes = targets.dtype == torch.int64 and targets.shape == (len(images),)
    is_dense = targets.is_floating_point() and targets.shape == (len(images), num_classes)
    if not is_classes and not is_dense:
        expected = f"int64 of {(len(images),)} or float of {(len(images), num_classes)}"
        raise ValueError(f"targets of {targets.dtype} and shape {tuple(targets.shape)} must be {expected}.")


def one_hot_targets(targets: Target, num_classes: int) -> Tensor:
    """Return classes (B) as one-hot float32 (B, K); targets that are float already come back as they are."""
    if targets.is_floating_point():
        return targets
    # Not torch's one_hot: on some devices it waits for the values, to check them.
    return torch.zeros(len(targets), num_classes, device=targets.device).scatter_(1, targets[:, None], 1.0)


def select_partners(items: Tensor) -> Tensor:
    """Return item i xor 1 at every index i; the last item of an odd number is its own partner."""
    indices = torch.arange(len(items), device=items.device)
    return items[(indices ^ 1).clamp(max=len(items) - 1)]


def blend_with_partners(items: Tensor, fractions: Tensor) -> Tensor:
    """Blend every item with a fraction (B) of its partner; equal items stay exactly what they are."""
    return items.lerp(select_partners(items), fractions.to(items.dtype).view(-1, *(1,) * (items.ndim - 1)))


def draw_cutmix_box(generator: np.random.Generator, alpha: float, height: int, width: int) -> tuple[int, int, int, int]:
    """Draw (top, left, bottom, right) of a box with the image's aspect ratio around a uniform centre, clipped at the border."""
    fraction = 1 - generator.beta(alpha, alpha)
    box_height, box_width = round(height * math.sqrt(fraction)), round(width * math.sqrt(fraction))
    top = int(generator.integers(height)) - box_height // 2
    left = int(generator.integers(width)) - box_width // 2
    return max(0, top), max(0, left), min(height, top + box_height), min(width, left + box_width)
