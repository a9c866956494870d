"""Random crops: boxes drawn for a whole batch at once, and resampling of boxes to one size.

Boxes are rows of (top, left, height, width). Resampling reads only the pixels inside the box and filters like Pillow: the
kernel widens when scaling down. Photographs are resized one by one by torch's kernel, blocks of small images by matrices; both
round to bytes between the two directions, and agree with Pillow and with each other to 2 of 255 levels.
Letters: B images, H x W pixels before, h x w after, C channels.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vitrine.data.config import TrainInterpolation
from vitrine.data.image import LazyImage, fit_channels
from vitrine.data.sampling import RngStream, SampleRng
from vitrine.data.source import MAX_BLOCK_SIDE

MAX_ATTEMPTS = 100  # as in tf.image.sample_distorted_bounding_box
CHUNK = 128  # images resampled at once, so that intermediate results stay in the CPU cache


def draw_crop_boxes(
    sizes: np.ndarray, rng: SampleRng, area: tuple[float, float] = (0.05, 1.0), ratio: tuple[float, float] = (3 / 4, 4 / 3)
) -> np.ndarray:
    """Draw Inception crops: boxes (B, 4) in images of `sizes` (B, 2).

    Drawn like in the released code, by tf.image.sample_distorted_bounding_box: the ratio (width / height) is uniform, then the
    height among those that area and image allow (torchvision draws the area instead), then the position. Images in which no
    such box fits are taken whole.
    """
    boxes = np.zeros((len(sizes), 4), dtype=np.int64)
    boxes[:, 2:] = sizes
    missing = np.arange(len(sizes))
    for attempt in range(MAX_ATTEMPTS):
        uniforms = rng.take(missing).uniforms(RngStream.CROP, 4, attempt)
        heights, widths, fits = draw_shapes(sizes[missing], uniforms, area, ratio)
        done = np.flatnonzero(fits)
        shapes = np.stack([heights, widths], axis=1)[done]
        # TF draws positions below (side - crop), so only boxes that fill the image reach the last row and column.
        room = np.maximum(sizes[missing[done]] - shapes, 1)
        boxes[missing[done]] = np.concatenate([to_integers(uniforms[done, 2:], room), shapes], axis=1)
        missing = missing[~fits]
        if len(missing) == 0:
            break
    return boxes


def draw_shapes(
    sizes: np.ndarray, uniforms: np.ndarray, area: tuple[float, float], ratio: tuple[float, float]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw heights and widths (B,) of boxes, and whether each box fits into the area range and the image."""
    height, width = sizes.astype(np.float64).T
    smallest, largest = (fraction * height * width for fraction in area)
    ratios = ratio[0] + (ratio[1] - ratio[0]) * uniforms[:, 0]
    least = np.rint(np.sqrt(smallest / ratios))
    most = np.rint(np.sqrt(largest / ratios))
    # The largest height whose rounded width is still inside the image.
    most = np.where(np.rint(most * ratios) > width, np.floor((width + 0.5 - 1e-7) / ratios), most)
    most = np.minimum(most, height)
    least = np.minimum(least, most)
    heights = least + to_integers(uniforms[:, 1], most - least + 1)
    heights = np.where(heights * np.rint(heights * ratios) < smallest, heights + 1, heights)  # lost by rounding
    heights = np.where(heights * np.rint(heights * ratios) > largest, heights - 1, heights)
    widths = np.rint(heights * ratios)
    areas = heights * widths
    fits = (areas >= smallest) & (areas <= largest) & (heights <= height) & (widths <= width) & (heights > 0) & (widths > 0)
    return heights.astype(np.int64), widths.astype(np.int64), fits


def draw_offsets(room: tuple[int, int], rng: SampleRng) -> np.ndarray:
    """Draw top and left (B, 2) of windows, each uniform in 0 .. room."""
    return to_integers(rng.uniforms(RngStream.CROP, 2), np.array(room) + 1)


