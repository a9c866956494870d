"""Where images are cut: boxes for a whole batch at once, from ready random numbers.

Boxes are rows of (top, left, height, width). B images.
"""

import numpy as np

from vitrine.data.draws import Draws, Purpose

MAX_ATTEMPTS = 100  # of tf.image.sample_distorted_bounding_box


def draw_inception_boxes(
    sizes: np.ndarray, draws: Draws, area: tuple[float, float] = (0.05, 1.0), ratio: tuple[float, float] = (3 / 4, 4 / 3)
) -> np.ndarray:
    """Boxes (B, 4) in images of `sizes` (B, 2), as the released code draws them (tf.image.sample_distorted_bounding_box).

    The ratio, width by height, is uniform; so is the height among those that the area and the image allow (not the area, which
    torchvision draws); and so is the place. An image that is too long for any such box is taken whole.
    """
    boxes = np.zeros((len(sizes), 4), dtype=np.int64)
    boxes[:, 2:] = sizes
    missing = np.arange(len(sizes))
    for attempt in range(MAX_ATTEMPTS):
        uniforms = draws.take(missing).uniforms(Purpose.CROP, 4, attempt)
        heights, widths, fits = draw_shapes(sizes[missing], uniforms, area, ratio)
        found = np.flatnonzero(fits)
        shapes = np.stack([heights, widths], axis=1)[found]
        # TF draws the place below (side - crop), so that the last row and column are reached only by what fills the image.
        room = np.maximum(sizes[missing[found]] - shapes, 1)
        boxes[missing[found]] = np.concatenate([to_whole(uniforms[found, 2:], room), shapes], axis=1)
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
    heights = least + to_whole(uniforms[:, 1], most - least + 1)
    heights = np.where(heights * np.rint(heights * ratios) < smallest, heights + 1, heights)  # what rounding took away
    heights = np.where(heights * np.rint(heights * ratios) > largest, heights - 1, heights)
    widths = np.rint(heights * ratios)
    areas = heights * widths
    fits = (areas >= smallest) & (areas <= largest) & (heights <= height) & (widths <= width) & (heights > 0) & (widths > 0)
    return heights.astype(np.int64), widths.astype(np.int64), fits


def draw_offsets(room: tuple[int, int], draws: Draws) -> np.ndarray:
    """Top and left (B, 2), each uniform in 0 .. room."""
    return to_whole(draws.uniforms(Purpose.CROP, 2), np.array(room) + 1)


def to_whole(uniforms: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Whole numbers, uniform in 0 .. count - 1."""
    return np.minimum(np.floor(uniforms * counts), counts - 1).astype(np.int64)
