"""Boxes of images resized to one size: images of their own by torch's kernel, small ones in memory by matrices.

Both take the pixels of the box alone, as if it had been cut out first, and filter as Pillow does: the kernel widens when it
scales down. With Pillow, and with each other, they agree to two levels of 255: all go over bytes between the two directions.
Letters: B images, H x W pixels before, h x w after, C channels.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vitrine.data.config import TrainInterpolation
from vitrine.data.source import MAX_BLOCK_SIDE
from vitrine.data.stored import StoredImage, fit_channels

CHUNK = 128  # images at once, so that what lies between stays in the cache


def resample_images(
    images: Sequence[StoredImage],
    boxes: np.ndarray,
    size: tuple[int, int],
    interpolation: TrainInterpolation,
    num_channels: int,
) -> np.ndarray:
    """(B, h, w, C) from boxes (B, 4) of images that are decoded here."""
    resized = np.empty((len(images), *size, num_channels), dtype=np.uint8)
    for row, (image, box) in enumerate(zip(images, boxes.tolist(), strict=True)):
        resized[row] = resize(image.pixels(num_channels, tuple(box), size), size, interpolation)
    return resized


def resample_block(
    block: np.ndarray, boxes: np.ndarray, size: tuple[int, int], interpolation: TrainInterpolation, num_channels: int
) -> np.ndarray:
    """(B, h, w, C) from boxes (B, 4) of images (B, H, W, C) in memory."""
    block = fit_channels(block, num_channels)
    whole = np.array([0, 0, *block.shape[1:3]])
    if len(block) == 0 or (block.shape[1:3] == size and (boxes == whole).all()):
        return block.reshape(len(block), *size, num_channels)
    # Small ones by dense matrices, which is quicker than a call of the kernel for each.
    if max(*block.shape[1:3], *size) <= MAX_BLOCK_SIDE:
        parts = [slice(start, start + CHUNK) for start in range(0, len(block), CHUNK)]
        return np.concatenate([resample_by_matrices(block[part], boxes[part], size, interpolation) for part in parts])
    resized = np.empty((len(block), *size, num_channels), dtype=np.uint8)
    for row, (top, left, height, width) in enumerate(boxes.tolist()):
        resized[row] = resize(block[row, top : top + height, left : left + width], size, interpolation)
    return resized


def resize(pixels: np.ndarray, size: tuple[int, int], interpolation: TrainInterpolation) -> np.ndarray:
    """(H, W, C) to (h, w, C)."""
    if pixels.shape[:2] == size:
        return pixels
    # Seen as channels_last, torch takes the path that keeps the channels together: twice as quick.
    image = as_tensor(pixels)[None].permute(0, 3, 1, 2)  # (1, C, H, W)
    resized = F.interpolate(image, size, mode=interpolation, antialias=True)
    return resized[0].permute(1, 2, 0).numpy()


def as_tensor(pixels: np.ndarray) -> Tensor:
    """The same memory, unless torch would have none of it: read-only, or running backwards."""
    is_welcome = pixels.flags.writeable and min(pixels.strides, default=0) >= 0
    return torch.from_numpy(pixels if is_welcome else pixels.copy())


def resample_by_matrices(
    block: np.ndarray, boxes: np.ndarray, size: tuple[int, int], interpolation: TrainInterpolation
) -> np.ndarray:
    """Every column of pixels after is a weighted sum of columns before, and every row of rows: two products per image."""
    b, old_height, old_width, c = block.shape
    tops, lefts, heights, widths = boxes.T
    across = compute_weights(lefts, widths, old_width, size[1], interpolation)  # (B, w, W)
    down = compute_weights(tops, heights, old_height, size[0], interpolation)  # (B, h, H)
    lines = as_tensor(block).permute(0, 1, 3, 2).contiguous().float()  # (B, H, C, W)
    columns = lines.view(b, old_height * c, old_width) @ across.transpose(1, 2)  # (B, HC, w)
    columns = columns.add_(0.5).floor_().clamp_(0, 255)  # as Pillow and torch, who go over bytes and round a half up
    rows = down @ columns.view(b, old_height, c * size[1])  # (B, h, Cw)
    resized = rows.add_(0.5).clamp_(0, 255).byte().view(b, size[0], c, size[1])
    return resized.permute(0, 1, 3, 2).contiguous().numpy()  # (B, h, w, C)


def compute_weights(starts: np.ndarray, lengths: np.ndarray, old: int, new: int, interpolation: TrainInterpolation) -> Tensor:
    """(B, new, old): what each pixel before adds to each one after, for lines cut from `starts` on, `lengths` long."""
    first, length = (torch.from_numpy(values.astype(np.float32))[:, None, None] for values in (starts, lengths))
    scale = length / new  # (B, 1, 1)
    centres = first + (torch.arange(new)[:, None] + 0.5) * scale  # (B, new, 1)
    places = torch.arange(old) + 0.5  # (old)
    weights = KERNELS[interpolation]((places - centres) / scale.clamp(min=1.0))
    weights = weights * ((places > first) & (places < first + length))
    return weights / weights.sum(dim=2, keepdim=True)


def triangle(distances: Tensor) -> Tensor:
    return (1.0 - distances.abs()).clamp_(min=0.0)


def cubic(distances: Tensor) -> Tensor:
    """Keys's kernel with a = -1/2, as Pillow's, and torch's where it filters."""
    near = distances.abs()
    inner = (1.5 * near - 2.5) * near * near + 1.0
    outer = ((-0.5 * near + 2.5) * near - 4.0) * near + 2.0
    return torch.where(near < 1, inner, torch.where(near < 2, outer, torch.zeros(())))


KERNELS = {"bilinear": triangle, "bicubic": cubic}
