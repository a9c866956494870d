"""Boxes against a scalar account of TensorFlow's algorithm, closed forms of its distribution, and the bounds it promises."""

import itertools
import math
import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from vitrine.data.config import AugmentConfig
from vitrine.data.crops import draw_inception_boxes, draw_offsets, to_whole
from vitrine.data.draws import Draws, Purpose

AREA, RATIO = (0.05, 1.0), (0.75, 1.33)
UNLIKELY = 1e-6  # every input is fixed, so a test that passes once passes always; below this, chance is no excuse

# The last two hold a box only if its ratio is a lucky one, so that most attempts fail.
SIZES = [(256, 341), (500, 375), (32, 32), (28, 28), (2, 2), (3, 4), (20, 100), (100, 20), (7, 150), (150, 7)]
STRIPS = [(7, 500), (3, 1000), (1000, 3), (1, 60), (1, 1000)]

Box = tuple[int, int, int, int]
Uniforms = Iterator[float]


def draw_one_box(size: tuple[int, int], area: tuple[float, float], ratio: tuple[float, float], uniforms: Uniforms) -> Box:
    """tf.image.sample_distorted_bounding_box without objects to cover, as its kernel (GenerateRandomCrop) goes about it.

    Four numbers for each attempt: ratio, height, top, left.
    """
    height, width = size
    for _ in range(100):
        at_ratio, at_height, at_top, at_left = (next(uniforms) for _ in range(4))
        shape = draw_one_shape(size, area, ratio[0] + (ratio[1] - ratio[0]) * at_ratio, at_height)
        if shape is not None:
            # TF's Uniform(n) is below n, and n is the room here and not the room + 1.
            top = math.floor(at_top * (height - shape[0])) if shape[0] < height else 0
            left = math.floor(at_left * (width - shape[1])) if shape[1] < width else 0
            return top, left, *shape
    return 0, 0, height, width


def draw_one_shape(size: tuple[int, int], area: tuple[float, float], ratio: float, uniform: float) -> tuple[int, int] | None:
    height, width = size
    least, most = area[0] * height * width, area[1] * height * width
    low, high = round(math.sqrt(least / ratio)), round(math.sqrt(most / ratio))  # Python, as lrintf, rounds halves to even
    if round(high * ratio) > width:
        high = int((width + 0.5 - 1e-7) / ratio)
        if round(high * ratio) > width:
            high -= 1
    high = min(high, height)
    low = min(low, high)
    tall = low + math.floor(uniform * (high - low + 1))
    wide = round(tall * ratio)
    if tall * wide < least:
        tall += 1
        wide = round(tall * ratio)
    if tall * wide > most:
        tall -= 1
        wide = round(tall * ratio)
    is_good = least <= tall * wide <= most and 0 < tall <= height and 0 < wide <= width
    return (tall, wide) if is_good else None


def draw_many(size: tuple[int, int], num_boxes: int, seed: int = 0, **limits: tuple[float, float]) -> np.ndarray:
    draws = Draws(seed, np.zeros(num_boxes, np.int64), np.arange(num_boxes))
    return draw_inception_boxes(np.tile(np.array(size), (num_boxes, 1)), draws, **({"ratio": RATIO} | limits))


def test_the_limits_are_the_usual_ones() -> None:
    config = AugmentConfig()
    assert (config.crop_area, config.crop_ratio) == ((0.05, 1.0), (3 / 4, 4 / 3))
    plain = Draws(0, np.zeros(500, np.int64), np.arange(500))
    sizes = np.full((500, 2), 1000)
    expected = draw_inception_boxes(sizes, plain, config.crop_area, config.crop_ratio)
    np.testing.assert_array_equal(draw_inception_boxes(sizes, plain), expected)


LIMITS = [(AREA, RATIO), ((0.08, 1.0), (3 / 4, 4 / 3)), ((0.5, 0.6), (0.5, 2.0))]
SELDOM = ((AREA, (0.75, 1.22)), (7, 160))  # one attempt in 80 is good, so that it shows how many there are
CASES = [*itertools.product(LIMITS, SIZES), *itertools.product(LIMITS[:1], [*STRIPS, (1, 1)]), SELDOM]


