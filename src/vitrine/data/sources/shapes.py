"""The built-in dataset `shapes`: generated images whose factors are the labels, for any kind of run without a download.

One coloured shape lies on a dim, uneven background, with a white hand from its centre to its rim, like that of a clock, and
one to five light dots around it. Six factors are drawn independently and uniformly: shape, colour, size, position,
orientation (where the hand points) and the number of dots. Everything else (position within its cell, shade, background) is
random too, in ranges that leave gaps between the classes. An image is a function of its split and its index alone; a task only
chooses which factors are the labels.

A shape is a signed distance from its rim, negative inside, in radii: `ahead` is measured along the hand, `aside` is 0 or more.
Other lengths are fractions of the image's side, x to the right and y down. Letters: B images of S x S pixels.
"""

import difflib
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from vitrine.core.console import join_names
from vitrine.data.source import ArraySource, Labels, Source

Factors = dict[str, np.ndarray]
"""The random values of B images, (B, ...) each, as `draw_factors` returns them."""
Distance = Callable[[np.ndarray, np.ndarray], np.ndarray]

DOT_RADIUS = 0.038

# Brightness in 0..1. It stays in this range with the noise added, so nothing is clipped.
HAND, DOT, NOISE = 0.95, 0.88, 0.035

# Pixels rendered at once: enough to hide NumPy's call overhead, few enough to need only some ten megabytes.
PIXELS_AT_ONCE = 2**17