def to_integers(uniforms: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Turn uniforms in [0, 1) into integers in 0 .. count - 1."""
    return np.minimum(np.floor(uniforms * counts), counts - 1).astype(np.int64)


def resample_images(
    images: Sequence[LazyImage], boxes: np.ndarray, size: tuple[int, int], interpolation: TrainInterpolation, num_channels: int
) -> np.ndarray:
    """Decode images and resize their boxes (B, 4) to (B, h, w, C)."""
    resized = np.empty((len(images), *size, num_channels), dtype=np.uint8)
    for row, (image, box) in enumerate(zip(images, boxes.tolist(), strict=True)):
        resized[row] = resize(image.to_numpy(num_channels, tuple(box), size), size, interpolation)
    return resized


def resample_block(
    block: np.ndarray, boxes: np.ndarray, size: tuple[int, int], interpolation: TrainInterpolation, num_channels: int
) -> np.ndarray:
    """Resize boxes (B, 4) of a block of images (B, H, W, C) to (B, h, w, C)."""
    block = fit_channels(block, num_channels)
    whole = np.array([0, 0, *block.shape[1:3]])
    if len(block) == 0 or (block.shape[1:3] == size and (boxes == whole).all()):
        return block.reshape(len(block), *size, num_channels)
    # For small images, dense matrices are faster than one call of the kernel per image.
    if max(*block.shape[1:3], *size) <= MAX_BLOCK_SIDE:
        parts = [slice(start, start + CHUNK) for start in range(0, len(block), CHUNK)]
        return np.concatenate([resample_by_matrices(block[part], boxes[part], size, interpolation) for part in parts])
    resized = np.empty((len(block), *size, num_channels), dtype=np.uint8)
    for row, (top, left, height, width) in enumerate(boxes.tolist()):
        resized[row] = resize(block[row, top : top + height, left : left + width], size, interpolation)
    return resized


def resize(pixels: np.ndarray, size: tuple[int, int], interpolation: TrainInterpolation) -> np.ndarray:
    """Resize one image (H, W, C) to (h, w, C) by torch's antialiased kernel."""
    if pixels.shape[:2] == size:
        return pixels
    # In channels_last layout torch keeps the channels together, which is twice as fast.
    image = as_tensor(pixels)[None].permute(0, 3, 1, 2)  # (1, C, H, W)
    resized = F.interpolate(image, size, mode=interpolation, antialias=True)
    return resized[0].permute(1, 2, 0).numpy()


def as_tensor(pixels: np.ndarray) -> Tensor:
    """View an array as a tensor; read-only arrays and those with negative strides, which torch rejects, are copied."""
    can_share = pixels.flags.writeable and min(pixels.strides, default=0) >= 0
    return torch.from_numpy(pixels if can_share else pixels.copy())


def resample_by_matrices(
    block: np.ndarray, boxes: np.ndarray, size: tuple[int, int], interpolation: TrainInterpolation
) -> np.ndarray:
    """Resize by two matrix products per image: new columns are weighted sums of old ones, then rows likewise."""
    b, old_height, old_width, c = block.shape
    tops, lefts, heights, widths = boxes.T
    across = compute_weights(lefts, widths, old_width, size[1], interpolation)  # (B, w, W)
    down = compute_weights(tops, heights, old_height, size[0], interpolation)  # (B, h, H)
    lines = as_tensor(block).permute(0, 1, 3, 2).contiguous().float()  # (B, H, C, W)
    columns = lines.view(b, old_height * c, old_width) @ across.transpose(1, 2)  # (B, HC, w)
    columns = columns.add_(0.5).floor_().clamp_(0, 255)  # round to bytes, half up, as Pillow and torch do
    rows = down @ columns.view(b, old_height, c * size[1])  # (B, h, Cw)
    resized = rows.add_(0.5).clamp_(0, 255).byte().view(b, size[0], c, size[1])
    return resized.permute(0, 1, 3, 2).contiguous().numpy()  # (B, h, w, C)


def compute_weights(starts: np.ndarray, lengths: np.ndarray, old: int, new: int, interpolation: TrainInterpolation) -> Tensor:
    """Return (B, new, old): weight of each old pixel in each new one, for lines cut from `starts` with `lengths`."""
    first, length = (torch.from_numpy(values.astype(np.float32))[:, None, None] for values in (starts, lengths))
    scale = length / new  # (B, 1, 1)
    centres = first + (torch.arange(new)[:, None] + 0.5) * scale  # (B, new, 1)
    pixels = torch.arange(old) + 0.5  # (old), centres of the old pixels
    weights = KERNELS[interpolation]((pixels - centres) / scale.clamp(min=1.0))
    weights = weights * ((pixels > first) & (pixels < first + length))
    return weights / weights.sum(dim=2, keepdim=True)


def triangle(distances: Tensor) -> Tensor:
    """Bilinear kernel."""
    return (1.0 - distances.abs()).clamp_(min=0.0)


def cubic(distances: Tensor) -> Tensor:
    """Bicubic kernel of Keys with a = -1/2, as in Pillow and in torch with antialiasing."""
    near = distances.abs()
    inner = (1.5 * near - 2.5) * near * near + 1.0
    outer = ((-0.5 * near + 2.5) * near - 4.0) * near + 2.0
    return torch.where(near < 1, inner, torch.where(near < 2, outer, torch.zeros(())))


KERNELS = {"bilinear": triangle, "bicubic": cubic}
