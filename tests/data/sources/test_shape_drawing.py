"""The factors of `shapes`, found again in the pictures by other means, and each shape against Pillow's drawing of it."""

import functools
import itertools

import numpy as np
import pytest
from PIL import Image, ImageDraw
from scipy import ndimage

from vitrine.data.sources import shape_drawing
from vitrine.data.sources.shape_drawing import render, take
from vitrine.data.sources.shapes import FACTORS, NUM_IMAGES, SPLITS, draw_factors

VAL = draw_factors(SPLITS.index("val"), np.arange(NUM_IMAGES["val"]))
SHOWN = take(VAL, np.arange(600))
SIDES = [32, pytest.param(64, marks=pytest.mark.full)]


@functools.cache
def show(side: int) -> np.ndarray:
    """The pictures of SHOWN with levels from 0 to 1."""
    return render(SHOWN, side) / np.float32(255)


def is_coloured(pictures: np.ndarray) -> np.ndarray:
    """Background, hand and dots are all greyer than any shape."""
    return pictures.max(axis=3) - pictures.min(axis=3) > 0.48


def is_light(pictures: np.ndarray) -> np.ndarray:
    """Hand and dots: the others have at least one channel that is low."""
    return pictures.min(axis=3) > 0.5


def find_centroids(weights: np.ndarray) -> np.ndarray:
    """(B, H, W) to (B, 2): x and y as parts of the side."""
    line = (np.arange(weights.shape[1]) + 0.5) / weights.shape[1]
    total = np.maximum(weights.sum(axis=(1, 2)), 1e-9)
    return np.stack([weights.sum(axis=1) @ line, weights.sum(axis=2) @ line], axis=1) / total[:, None]


def measure_distances(centres: np.ndarray, side: int) -> np.ndarray:
    """(B, S, S) of each pixel from the centre of its image (B, 2)."""
    line = (np.arange(side) + 0.5) / side
    return np.hypot(line - centres[:, 0, None, None], line[:, None] - centres[:, 1, None, None])


def is_on_shape(pictures: np.ndarray) -> np.ndarray:
    """Shape and hand: what is coloured, and what is light and nearer than the dots can be."""
    coloured = is_coloured(pictures)
    reach = np.where(coloured, measure_distances(find_centroids(coloured), pictures.shape[1]), 0).max(axis=(1, 2))
    near = measure_distances(find_centroids(coloured), pictures.shape[1]) < reach[:, None, None] * 1.1
    return coloured | (is_light(pictures) & near)


# What is to be seen.


@pytest.mark.parametrize("side", SIDES)
def test_the_hue_tells_the_colour(side: int) -> None:
    pictures = show(side)
    mask = is_coloured(pictures)[..., None]
    red, green, blue = ((pictures * mask).sum(axis=(1, 2)) / mask.sum(axis=(1, 2))).T
    hue = np.rad2deg(np.arctan2(np.sqrt(3) * (green - blue), 2 * red - green - blue))  # on the circle of hues
    assert np.array_equal(np.round(hue / 45).astype(int) % 8, SHOWN["colour"])


@pytest.mark.parametrize("side", SIDES)
def test_the_centroid_tells_the_position(side: int) -> None:
    column, row = np.round((find_centroids(is_on_shape(show(side))) - 0.5) / 0.19).astype(int).T + 1
    assert (
        np.mean(3 * row + column == SHOWN["position"]) > 0.99
    )  # a thin shape may vanish beside its hand, and only its rear be seen


@pytest.mark.parametrize("side", SIDES)
def test_the_hand_tells_the_orientation(side: int) -> None:
    pictures = show(side)
    on_shape = is_on_shape(pictures)
    # How white it is, from the middle of the shape; of a ring the inside is not white, so the hand is what lies on it.
    hand = find_centroids(np.where(on_shape, np.clip(pictures.min(axis=3) - 0.35, 0, 1), 0))
    right, down = (hand - find_centroids(on_shape)).T
    sector = np.round(np.arctan2(-down, right) / (np.pi / 4)).astype(int) % 8
    assert np.mean(sector == SHOWN["orientation"]) > 0.99  # as above


def test_orientation_is_seen_on_every_shape() -> None:
    """Of two images that differ in orientation alone, by any number of sectors, many pixels differ."""
    one = take(VAL, np.flatnonzero(VAL["size"] == 0)[:1])
    for kind in range(len(FACTORS["shape"])):
        turned = {name: np.repeat(values, 8, axis=0) for name, values in one.items()}
        turned |= {"shape": np.full(8, kind), "angle": np.arange(8) * np.pi / 4}
        pictures = render(turned, 32).astype(int)
        for first, second in itertools.combinations(pictures, 2):
            assert (np.abs(first - second).max(axis=2) > 60).sum() >= 4


# Of a circumscribed circle of radius 1, by elementary geometry.
AREAS = {
    "circle": np.pi,
    "ring": np.pi * (1 - 0.4**2),
    "square": 2,
    "bar": 1.82 * 0.8,
    "triangle": 0.75 * np.sqrt(3),
    "star": 5 * 0.42 * np.sin(np.pi / 5),
    "cross": 2 * 1.9 * 0.6 - 0.6**2,
    "heart": (2 + np.pi / 2) * 0.77**2,
}


