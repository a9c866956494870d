"""Tests of data/sources/shapes.py.

`shapes`: its tasks, the factors against chi-square tests, pictures that stay what they were, and the source.
The factors of `shapes`, found again in the pictures by other means, and each shape against Pillow's drawing of it.
"""

import functools
import hashlib
import itertools
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image, ImageDraw
from scipy import ndimage, stats

from vitrine.data.source import ArraySource
from vitrine.data.sources import shapes
from vitrine.data.sources.shapes import FACTORS, NUM_IMAGES, SPLITS, ShapesSource, draw_factors, open_shapes, render, take_rows

VAL = draw_factors(SPLITS.index("val"), np.arange(NUM_IMAGES["val"]))


# What a task is.


@pytest.mark.parametrize("name", FACTORS)
def test_a_factor_is_one_label_each(name: str) -> None:
    source = open_shapes(f"{name}@16", "val")
    assert source.class_names == FACTORS[name]
    assert not source.labels.has_several
    assert source.labels.values.tolist() == VAL[name].tolist()


def test_several_factors_are_several_labels() -> None:
    source = open_shapes("colour+count+shape@16", "val")
    assert source.class_names == FACTORS["colour"] + FACTORS["count"] + FACTORS["shape"]
    for index in range(50):
        expected = [FACTORS[name][VAL[name][index]] for name in ("colour", "count", "shape")]
        assert [source.class_names[label] for label in source.labels[index]] == expected


def test_no_class_name_stands_twice() -> None:
    names = list(itertools.chain(*FACTORS.values()))
    assert len(set(names)) == len(names) == 42


def test_tasks_differ_in_labels_only() -> None:
    plain, other = open_shapes("", "val"), open_shapes("colour+size@32", "val")
    assert plain.class_names == FACTORS["shape"]
    everything = np.arange(len(plain))
    assert np.array_equal(plain.read_block(everything), other.read_block(everything))


@pytest.mark.parametrize(("task", "side"), [("", 32), ("shape", 32), ("@16", 16), ("size@64", 64), ("shape+count@33", 33)])
def test_the_side_follows_the_at(task: str, side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "MAX_BYTES_IN_MEMORY", 0)  # one image is enough
    image, _ = open_shapes(task, "test").read(0)
    assert image.to_numpy().shape == (side, side, 3)


@pytest.mark.parametrize("split", SPLITS)
def test_splits_have_their_sizes_and_names(split: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "MAX_BYTES_IN_MEMORY", 0)  # as above
    source = open_shapes("", split)
    assert len(source) == {"train": 20_000, "val": 2_000, "test": 2_000}[split]
    assert source.name(7) == f"shapes/{split}[7]"
    assert source.files() == []