@pytest.mark.parametrize(("limits", "size"), CASES)
def test_a_box_is_the_algorithm_s_for_the_same_numbers(
    limits: tuple[tuple[float, float], tuple[float, float]], size: tuple[int, int]
) -> None:
    area, ratio = limits
    num_boxes = 60
    draws = Draws(3, np.full(num_boxes, 2), np.arange(num_boxes))
    attempts = np.stack([draws.uniforms(Purpose.CROP, 4, attempt) for attempt in range(100)], axis=1)  # (B, 100, 4)
    expected = [draw_one_box(size, area, ratio, iter(numbers.ravel().tolist())) for numbers in attempts]
    boxes = draw_inception_boxes(np.tile(np.array(size), (num_boxes, 1)), draws, area, ratio)
    np.testing.assert_array_equal(boxes, expected)


MEASURES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "area": lambda boxes: boxes[:, 2] * boxes[:, 3],
    "ratio": lambda boxes: boxes[:, 3] / boxes[:, 2],
    "height": lambda boxes: boxes[:, 2],
    "width": lambda boxes: boxes[:, 3],
    "top": lambda boxes: boxes[:, 0],
    "left": lambda boxes: boxes[:, 1],
    "bottom": lambda boxes: boxes[:, 0] + boxes[:, 2],
}


@pytest.mark.parametrize("size", SIZES)
def test_boxes_are_distributed_as_the_algorithm_s(size: tuple[int, int]) -> None:
    """With numbers of Python's own generator for the algorithm: it finds what equal numbers would hide."""
    generator = random.Random(5)
    uniforms = iter(generator.random, None)
    expected = np.array([draw_one_box(size, AREA, RATIO, uniforms) for _ in range(4000)])
    boxes = draw_many(size, 4000, seed=1)
    for name, measure in MEASURES.items():
        assert stats.ks_2samp(measure(boxes), measure(expected), method="asymp").pvalue > UNLIKELY, name
    if min(size) <= 32:  # few values, where Kolmogorov and Smirnov see little
        for name, measure in MEASURES.items():
            values, which = np.unique(np.concatenate([measure(boxes), measure(expected)]), return_inverse=True)
            table = np.stack([np.bincount(part, minlength=len(values)) for part in np.split(which, 2)])
            table = table[:, table.sum(axis=0) >= 10]
            if table.shape[1] > 1:
                assert stats.chi2_contingency(table).pvalue > UNLIKELY, name


def test_ratio_height_and_place_are_uniform_in_a_large_image() -> None:
    boxes = draw_many((20_000, 20_000), 5000)
    ratios = boxes[:, 3] / boxes[:, 2]
    assert stats.kstest(ratios, stats.uniform(RATIO[0], RATIO[1] - RATIO[0]).cdf).pvalue > UNLIKELY
    least, most = 20_000 * np.sqrt(0.05 / ratios), 20_000 * np.minimum(1, 1 / ratios)
    assert stats.kstest((boxes[:, 2] - least) / (most - least), "uniform").pvalue > UNLIKELY
    room = 20_000 - boxes[:, 2:]
    is_wide = (room > 1000).all(axis=1)
    places = boxes[is_wide, :2] / room[is_wide]
    for place in places.T:
        assert stats.kstest(place, "uniform").pvalue > UNLIKELY
    for first, second in ((ratios[is_wide], places[:, 0]), (places[:, 0], places[:, 1]), (boxes[is_wide, 2], places[:, 1])):
        assert abs(np.corrcoef(first, second)[0, 1]) < 5.5 / np.sqrt(len(first))


def test_the_last_row_and_column_are_reached_only_by_boxes_that_fill_the_image() -> None:
    """TF's quirk, which models were trained with."""
    boxes = draw_many((12, 12), 20_000)
    room = 12 - boxes[:, 2:]
    has_room = room > 0
    assert (boxes[:, :2][~has_room] == 0).all()
    assert (boxes[:, :2] < room)[has_room].all()
    assert (boxes[:, :2] == room - 1)[has_room].any()