def render(factors: Factors, image_size: int) -> np.ndarray:
    """Render images (B, S, S, 3) from their factors."""
    pixels = np.empty((len(factors["shape"]), image_size, image_size, 3), dtype=np.uint8)
    at_once = max(1, PIXELS_AT_ONCE // image_size**2)
    for kind, distance in enumerate(DISTANCES.values()):
        rows = np.flatnonzero(factors["shape"] == kind)
        for start in range(0, len(rows), at_once):
            chunk = rows[start : start + at_once]
            pixels[chunk] = render_one_shape(take_rows(factors, chunk), distance, image_size)
    return pixels


def take_rows(factors: Factors, indices: np.ndarray) -> Factors:
    return {name: values[indices] for name, values in factors.items()}


def render_one_shape(factors: Factors, distance: Distance, image_size: int) -> np.ndarray:
    """Render images that show the same kind of shape: coverage of each layer times its colour, plus noise."""
    num_images = len(factors["shape"])
    coverage = compute_coverage(factors, distance, image_size)  # (B, 5, S * S)
    ones = np.ones((num_images, 3))
    layers = [factors["background"], factors["tint"], factors["rgb"], HAND * ones, DOT * ones]
    colours = np.stack(layers, axis=1).astype(np.float32) * 255  # (B, 5, 3)
    pixels = coverage.transpose(0, 2, 1) @ colours  # (B, S * S, 3)
    pixels += make_noise(factors["noise"], image_size**2)
    return pixels.astype(np.uint8).reshape(num_images, image_size, image_size, 3)


def compute_coverage(factors: Factors, distance: Distance, image_size: int) -> np.ndarray:
    """Return how much of each pixel is background, background tint, shape, hand and dots (B, 5, S * S)."""
    line = (np.arange(image_size, dtype=np.float32) + 0.5) / image_size
    x, y = line, line[:, None]
    centre_x, centre_y, radius, angle, slope = (
        values.astype(np.float32)[:, None, None]  # (B, 1, 1)
        for values in (*factors["centre"].T, factors["radius"], factors["angle"], factors["slope"])
    )
    # Coordinates along the hand and across it, in radii. Angles count upwards, y down.
    cosine, sine = np.cos(angle) / radius, np.sin(angle) / radius
    ahead = (x - centre_x) * cosine - (y - centre_y) * sine  # (B, S, S)
    aside = np.abs((x - centre_x) * sine + (y - centre_y) * cosine)
    shape = cover(distance(ahead, aside), radius * image_size)
    hand = shape * cover(np.maximum(aside - 0.16, np.abs(ahead - 0.46) - 0.4), radius * image_size)
    dots = cover(measure_dots(factors["dots"].astype(np.float32), x, y), image_size)
    rest = 1 - shape - dots
    lean = (x - 0.5) * (math.sqrt(2) * np.cos(slope)) + (y - 0.5) * (math.sqrt(2) * np.sin(slope))  # from -1 to 1
    layers = [rest, rest * lean, shape - hand, hand, dots]
    return np.stack(layers, axis=1).reshape(len(shape), len(layers), -1)


def cover(distance: np.ndarray, scale: np.ndarray | int) -> np.ndarray:
    """Return how much of a pixel is inside, from the signed distance of its centre; `scale` converts it to pixels."""
    return np.clip(0.5 - distance * scale, 0, 1)


def measure_dots(dots: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the signed distance (B, S, S) to the nearest of the dots (B, 5, 2)."""
    squares = np.square(dots[:, :, 0, None, None] - x), np.square(dots[:, :, 1, None, None] - y)  # (B, 5, 1, S), (B, 5, S, 1)
    nearest = squares[0][:, 0] + squares[1][:, 0]
    for index in range(1, dots.shape[1]):
        np.minimum(nearest, squares[0][:, index] + squares[1][:, index], out=nearest)
    return np.sqrt(nearest) - DOT_RADIUS


def hash_pixels(seeds: np.ndarray, num_pixels: int) -> np.ndarray:
    """Return a hash of image and pixel, uint32 (B, P), from a seed of each image, uint32 (B)."""
    bits = seeds[:, None] + np.arange(num_pixels, dtype=np.uint32) * np.uint32(0x9E3779B1)  # (B, P)
    # Multiplication carries bits upwards only and shifts bring them down: two rounds mix all of them. The factors are those
    # of Wellons' public-domain hash "lowbias32".
    for factor in (0x7FEB352D, 0x846CA68B):
        bits ^= bits >> 16
        bits *= np.uint32(factor)
    bits ^= bits >> 16
    return bits


def make_noise(seeds: np.ndarray, num_pixels: int) -> np.ndarray:
    """Return noise (B, P, 3) to add to the pixels: bytes of a hash of image and pixel, without any state."""
    bits = hash_pixels(seeds, num_pixels)
    levels = bits.astype("<u4", copy=False).view(np.uint8).reshape(len(seeds), num_pixels, 4)[..., :3]
    return levels * np.float32(2 * NOISE) + np.float32(0.5 - 255 * NOISE)  # 0.5 because the conversion to bytes rounds down


# All shapes are about as large as a circle of radius 1 and, except the heart, have their centre of mass at its centre.


def measure_circle(ahead: np.ndarray, aside: np.ndarray) -> np.ndarray:
    return np.sqrt(np.square(ahead) + np.square(aside)) - 1


def measure_star(ahead: np.ndarray, aside: np.ndarray) -> np.ndarray:
    """Return the signed distance to a star, whose ten half points are folded onto one."""
    for degrees in (72, 36):
        sine, cosine = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
        beyond = np.maximum(aside * cosine - ahead * sine, 0)
        ahead, aside = ahead + 2 * sine * beyond, np.abs(aside - 2 * cosine * beyond)
    # The line from the tip, one radius ahead, to the inner corner: 0.42 radii from the centre, at 36 degrees.
    back, out = 1 - 0.42 * math.cos(math.pi / 5), 0.42 * math.sin(math.pi / 5)
    return ((ahead - 1) * out + aside * back) / math.hypot(back, out)


def measure_cross(ahead: np.ndarray, aside: np.ndarray) -> np.ndarray:
    ahead = np.abs(ahead)
    return np.maximum(np.maximum(ahead, aside) - 0.95, np.minimum(ahead, aside) - 0.3)


def measure_heart(ahead: np.ndarray, aside: np.ndarray) -> np.ndarray:
    """Return the signed distance to a heart: a square on its corner, with a half disc on each of the two sides behind."""
    reach = 0.77  # from the middle of the square to its corners
    ahead = ahead - 0.13
    square = (np.abs(ahead) + aside - reach) * math.sqrt(0.5)
    discs = np.sqrt(np.square(ahead + reach / 2) + np.square(aside - reach / 2)) - reach * math.sqrt(0.5)
    return np.minimum(square, discs)


# In label order.
DISTANCES: dict[str, Distance] = {
    "circle": measure_circle,
    "ring": lambda ahead, aside: np.abs(measure_circle(ahead, aside) + 0.3) - 0.3,
    "square": lambda ahead, aside: np.maximum(np.abs(ahead), aside) - math.sqrt(0.5),
    "bar": lambda ahead, aside: np.maximum(np.abs(ahead) - 0.91, aside - 0.4),
    "triangle": lambda ahead, aside: np.maximum(-ahead, 0.5 * ahead + math.sqrt(0.75) * aside) - 0.5,
    "star": measure_star,
    "cross": measure_cross,
    "heart": measure_heart,
}

NUM_IMAGES = {"train": 20_000, "val": 2_000, "test": 2_000}
SPLITS = tuple(NUM_IMAGES)

# All names differ, so that the classes of a task with several factors are distinct.
FACTORS: dict[str, tuple[str, ...]] = {
    "shape": tuple(DISTANCES),  # from circle to heart
    "colour": ("red", "gold", "lime", "green", "cyan", "blue", "violet", "magenta"),
    "size": ("small", "medium", "large", "huge"),
    "position": (*("top-left", "top", "top-right"), *("left", "centre", "right"), *("bottom-left", "bottom", "bottom-right")),
    "orientation": ("east", "north-east", "north", "north-west", "west", "south-west", "south", "south-east"),
    "count": ("one-dot", "two-dots", "three-dots", "four-dots", "five-dots"),
}
DEFAULT_FACTOR = "shape"
DEFAULT_SIZE, MIN_SIZE, MAX_SIZE = 32, 16, 256

# Larger splits are rendered as they are read.
MAX_BYTES_IN_MEMORY = 512 * 2**20

# The largest shape in an outer cell is still inside the image: 0.19 + 0.055 + 0.255 = 0.5.
CELL_PITCH, CELL_JITTER = 0.19, 0.055
SMALLEST_RADIUS, RADIUS_STEP, RADIUS_JITTER = 0.142, 0.035, 0.008
ANGLE_JITTER = math.radians(14)
HUE_JITTER = 10.0

# Dots are in different cells of a grid, in none that the shape touches, so they never overlap it or each other.
MAX_DOTS = len(FACTORS["count"])
DOT_GRID, DOT_JITTER, DOT_GAP = 6, 0.03, 0.03

# Number of uniform random numbers that each part of an image uses.
DRAWS = {
    "labels": len(FACTORS),
    "place": 4,
    "colour": 3,
    "background": 7,
    "noise": 1,
    "slots": DOT_GRID**2,
    "dots": 2 * MAX_DOTS,
}


def open_shapes(task: str, split: str | None) -> Source:
    """Open one split. `task` is factors joined by "+" (default: shape), then optionally "@" and the image size."""
    assert split is not None
    names, image_size = parse_task(task)
    factors = draw_factors(SPLITS.index(split), np.arange(NUM_IMAGES[split]))
    labels = Labels.one_each(factors[names[0]]) if len(names) == 1 else join_labels(factors, names)
    class_names = tuple(each for name in names for each in FACTORS[name])
    source = ShapesSource(factors, image_size, labels, class_names, f"shapes/{split}")
    if len(source) * image_size**2 * 3 > MAX_BYTES_IN_MEMORY:
        return source
    return ArraySource(render(factors, image_size), labels, class_names, source.title)


def parse_task(task: str) -> tuple[list[str], int]:
    """Parse a task into factors and image size."""
    joined, at, side = task.partition("@")
    names = joined.split("+") if joined else [DEFAULT_FACTOR]
    for name in names:
        if name not in FACTORS:
            near = difflib.get_close_matches(name, FACTORS, n=3) or list(FACTORS)
            raise ValueError(f"shapes:{task} has an unknown factor {name!r}: use {join_names(near)}.")
        if names.count(name) > 1:
            raise ValueError(f"shapes:{task} names the factor {name!r} more than once: remove the others.")
    if not at:
        return names, DEFAULT_SIZE
    is_number = side.isascii() and side.isdecimal() and len(side) <= 3
    if not is_number or not MIN_SIZE <= int(side) <= MAX_SIZE:
        expected = f"a whole number from {MIN_SIZE} to {MAX_SIZE}, e.g. shapes:{joined}@64"
        raise ValueError(f"shapes:{task} has the image size {side!r}; expected {expected}.")
    return names, int(side)


def join_labels(factors: Factors, names: list[str]) -> Labels:
    """Give each image one label of each factor, with the classes of the factors numbered consecutively."""
    firsts = np.cumsum([0, *(len(FACTORS[name]) for name in names[:-1])])
    table = np.stack([factors[name] for name in names], axis=1) + firsts  # (N, number of factors)
    # Not `several_each`, which loops over the images.
    return Labels.from_counts(table.reshape(-1), np.full(len(table), len(names)))


class ShapesSource(Source):
    """Images rendered as they are read, for image sizes that would not fit into memory."""

    def __init__(self, factors: Factors, image_size: int, labels: Labels, class_names: tuple[str, ...], title: str) -> None:
        self.factors = factors
        self.image_size = image_size
        self.labels = labels
        self.class_names = class_names
        self.title = title

    def fetch(self, index: int) -> np.ndarray:
        return render(take_rows(self.factors, np.array([index])), self.image_size)[0]

    def name(self, index: int) -> str:
        return f"{self.title}[{index}]"

    def files(self) -> list[Path]:
        return []


def draw_factors(key: int, indices: np.ndarray) -> Factors:
    """Draw the label of each factor (B) and everything else that `render` needs; `key` is the number of the split."""
    parts = draw_table(key, indices)
    kinds = {name: (parts["labels"][:, i] * len(FACTORS[name])).astype(np.int64) for i, name in enumerate(FACTORS)}
    place = 2 * parts["place"] - 1  # (B, 4): from -1 to 1
    cells = np.stack([kinds["position"] % 3, kinds["position"] // 3], axis=1)
    centre = 0.5 + CELL_PITCH * (cells - 1) + CELL_JITTER * place[:, :2]  # (B, 2)
    radius = SMALLEST_RADIUS + RADIUS_STEP * kinds["size"] + RADIUS_JITTER * place[:, 2]
    base, tint, turn = np.split(parts["background"], [3, 6], axis=1)
    return kinds | {
        "centre": centre,
        "radius": radius,
        "angle": kinds["orientation"] * np.pi / 4 + ANGLE_JITTER * place[:, 3],  # counter-clockwise from the right
        "rgb": shade(kinds["colour"], parts["colour"]),  # (B, 3)
        "background": 0.12 + 0.23 * base,  # (B, 3): in the middle of the image
        "tint": 0.16 * tint - 0.08,  # (B, 3): added towards one side, subtracted towards the other
        "slope": 2 * np.pi * turn[:, 0],
        "dots": place_dots(kinds["count"] + 1, centre, radius, parts),  # (B, 5, 2)
        "noise": (parts["noise"][:, 0] * 2**32).astype(np.uint32),
    }


def draw_table(key: int, indices: np.ndarray) -> dict[str, np.ndarray]:
    """Draw the uniform numbers of each part of the images: image i uses row i of one endless table."""
    assert indices.min(initial=0) >= 0
    num_rows, num_draws = int(indices.max(initial=-1)) + 1, sum(DRAWS.values())
    raw = np.random.Philox(key=key).random_raw(num_rows * num_draws).reshape(num_rows, num_draws)
    table = (raw[indices] >> 11) * 2.0**-53  # a float64 holds 53 bits
    ends = np.cumsum(list(DRAWS.values()))[:-1]
    return dict(zip(DRAWS, np.split(table, ends, axis=1), strict=True))


def shade(colour: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Return RGB (B, 3) of colours with a hue near their class's, neither pale nor dark."""
    hue = 45.0 * colour + HUE_JITTER * (2 * draws[:, 0] - 1)
    saturation, value = 0.72 + 0.2 * draws[:, 1], 0.8 + 0.15 * draws[:, 2]
    # Each channel is a trapezium along the hue, a third of the circle apart; in sixths of the circle:
    along = (np.array([5.0, 3.0, 1.0]) + hue[:, None] / 60) % 6
    dip = np.clip(np.minimum(along, 4 - along), 0, 1)
    return value[:, None] * (1 - saturation[:, None] * dip)


def place_dots(count: np.ndarray, centre: np.ndarray, radius: np.ndarray, parts: dict[str, np.ndarray]) -> np.ndarray:
    """Return the positions of the dots (B, 5, 2); dots that an image does not have are far outside of it."""
    lines = (np.arange(DOT_GRID) + 0.5) / DOT_GRID
    slots = np.stack(np.meshgrid(lines, lines), axis=-1).reshape(-1, 2)  # (36, 2)
    distance = np.linalg.norm(slots - centre[:, None], axis=2)  # (B, 36)
    is_taken = distance < radius[:, None] + DOT_RADIUS + DOT_GAP + DOT_JITTER * math.sqrt(2)
    chosen = np.argsort(parts["slots"] + is_taken, axis=1, kind="stable")[:, :MAX_DOTS]
    jitter = DOT_JITTER * (2 * parts["dots"].reshape(-1, MAX_DOTS, 2) - 1)
    has_dot = np.arange(MAX_DOTS) < count[:, None]
    return np.where(has_dot[..., None], slots[chosen] + jitter, -9.0)
