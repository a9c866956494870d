"""`shapes`: generated pictures whose factors are the labels, so that every kind of run can be tried without a download.

One coloured shape lies on a dim, uneven background, with a white hand from its centre towards its rim, like that of a
clock, and one to five light dots around it. Six factors are drawn independently and uniformly: the shape, its colour, its
size, its position, its orientation (where the hand points) and the count of the dots. All else (where in its cell, what
shade, which background) is drawn as well, from ranges that leave gaps between the classes. An image is a function of its
split and its index alone; a task only chooses which factors are the labels.

Lengths are parts of the image's side, x to the right and y down. Shapes: B images of S x S pixels.
"""

import difflib
import math
from pathlib import Path

import numpy as np

from vitrine.core.sentences import list_names
from vitrine.data.source import ArraySource, Labels, Source
from vitrine.data.sources.shape_drawing import DISTANCES, DOT_RADIUS, Factors, render, take

NUM_IMAGES = {"train": 20_000, "val": 2_000, "test": 2_000}
SPLITS = tuple(NUM_IMAGES)

# No name stands twice: the classes of a task with several factors are told apart by it.
FACTORS: dict[str, tuple[str, ...]] = {
    "shape": tuple(DISTANCES),  # from circle to heart
    "colour": ("red", "gold", "lime", "green", "cyan", "blue", "violet", "magenta"),
    "size": ("small", "medium", "large", "huge"),
    "position": (
        *("top-left", "top", "top-right"),
        *("left", "centre", "right"),
        *("bottom-left", "bottom", "bottom-right"),
    ),
    "orientation": ("east", "north-east", "north", "north-west", "west", "south-west", "south", "south-east"),
    "count": ("one-dot", "two-dots", "three-dots", "four-dots", "five-dots"),
}
DEFAULT_FACTOR = "shape"
DEFAULT_SIZE, MIN_SIZE, MAX_SIZE = 32, 16, 256

# A split of more pixels is drawn as it is read.
MAX_BYTES_IN_MEMORY = 512 * 2**20

# The largest shape in the outermost place still lies within the image: 0.19 + 0.055 + 0.255 = 0.5.
CELL_PITCH, CELL_JITTER = 0.19, 0.055
SMALLEST_RADIUS, RADIUS_STEP, RADIUS_JITTER = 0.142, 0.035, 0.008
ANGLE_JITTER = math.radians(14)
HUE_JITTER = 10.0

# Dots lie in different squares of a grid, none of which the shape touches: so they never meet it, nor each other.
MAX_DOTS = len(FACTORS["count"])
DOT_GRID, DOT_JITTER, DOT_GAP = 6, 0.03, 0.03

# How many numbers between 0 and 1 each part of an image takes from its row of the table.
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
    """`task`: factors joined by "+", then, if not 32, "@" and the side of the images; `shape` where no factor is named."""
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
    """The factors and the side of the images."""
    joined, at, side = task.partition("@")
    names = joined.split("+") if joined else [DEFAULT_FACTOR]
    for name in names:
        if name not in FACTORS:
            near = difflib.get_close_matches(name, FACTORS, n=3) or list(FACTORS)
            raise ValueError(f"shapes:{task} names the factor {name!r}, which is none of the data's: take {list_names(near)}.")
        if names.count(name) > 1:
            raise ValueError(f"shapes:{task} names the factor {name!r} more than once, and once is needed: remove the others.")
    if not at:
        return names, DEFAULT_SIZE
    is_number = side.isascii() and side.isdecimal() and len(side) <= 3
    if not is_number or not MIN_SIZE <= int(side) <= MAX_SIZE:
        raise ValueError(
            f"shapes:{task} asks for images of {side!r} pixels a side, and a whole number from {MIN_SIZE} to {MAX_SIZE} "
            f"was needed: write it as shapes:{'+'.join(names)}@64."
        )
    return names, int(side)