@pytest.mark.parametrize("size", STRIPS)
def test_a_strip_is_taken_whole(size: tuple[int, int]) -> None:
    assert (draw_many(size, 20) == np.array([0, 0, *size])).all()


def test_one_pixel_is_taken_whole() -> None:
    assert (draw_many((1, 1), 50) == np.array([0, 0, 1, 1])).all()


@given(
    st.lists(st.tuples(st.integers(1, 600), st.integers(1, 600)), min_size=1, max_size=8),
    st.tuples(st.floats(0.001, 1), st.floats(0.001, 1)).map(lambda pair: (min(pair), max(pair))),
    st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)).map(lambda pair: (min(pair), max(pair))),
    st.integers(0, 2**63),
)
@settings(max_examples=25, deadline=None)
def test_bounds_hold(sizes: list[tuple[int, int]], area: tuple[float, float], ratio: tuple[float, float], seed: int) -> None:
    draws = Draws(seed, np.zeros(len(sizes), np.int64), np.arange(len(sizes)))
    boxes = draw_inception_boxes(np.array(sizes), draws, area, ratio)
    assert boxes.dtype == np.int64
    for (height, width), (top, left, tall, wide) in zip(sizes, boxes.tolist(), strict=True):
        assert tall >= 1
        assert wide >= 1
        assert 0 <= top <= height - tall
        assert 0 <= left <= width - wide
        if (tall, wide) != (height, width):
            assert area[0] * height * width <= tall * wide <= area[1] * height * width
            assert (wide + 0.5) / tall >= ratio[0] * (1 - 1e-9)
            assert (wide - 0.5) / tall <= ratio[1] * (1 + 1e-9)


def test_a_box_does_not_depend_on_the_other_images() -> None:
    """Images that want many attempts beside images that want one."""
    sizes = np.array([(256, 341), (7, 150), (3, 1000), (32, 32), (150, 7), (1, 1)] * 4)
    epochs, indices = np.arange(24) % 7, np.arange(24) * 3
    together = draw_inception_boxes(sizes, Draws(1, epochs, indices))
    for row in range(24):
        mine = slice(row, row + 1)
        np.testing.assert_array_equal(draw_inception_boxes(sizes[mine], Draws(1, epochs[mine], indices[mine])), together[mine])
    backwards = draw_inception_boxes(sizes[::-1], Draws(1, epochs[::-1], indices[::-1]))
    np.testing.assert_array_equal(backwards[::-1], together)


def test_no_images_give_no_boxes() -> None:
    none = np.zeros(0, np.int64)
    assert draw_inception_boxes(np.zeros((0, 2), np.int64), Draws(0, none, none)).shape == (0, 4)
    assert draw_offsets((4, 4), Draws(0, none, none)).shape == (0, 2)


def test_offsets_are_uniform_with_both_ends() -> None:
    draws = Draws(2, np.zeros(30_000, np.int64), np.arange(30_000))
    offsets = draw_offsets((4, 8), draws)
    assert (offsets.shape, offsets.dtype) == ((30_000, 2), np.int64)
    assert (offsets.min(axis=0).tolist(), offsets.max(axis=0).tolist()) == ([0, 0], [4, 8])
    cells = np.bincount(offsets[:, 0] * 9 + offsets[:, 1], minlength=45)
    assert len(cells) == 45
    assert stats.chisquare(cells).pvalue > UNLIKELY
    assert (draw_offsets((0, 0), draws) == 0).all()


def test_whole_numbers_stay_below_their_count() -> None:
    almost_one = 1 - 2.0**-53
    counts = np.array([1, 2, 3, 9, 10**6, 2**52 + 1, 2**53])
    assert (to_whole(np.full(7, almost_one), counts) == counts - 1).all()
    assert (to_whole(np.zeros(7), counts) == 0).all()
    assert to_whole(np.array([0.0, 0.249, 0.25, 0.5, 0.75]), np.array(4)).tolist() == [0, 0, 1, 2, 3]