def test_the_area_tells_the_size() -> None:
    is_near = measure_distances(SHOWN["centre"], 64) < SHOWN["radius"][:, None, None] + 0.5 / 64
    is_bright = show(64).max(axis=3) > 0.55  # the backgrounds are not
    covered = (is_bright & is_near).mean(axis=(1, 2))
    radius = np.sqrt(covered / np.array([AREAS[name] for name in FACTORS["shape"]])[SHOWN["shape"]])
    assert np.array_equal(np.round((radius - 0.142) / 0.035).astype(int), SHOWN["size"])


def test_the_dots_can_be_counted() -> None:
    is_outside = measure_distances(SHOWN["centre"], 64) > SHOWN["radius"][:, None, None] + 0.5 / 64
    loose = is_light(show(64)) & is_outside
    counted = [ndimage.label(each, structure=np.ones((3, 3)))[1] for each in loose]
    assert counted == (SHOWN["count"] + 1).tolist()


def test_no_level_leaves_the_byte() -> None:
    """One that did would come out at the other end."""
    for side in (32, 64):
        assert show(side).min() >= 1 / 255
        assert show(side).max() <= 252 / 255


def test_noise_is_even_and_without_pattern() -> None:
    noise = shape_drawing.make_noise(VAL["noise"][:200], 32 * 32) - 0.5  # (200, 1024, 3) around 0
    assert np.abs(noise).max() == pytest.approx(255 * 0.035, rel=1e-5)
    assert noise.std() == pytest.approx(255 * 0.035 / np.sqrt(3), rel=0.01)
    # Channels, neighbours to the right and below, images one after the other: 200,000 pairs, so within 5 / sqrt(200,000).
    pairs = [(noise[..., 0], noise[..., 1]), (noise[..., 1], noise[..., 2]), (noise[:-1, :, 0], noise[1:, :, 0])]
    pairs += [(noise[:, :-1, 0], noise[:, 1:, 0]), (noise[:, :-32, 0], noise[:, 32:, 0])]
    for one, other in pairs:
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.0112


# Each shape against Pillow, which fills polygons and ellipses by itself.


def draw_with_pillow(name: str, side: int) -> np.ndarray:
    """The shape with its hand to the right, at the middle of the image, of a quarter of its side."""
    canvas = Image.new("L", (side, side))
    draw = ImageDraw.Draw(canvas)

    def place(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
        return [(side * (0.5 + x / 4) - 0.5, side * (0.5 + y / 4) - 0.5) for x, y in points]

    def disc(x: float, y: float, radius: float, fill: int = 255) -> None:
        draw.ellipse([*place([(x - radius, y - radius)])[0], *place([(x + radius, y + radius)])[0]], fill=fill)

    def fan(*polar: tuple[float, float]) -> None:
        """A polygon from radii and degrees."""
        draw.polygon(place([(r * np.cos(np.deg2rad(d)), r * np.sin(np.deg2rad(d))) for r, d in polar]), fill=255)

    def box(x: float, y: float) -> None:
        draw.polygon(place([(-x, -y), (x, -y), (x, y), (-x, y)]), fill=255)

    if name == "circle":
        disc(0, 0, 1)
    elif name == "ring":
        disc(0, 0, 1)
        disc(0, 0, 0.4, fill=0)
    elif name == "square":
        fan(*((1, 45 + 90 * i) for i in range(4)))
    elif name == "bar":
        box(0.91, 0.4)
    elif name == "triangle":
        fan(*((1, 120 * i) for i in range(3)))
    elif name == "star":
        fan(*((1 if i % 2 == 0 else 0.42, 36 * i) for i in range(10)))
    elif name == "cross":
        box(0.95, 0.3)
        box(0.3, 0.95)
    else:
        draw.polygon(place([(0.9, 0), (0.13, 0.77), (-0.64, 0), (0.13, -0.77)]), fill=255)
        disc(0.13 - 0.385, 0.385, 0.77 * 0.5**0.5)
        disc(0.13 - 0.385, -0.385, 0.77 * 0.5**0.5)
    return np.asarray(canvas) > 0


@pytest.mark.parametrize("name", FACTORS["shape"])
def test_shapes_are_those_of_pillow(name: str) -> None:
    one = take(VAL, np.flatnonzero(VAL["count"] == 0)[:1])
    one |= {
        "shape": np.array([FACTORS["shape"].index(name)]),
        "centre": np.array([[0.5, 0.5]]),
        "radius": np.array([0.25]),
        "angle": np.array([0.0]),
        "dots": np.full((1, 5, 2), -9.0),
    }
    picture = render(one, 256) / np.float32(255)
    ours = (is_coloured(picture) | is_light(picture))[0]
    # Pillow fills every pixel that an edge passes through: small ones, of which a majority decides.
    theirs = draw_with_pillow(name, 2048).reshape(256, 8, 256, 8).mean(axis=(1, 3)) > 0.5
    assert (ours & theirs).sum() / (ours | theirs).sum() > 0.97


def test_edges_are_soft() -> None:
    """What is covered of the pixels adds up to a disc's area, and to 1 / 12 of a pixel more for the soft rim's curvature."""
    discs = take(VAL, np.flatnonzero(VAL["shape"] == 0))
    shares = shape_drawing.compute_shares(discs, shape_drawing.DISTANCES["circle"], 32)
    covered = shares[:, 2:4].sum(axis=(1, 2))
    # With hard edges the sums are off by up to several pixels; soft ones still leave the error of one sample for each pixel.
    assert covered == pytest.approx(np.pi * ((discs["radius"] * 32) ** 2 + 1 / 12), abs=0.8)
    assert np.allclose(shares[:, [0, 2, 3, 4]].sum(axis=1), 1)