def join_labels(factors: Factors, names: list[str]) -> Labels:
    """One label of each factor, the classes of the factors counted one after the other."""
    firsts = np.cumsum([0, *(len(FACTORS[name]) for name in names[:-1])])
    table = np.stack([factors[name] for name in names], axis=1) + firsts  # (N, number of factors)
    # Not by `several_each`, which goes through the images one by one.
    return Labels.from_counts(table.reshape(-1), np.full(len(table), len(names)))


class ShapesSource(Source):
    """Images that are drawn as they are read, for sizes of which memory would not hold all."""

    def __init__(self, factors: Factors, image_size: int, labels: Labels, class_names: tuple[str, ...], title: str) -> None:
        self.factors = factors
        self.image_size = image_size
        self.labels = labels
        self.class_names = class_names
        self.title = title

    def fetch(self, index: int) -> np.ndarray:
        return render(take(self.factors, np.array([index])), self.image_size)[0]

    def name(self, index: int) -> str:
        return f"{self.title}[{index}]"

    def files(self) -> list[Path]:
        return []


def draw_factors(key: int, indices: np.ndarray) -> Factors:
    """The label of each factor (B), and whatever else `render` needs to know of the images; `key` tells splits apart."""
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
        "tint": 0.16 * tint - 0.08,  # (B, 3): what is added towards one side, and missing at the other
        "slope": 2 * np.pi * turn[:, 0],
        "dots": place_dots(kinds["count"] + 1, centre, radius, parts),  # (B, 5, 2)
        "noise": (parts["noise"][:, 0] * 2**32).astype(np.uint32),
    }


def draw_table(key: int, indices: np.ndarray) -> dict[str, np.ndarray]:
    """Numbers from 0 up to 1 for each part of the images: row i of one long table, however far it is drawn."""
    assert indices.min(initial=0) >= 0
    num_rows, num_draws = int(indices.max(initial=-1)) + 1, sum(DRAWS.values())
    raw = np.random.Philox(key=key).random_raw(num_rows * num_draws).reshape(num_rows, num_draws)
    table = (raw[indices] >> 11) * 2.0**-53  # a float64 holds 53 bits
    ends = np.cumsum(list(DRAWS.values()))[:-1]
    return dict(zip(DRAWS, np.split(table, ends, axis=1), strict=True))


def shade(colour: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Red, green and blue (B, 3) of hues around the eight, neither pale nor dark."""
    hue = 45.0 * colour + HUE_JITTER * (2 * draws[:, 0] - 1)
    saturation, value = 0.72 + 0.2 * draws[:, 1], 0.8 + 0.15 * draws[:, 2]
    # Along the hue each channel is a trapezium, a third of the circle apart; in sixths of the circle:
    along = (np.array([5.0, 3.0, 1.0]) + hue[:, None] / 60) % 6
    dip = np.clip(np.minimum(along, 4 - along), 0, 1)
    return value[:, None] * (1 - saturation[:, None] * dip)


def place_dots(count: np.ndarray, centre: np.ndarray, radius: np.ndarray, parts: dict[str, np.ndarray]) -> np.ndarray:
    """Where the dots lie (B, 5, 2); those that an image does not have lie far outside of it."""
    lines = (np.arange(DOT_GRID) + 0.5) / DOT_GRID
    slots = np.stack(np.meshgrid(lines, lines), axis=-1).reshape(-1, 2)  # (36, 2)
    distance = np.linalg.norm(slots - centre[:, None], axis=2)  # (B, 36)
    is_taken = distance < radius[:, None] + DOT_RADIUS + DOT_GAP + DOT_JITTER * math.sqrt(2)
    chosen = np.argsort(parts["slots"] + is_taken, axis=1, kind="stable")[:, :MAX_DOTS]
    jitter = DOT_JITTER * (2 * parts["dots"].reshape(-1, MAX_DOTS, 2) - 1)
    has_dot = np.arange(MAX_DOTS) < count[:, None]
    return np.where(has_dot[..., None], slots[chosen] + jitter, -9.0)
