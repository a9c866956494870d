"""Mixup (arXiv:1710.09412) and CutMix (arXiv:1905.04899): each image of a batch is mixed with its partner, targets alike.

The partner of image i is i xor 1, and the share is a function of seed and step. So any even-sized part of a batch that begins
at an even place is mixed as it would be in the whole: on however many ranks, in however many micro-steps.

No torch before it is needed, so that a configuration may hold a `Mixing`. Letters: B images, C channels, H x W pixels,
K classes.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vitrine.core.config_checks import require_field_types
from vitrine.data.sampling import RngStream, hash_keys

if TYPE_CHECKING:
    from torch import Tensor

# Far beyond what anyone mixes with; further out, NumPy no longer gives numbers of a Beta distribution.
SMALLEST_ALPHA, LARGEST_ALPHA = 1e-3, 1e3

Corners = tuple[int, int, int, int]
"""Top, left, bottom, right."""


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """Which of the two, and how strongly; with both on, each batch gets one of them, either equally often."""

    mixup: float = 0.0
    """Alpha of the Beta distribution that the share is drawn from; 0: off."""
    cutmix: float = 0.0
    """Likewise."""

    def __post_init__(self) -> None:
        require_field_types(self)
        for name, alpha in (("mixup", self.mixup), ("cutmix", self.cutmix)):
            if alpha != 0 and not SMALLEST_ALPHA <= alpha <= LARGEST_ALPHA:
                raise ValueError(f"{name}={alpha} must be 0, for off, or {SMALLEST_ALPHA} to {LARGEST_ALPHA:g}, as 0.2.")

    @property
    def is_on(self) -> bool:
        return self.mixup > 0 or self.cutmix > 0

    def mix(self, images: "Tensor", targets: "Tensor", num_classes: int, *, seed: int, step: int) -> tuple["Tensor", "Tensor"]:
        """Images (B, C, H, W) and floating-point targets (B, K), where the given ones are; these are left alone.

        Targets given as classes (B) become rows of 0 and 1. Mixup turns bytes into float32 in 0..1, which is how
        `Preprocessing.normalise` takes floats; CutMix leaves them bytes.
        """
        require_mixable(images, targets, num_classes)
        targets = to_rows(targets, num_classes)
        if not self.is_on:
            return images, targets
        generator = build_generator(seed, step)
        is_cutmix = generator.random() < 0.5 if self.mixup > 0 and self.cutmix > 0 else self.cutmix > 0
        if is_cutmix:
            box = draw_box(generator, self.cutmix, images.shape[2], images.shape[3])
            return paste(images, box), mix_rows(targets, compute_share(box, images.shape[2], images.shape[3]))
        share = generator.beta(self.mixup, self.mixup)
        share = min(share, 1 - share)  # of the partner, so that the image itself has the larger one, as in big_vision
        return mix_rows(images.float().div_(255) if is_bytes(images) else images, share), mix_rows(targets, share)


def build_generator(seed: int, step: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=int(hash_keys(seed, RngStream.MIXING, step))))


def require_mixable(images: "Tensor", targets: "Tensor", num_classes: int) -> None:
    import torch

    if images.ndim != 4 or not (is_bytes(images) or images.is_floating_point()):
        raise ValueError(f"images of {images.dtype} and shape {tuple(images.shape)} must be bytes or floats of (B, C, H, W).")
    is_classes = targets.dtype == torch.int64 and targets.shape == (len(images),)
    is_rows = targets.is_floating_point() and targets.shape == (len(images), num_classes)
    if not is_classes and not is_rows:
        raise ValueError(
            f"targets of {targets.dtype} and shape {tuple(targets.shape)} must be int64 classes of {len(images)} images, or "
            f"floats of {(len(images), num_classes)}."
        )


def is_bytes(images: "Tensor") -> bool:
    import torch

    return images.dtype == torch.uint8


def to_rows(targets: "Tensor", num_classes: int) -> "Tensor":
    """Classes (B) as 0 and 1 in float32 (B, K). Not by `one_hot`, which on some devices waits for the numbers to check them."""
    import torch

    if targets.is_floating_point():
        return targets
    rows = torch.zeros(len(targets), num_classes, device=targets.device)
    return rows.scatter_(1, targets[:, None], 1.0)


def select_partners(items: "Tensor") -> "Tensor":
    """Item i xor 1 at every place i; the last of an odd number is its own."""
    import torch

    places = torch.arange(len(items), device=items.device)
    return items[(places ^ 1).clamp(max=len(items) - 1)]


def mix_rows(items: "Tensor", share: float) -> "Tensor":
    """Every item with `share` of its partner; items that are equal stay exactly what they are."""
    return items.lerp(select_partners(items), share)


def draw_box(generator: np.random.Generator, alpha: float, height: int, width: int) -> Corners:
    """A box of the image's shape around a middle anywhere in it, cut off at the border."""
    share = 1 - generator.beta(alpha, alpha)
    box_height, box_width = round(height * math.sqrt(share)), round(width * math.sqrt(share))
    top = int(generator.integers(height)) - box_height // 2
    left = int(generator.integers(width)) - box_width // 2
    return max(0, top), max(0, left), min(height, top + box_height), min(width, left + box_width)


def compute_share(box: Corners, height: int, width: int) -> float:
    """The part of the image that lies in the box: after the border has cut it, not as it was drawn."""
    top, left, bottom, right = box
    return (bottom - top) * (right - left) / (height * width)


def paste(images: "Tensor", box: Corners) -> "Tensor":
    """The images with what their partners have in the box."""
    top, left, bottom, right = box
    pasted = images.clone()
    pasted[:, :, top:bottom, left:right] = select_partners(images[:, :, top:bottom, left:right])
    return pasted