@pytest.mark.parametrize(
    ("task", "sentence"),
    [
        ("color", "unknown factor 'color'"),
        ("shape+sizes", "unknown factor 'sizes'"),
        ("zzz", "unknown factor 'zzz'"),
        ("shape+", "unknown factor ''"),
        ("shape+size+shape", "names the factor 'shape' more than once"),
        ("size@", "image size ''"),
        ("@15", "image size '15'"),
        ("@257", "image size '257'"),
        ("@-32", "image size '-32'"),
        ("@32.0", "image size '32.0'"),
        ("@64@64", "image size '64@64'"),
        ("@³²", "image size '³²'"),
        ("@" + "9" * 5000, "a whole number"),  # more digits than Python makes a number of
    ],
)
def test_a_wrong_task_costs_a_sentence(task: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        open_shapes(task, "val")


# How images are drawn at random.


@pytest.mark.parametrize("split", SPLITS)
def test_factors_are_uniform_and_independent(split: str) -> None:
    factors = draw_factors(SPLITS.index(split), np.arange(NUM_IMAGES[split]))
    chances = [stats.chisquare(np.bincount(factors[name], minlength=len(FACTORS[name]))).pvalue for name in FACTORS]
    for one, other in itertools.combinations(FACTORS, 2):
        table = np.zeros((len(FACTORS[one]), len(FACTORS[other])))
        np.add.at(table, (factors[one], factors[other]), 1)
        chances.append(stats.chi2_contingency(table).pvalue)
    # The draws are fixed: of 63 fair tests the least is below 0.001 once in sixteen keys, and these keys are not that one.
    assert min(chances) > 0.001


def test_an_image_depends_on_its_index_alone() -> None:
    some = np.array([1999, 3, 3, 0, 640])
    assert_equal_factors(draw_factors(SPLITS.index("val"), some), take_rows(VAL, some))
    assert np.array_equal(render(take_rows(VAL, some), 32), render(VAL, 32)[some])


def assert_equal_factors(given: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert given.keys() == expected.keys()
    for name, values in given.items():
        assert np.array_equal(values, expected[name]), name


def test_no_image_comes_twice() -> None:
    seen = {hashlib.sha256(image).digest() for split in ("val", "test") for image in open_shapes("@16", split).pixels}
    assert len(seen) == NUM_IMAGES["val"] + NUM_IMAGES["test"]
    shades = [draw_factors(SPLITS.index(split), np.arange(NUM_IMAGES[split]))["rgb"] for split in SPLITS]
    assert len(np.unique(np.concatenate(shades), axis=0)) == sum(NUM_IMAGES.values())


def test_another_process_draws_the_same() -> None:
    program = (
        "import hashlib, numpy as np; from vitrine.data.sources.shapes import draw_factors;"
        "from vitrine.data.sources.shapes import render;"
        "print(hashlib.sha256(render(draw_factors(0, np.arange(40)), 32)).hexdigest())"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
    assert printed == hashlib.sha256(render(draw_factors(0, np.arange(40)), 32)).hexdigest()


def test_size_levels_do_not_overlap() -> None:
    bands = [VAL["radius"][VAL["size"] == level] for level in range(4)]
    assert all(upper.min() - lower.max() > 0.015 for lower, upper in itertools.pairwise(bands))


@pytest.mark.parametrize("split", SPLITS)
def test_dots_touch_nothing_and_all_lies_within(split: str) -> None:
    factors = draw_factors(SPLITS.index(split), np.arange(NUM_IMAGES[split]))
    dots, is_there = factors["dots"], factors["dots"][..., 0] > -1
    assert np.array_equal(is_there.sum(axis=1), factors["count"] + 1)
    from_centre = np.linalg.norm(dots - factors["centre"][:, None], axis=2)
    assert (from_centre[is_there] - np.broadcast_to(factors["radius"][:, None], is_there.shape)[is_there]).min() > 0.038
    apart = np.linalg.norm(dots[:, :, None] - dots[:, None], axis=3)
    both = is_there[:, :, None] & is_there[:, None] & ~np.eye(5, dtype=bool)
    assert apart[both].min() > 2 * 0.038
    assert dots[is_there].min() > 0.038
    assert dots[is_there].max() < 1 - 0.038
    room = np.minimum(factors["centre"], 1 - factors["centre"]).min(axis=1)
    assert (room - factors["radius"]).min() > 0


LABELS_OF_FIRST = [
    ["circle", "gold", "small", "right", "west", "two-dots"],
    ["cross", "green", "small", "bottom", "west", "one-dot"],
    ["star", "cyan", "large", "bottom-left", "south-west", "five-dots"],
    ["bar", "lime", "large", "bottom-right", "north-east", "four-dots"],
]
CENTRES_OF_FIRST = [[0.7391199, 0.5534673], [0.4767765, 0.7381129], [0.2853216, 0.7156207], [0.6359638, 0.7169908]]
# Mean levels of red, green and blue in the quarters of the images: (4, 2, 2, 3).
QUARTERS_OF_FIRST = [
    [[[47.75, 81.93, 80.75], [61.28, 94.45, 65.88]], [[41.18, 74.96, 84.36], [82.16, 107.29, 76.24]]],
    [[[64.55, 86.46, 49.01], [52.04, 73.78, 54.39]], [[69.38, 106.34, 44.59], [57.72, 89.18, 48.74]]],
    [[[71.05, 87.35, 91.52], [73.23, 87.2, 96.32]], [[60.03, 114.33, 105.71], [65.04, 85.44, 81.62]]],
    [[[65.11, 35.75, 64.07], [76.9, 46.75, 79.44]], [[62.6, 35.29, 57.89], [89.4, 85.93, 68.29]]],
]


def test_the_pictures_stay_what_they_were() -> None:
    """Whoever changes them changes every result that was measured on them."""
    assert FACTORS["shape"] == ("circle", "ring", "square", "bar", "triangle", "star", "cross", "heart")
    first = draw_factors(0, np.arange(4))
    labels = [[FACTORS[name][first[name][index]] for name in FACTORS] for index in range(4)]
    assert labels == LABELS_OF_FIRST
    assert np.allclose(first["centre"], CENTRES_OF_FIRST, atol=1e-6)
    quarters = render(first, 32).reshape(4, 2, 16, 2, 16, 3).mean(axis=(2, 4))
    # Another processor may round a few levels the other way: of 256 pixels each.
    assert np.allclose(quarters, QUARTERS_OF_FIRST, atol=0.05)


# As a source.


def test_large_images_are_drawn_as_they_are_read() -> None:
    source = open_shapes("count@256", "train")
    assert isinstance(source, ShapesSource)
    assert len(source) == 20_000
    assert source.read_block(np.array([5, 17_000])) is None
    image, label = pickle.loads(pickle.dumps(source)).read(17_000)
    assert image.to_numpy().shape == (256, 256, 3)
    assert np.array_equal(image.to_numpy(), source.fetch(17_000))
    assert label == source.labels[17_000]
    assert source.name(17_000) == "shapes/train[17000]"
    assert source.files() == []


def test_small_images_lie_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    held = open_shapes("shape", "test")
    assert isinstance(held, ArraySource)
    monkeypatch.setattr(shapes, "MAX_BYTES_IN_MEMORY", 0)
    drawn = open_shapes("shape", "test")
    assert isinstance(drawn, ShapesSource)
    for index in (9, 0, 1500):
        assert np.array_equal(held.read(index)[0].to_numpy(), drawn.read(index)[0].to_numpy())
    assert held.name(9) == drawn.name(9)


VAL_SHAPE_DRAWING = draw_factors(SPLITS.index("val"), np.arange(NUM_IMAGES["val"]))
SHOWN = take_rows(VAL_SHAPE_DRAWING, np.arange(600))
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
    one = take_rows(VAL_SHAPE_DRAWING, np.flatnonzero(VAL_SHAPE_DRAWING["size"] == 0)[:1])
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
    noise = shapes.make_noise(VAL_SHAPE_DRAWING["noise"][:200], 32 * 32) - 0.5  # (200, 1024, 3) around 0
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
    one = take_rows(VAL_SHAPE_DRAWING, np.flatnonzero(VAL_SHAPE_DRAWING["count"] == 0)[:1])
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
    discs = take_rows(VAL_SHAPE_DRAWING, np.flatnonzero(VAL_SHAPE_DRAWING["shape"] == 0))
    shares = shapes.compute_coverage(discs, shapes.DISTANCES["circle"], 32)
    covered = shares[:, 2:4].sum(axis=(1, 2))
    # With hard edges the sums are off by up to several pixels; soft ones still leave the error of one sample for each pixel.
    assert covered == pytest.approx(np.pi * ((discs["radius"] * 32) ** 2 + 1 / 12), abs=0.8)
    assert np.allclose(shares[:, [0, 2, 3, 4]].sum(axis=1), 1)
