"""Random resized crops: boxes, and resampling of boxes.

Where images are cut: boxes for a whole batch at once, from ready random numbers.

Boxes are rows of (top, left, height, width). B images.
Boxes of images resized to one size: images of their own by torch's kernel, small ones in memory by matrices.

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
from vitrine.data.image import LazyImage, fit_channels
from vitrine.data.sampling import RngStream, SampleRng
from vitrine.data.source import MAX_BLOCK_SIDE

MAX_ATTEMPTS = 100  # of tf.image.sample_distorted_bounding_box


def draw_crop_boxes(
    sizes: np.ndarray, draws: SampleRng, area: tuple[float, float] = (0.05, 1.0), ratio: tuple[float, float] = (3 / 4, 4 / 3)
) -> np.ndarray:
    """Boxes (B, 4) in images of `sizes` (B, 2), as the released code draws them (tf.image.sample_distorted_bounding_box).

    The ratio, width by height, is uniform; so is the height among those that the area and the image allow (not the area, which
    torchvision draws); and so is the place. An image that is too long for any such box is taken whole.
    """
    boxes = np.zeros((len(sizes), 4), dtype=np.int64)
    boxes[:, 2:] = sizes
    missing = np.arange(len(sizes))
    for attempt in range(MAX_ATTEMPTS):
        uniforms = draws.take(missing).uniforms(RngStream.CROP, 4, attempt)
        heights, widths, fits = draw_shapes(sizes[missing], uniforms, area, ratio)
        found = np.flatnonzero(fits)
        shapes = np.stack([heights, widths], axis=1)[found]
        # TF draws the place below (side - crop), so that the last row and column are reached only by what fills the image.
        room = np.maximum(sizes[missing[found]] - shapes, 1)
        boxes[missing[found]] = np.concatenate([to_integers(uniforms[found, 2:], room), shapes], axis=1)
        missing = missing[~fits]
        if len(missing) == 0:
            break
    return boxes


def draw_shapes(
    sizes: np.ndarray, uniforms: np.ndarray, area: tuple[float, float], ratio: tuple[float, float]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Heights and widths (B,), and whether each keeps to the area and the image."""
    height, width = sizes.astype(np.float64).T
    smallest, largest = (share * height * width for share in area)
    ratios = ratio[0] + (ratio[1] - ratio[0]) * uniforms[:, 0]
    least = np.rint(np.sqrt(smallest / ratios))
    most = np.rint(np.sqrt(largest / ratios))
    # The greatest height whose width, rounded, is still inside.
    most = np.where(np.rint(most * ratios) > width, np.floor((width + 0.5 - 1e-7) / ratios), most)
    most = np.minimum(most, height)
    least = np.minimum(least, most)
    heights = least + to_integers(uniforms[:, 1], most - least + 1)
    heights = np.where(heights * np.rint(heights * ratios) < smallest, heights + 1, heights)  # what rounding took away
    heights = np.where(heights * np.rint(heights * ratios) > largest, heights - 1, heights)
    widths = np.rint(heights * ratios)
    areas = heights * widths
    fits = (areas >= smallest) & (areas <= largest) & (heights <= height) & (widths <= width) & (heights > 0) & (widths > 0)
    return heights.astype(np.int64), widths.astype(np.int64), fits


def draw_offsets(room: tuple[int, int], draws: SampleRng) -> np.ndarray:
    """Top and left (B, 2), each uniform in 0 .. room."""
    return to_integers(draws.uniforms(RngStream.CROP, 2), np.array(room) + 1)


def to_integers(uniforms: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Whole numbers, uniform in 0 .. count - 1."""
    return np.minimum(np.floor(uniforms * counts), counts - 1).astype(np.int64)


CHUNK = 128  # images at once, so that what lies between stays in the cache


def resample_images(
    images: Sequence[LazyImage],
    boxes: np.ndarray,
    size: tuple[int, int],
    interpolation: TrainInterpolation,
    num_channels: int,
) -> np.ndarray:
    """(B, h, w, C) from boxes (B, 4) of images that are decoded here."""
    resized = np.empty((len(images), *size, num_channels), dtype=np.uint8)
    for row, (image, box) in enumerate(zip(images, boxes.tolist(), strict=True)):
        resized[row] = resize(image.to_numpy(num_channels, tuple(box), size), size, interpolation)
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
