"""Crop boxes against a scalar version of TensorFlow's algorithm; resampling against Pillow, also of JPEGs at smaller scale."""

import io
import itertools
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from scipy import stats

from vitrine.data.augment.crops import (
    draw_crop_boxes,
    draw_offsets,
    resample_block,
    resample_by_matrices,
    resample_images,
    resize,
    to_integers,
)
from vitrine.data.config import AugmentConfig, TrainInterpolation
from vitrine.data.image import Box, LazyImage
from vitrine.data.sampling import RngStream, SampleRng
from vitrine.data.source import MAX_BLOCK_SIDE

AREA, RATIO = (0.05, 1.0), (0.75, 1.33)
UNLIKELY = 1e-6  # p-value; inputs are fixed, so a test that passes once passes always

# In the last two, a box fits only with few ratios, so most attempts fail.
SIZES = [(256, 341), (500, 375), (32, 32), (28, 28), (2, 2), (3, 4), (20, 100), (100, 20), (7, 150), (150, 7)]
STRIPS = [(7, 500), (3, 1000), (1000, 3), (1, 60), (1, 1000), (1, 1)]

Uniforms = Iterator[float]


def draw_one_box(size: tuple[int, int], area: tuple[float, float], ratio: tuple[float, float], uniforms: Uniforms) -> Box:
    """tf.image.sample_distorted_bounding_box without objects, after its kernel GenerateRandomCrop.

    Four numbers for each attempt: ratio, height, top, left.
    """
    height, width = size
    for _ in range(100):
        at_ratio, at_height, at_top, at_left = (next(uniforms) for _ in range(4))
        shape = draw_one_shape(size, area, ratio[0] + (ratio[1] - ratio[0]) * at_ratio, at_height)
        if shape is not None:
            # TF's Uniform(n) is below n, and n is the room here, not the room + 1.
            top = math.floor(at_top * (height - shape[0])) if shape[0] < height else 0
            left = math.floor(at_left * (width - shape[1])) if shape[1] < width else 0
            return top, left, *shape
    return 0, 0, height, width


def draw_one_shape(size: tuple[int, int], area: tuple[float, float], ratio: float, uniform: float) -> tuple[int, int] | None:
    height, width = size
    least, most = area[0] * height * width, area[1] * height * width
    low, high = round(math.sqrt(least / ratio)), round(math.sqrt(most / ratio))  # Python rounds halves to even, like lrintf
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
    rng = SampleRng(seed, np.zeros(num_boxes, np.int64), np.arange(num_boxes))
    return draw_crop_boxes(np.tile(np.array(size), (num_boxes, 1)), rng, **({"ratio": RATIO} | limits))


def test_default_limits() -> None:
    config = AugmentConfig()
    assert (config.crop_area, config.crop_ratio) == ((0.05, 1.0), (3 / 4, 4 / 3))
    plain = SampleRng(0, np.zeros(500, np.int64), np.arange(500))
    sizes = np.full((500, 2), 1000)
    expected = draw_crop_boxes(sizes, plain, config.crop_area, config.crop_ratio)
    np.testing.assert_array_equal(draw_crop_boxes(sizes, plain), expected)


LIMITS = [(AREA, RATIO), ((0.08, 1.0), (3 / 4, 4 / 3)), ((0.5, 0.6), (0.5, 2.0))]
SELDOM = ((AREA, (0.75, 1.22)), (7, 160))  # one attempt in 80 succeeds, so the number of attempts matters
CASES = [*itertools.product(LIMITS, SIZES), *itertools.product(LIMITS[:1], STRIPS), SELDOM]


@pytest.mark.parametrize(("limits", "size"), CASES)
def test_boxes_equal_the_reference_for_the_same_numbers(
    limits: tuple[tuple[float, float], tuple[float, float]], size: tuple[int, int]
) -> None:
    area, ratio = limits
    num_boxes = 60
    rng = SampleRng(3, np.full(num_boxes, 2), np.arange(num_boxes))
    attempts = np.stack([rng.uniforms(RngStream.CROP, 4, attempt) for attempt in range(100)], axis=1)  # (B, 100, 4)
    expected = [draw_one_box(size, area, ratio, iter(numbers.ravel().tolist())) for numbers in attempts]
    boxes = draw_crop_boxes(np.tile(np.array(size), (num_boxes, 1)), rng, area, ratio)
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
def test_boxes_are_distributed_like_the_reference(size: tuple[int, int]) -> None:
    """With random numbers of Python for the reference."""
    generator = random.Random(5)
    uniforms = iter(generator.random, None)
    expected = np.array([draw_one_box(size, AREA, RATIO, uniforms) for _ in range(4000)])
    boxes = draw_many(size, 4000, seed=1)
    for name, measure in MEASURES.items():
        assert stats.ks_2samp(measure(boxes), measure(expected), method="asymp").pvalue > UNLIKELY, name
    if min(size) <= 32:  # few values, for which the Kolmogorov-Smirnov test is weak
        for name, measure in MEASURES.items():
            values, which = np.unique(np.concatenate([measure(boxes), measure(expected)]), return_inverse=True)
            table = np.stack([np.bincount(part, minlength=len(values)) for part in np.split(which, 2)])
            table = table[:, table.sum(axis=0) >= 10]
            if table.shape[1] > 1:
                assert stats.chi2_contingency(table).pvalue > UNLIKELY, name


def test_ratio_height_and_position_are_uniform_in_a_large_image() -> None:
    boxes = draw_many((20_000, 20_000), 5000)
    ratios = boxes[:, 3] / boxes[:, 2]
    assert stats.kstest(ratios, stats.uniform(RATIO[0], RATIO[1] - RATIO[0]).cdf).pvalue > UNLIKELY
    least, most = 20_000 * np.sqrt(0.05 / ratios), 20_000 * np.minimum(1, 1 / ratios)
    assert stats.kstest((boxes[:, 2] - least) / (most - least), "uniform").pvalue > UNLIKELY
    room = 20_000 - boxes[:, 2:]
    is_wide = (room > 1000).all(axis=1)
    positions = boxes[is_wide, :2] / room[is_wide]
    for position in positions.T:
        assert stats.kstest(position, "uniform").pvalue > UNLIKELY
    for first, second in ((ratios[is_wide], positions[:, 0]), positions.T, (boxes[is_wide, 2], positions[:, 1])):
        assert abs(np.corrcoef(first, second)[0, 1]) < 5.5 / np.sqrt(len(first))


def test_only_boxes_that_fill_the_image_reach_the_last_row_and_column() -> None:
    """A quirk of TF with which models were trained."""
    boxes = draw_many((12, 12), 20_000)
    room = 12 - boxes[:, 2:]
    has_room = room > 0
    assert (boxes[:, :2][~has_room] == 0).all()
    assert (boxes[:, :2] < room)[has_room].all()
    assert (boxes[:, :2] == room - 1)[has_room].any()


@pytest.mark.parametrize("size", STRIPS)
def test_strip_is_taken_whole(size: tuple[int, int]) -> None:
    assert (draw_many(size, 20) == np.array([0, 0, *size])).all()


@given(
    st.lists(st.tuples(st.integers(1, 600), st.integers(1, 600)), min_size=1, max_size=8),
    st.tuples(st.floats(0.001, 1), st.floats(0.001, 1)).map(lambda pair: (min(pair), max(pair))),
    st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)).map(lambda pair: (min(pair), max(pair))),
    st.integers(0, 2**63),
)
@settings(max_examples=25, deadline=None)
def test_bounds_hold(sizes: list[tuple[int, int]], area: tuple[float, float], ratio: tuple[float, float], seed: int) -> None:
    rng = SampleRng(seed, np.zeros(len(sizes), np.int64), np.arange(len(sizes)))
    boxes = draw_crop_boxes(np.array(sizes), rng, area, ratio)
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


def test_box_does_not_depend_on_the_other_images() -> None:
    """Some images need many attempts, others one."""
    sizes = np.array([(256, 341), (7, 150), (3, 1000), (32, 32), (150, 7), (1, 1)] * 4)
    epochs, indices = np.arange(24) % 7, np.arange(24) * 3
    together = draw_crop_boxes(sizes, SampleRng(1, epochs, indices))
    for row in range(24):
        mine = slice(row, row + 1)
        np.testing.assert_array_equal(draw_crop_boxes(sizes[mine], SampleRng(1, epochs[mine], indices[mine])), together[mine])
    backwards = draw_crop_boxes(sizes[::-1], SampleRng(1, epochs[::-1], indices[::-1]))
    np.testing.assert_array_equal(backwards[::-1], together)


def test_no_images_give_no_boxes() -> None:
    none = np.zeros(0, np.int64)
    assert draw_crop_boxes(np.zeros((0, 2), np.int64), SampleRng(0, none, none)).shape == (0, 4)
    assert draw_offsets((4, 4), SampleRng(0, none, none)).shape == (0, 2)


def test_offsets_are_uniform_with_both_ends() -> None:
    rng = SampleRng(2, np.zeros(30_000, np.int64), np.arange(30_000))
    offsets = draw_offsets((4, 8), rng)
    assert (offsets.shape, offsets.dtype) == ((30_000, 2), np.int64)
    assert (offsets.min(axis=0).tolist(), offsets.max(axis=0).tolist()) == ([0, 0], [4, 8])
    cells = np.bincount(offsets[:, 0] * 9 + offsets[:, 1], minlength=45)
    assert len(cells) == 45
    assert stats.chisquare(cells).pvalue > UNLIKELY
    assert (draw_offsets((0, 0), rng) == 0).all()


def test_integers_stay_below_their_count() -> None:
    almost_one = 1 - 2.0**-53
    counts = np.array([1, 2, 3, 9, 10**6, 2**52 + 1, 2**53])
    assert (to_integers(np.full(7, almost_one), counts) == counts - 1).all()
    assert (to_integers(np.zeros(7), counts) == 0).all()
    assert to_integers(np.array([0.0, 0.249, 0.25, 0.5, 0.75]), np.array(4)).tolist() == [0, 0, 1, 2, 3]


Size = tuple[int, int]
SMALL: list[tuple[Size, Size]] = [
    ((8, 8), (32, 32)),
    ((32, 32), (8, 8)),
    ((28, 28), (32, 32)),
    ((32, 32), (28, 28)),
    ((64, 64), (17, 17)),
    ((40, 61), (23, 64)),
    ((61, 40), (64, 23)),
    ((64, 64), (1, 1)),
    ((1, 1), (9, 5)),
    ((2, 64), (33, 33)),
]
LARGE: list[tuple[Size, Size]] = [((100, 80), (50, 60)), ((65, 65), (65, 64)), ((30, 300), (32, 32)), ((90, 70), (224, 224))]

TOLERANCE = 2  # levels: sums are rounded to bytes twice, across and down, with different precision


pytestmark = pytest.mark.usefixtures("torch_warns_always")


def build_block(num_images: int, size: Size, num_channels: int = 3, seed: int = 0) -> np.ndarray:
    """Noise; every other image black and white, so that the cubic kernel overshoots."""
    block = np.random.default_rng(seed).integers(0, 256, (num_images, *size, num_channels), dtype=np.uint8)
    block[::2] = (block[::2] > 127) * 255
    return block


def draw_boxes(num_images: int, size: Size, seed: int = 1) -> np.ndarray:
    random = np.random.default_rng(seed)
    shapes = random.integers(1, np.array(size) + 1, (num_images, 2))
    return np.concatenate([random.integers(0, np.array(size) - shapes + 1), shapes], axis=1)


def resize_by_pillow(pixels: np.ndarray, box: Box, size: Size, interpolation: str) -> np.ndarray:
    """Crop, resize across, then down, in two calls: in one call, Pillow 13 may go down first (its pull request 9549)."""
    top, left, height, width = box
    cut = pixels[top : top + height, left : left + width]
    image = Image.fromarray(cut if pixels.shape[2] == 3 else cut[..., 0])
    resample = Image.Resampling[interpolation.upper()]
    resized = image.resize((size[1], height), resample).resize((size[1], size[0]), resample)
    return np.asarray(resized).reshape(*size, pixels.shape[2])


def resize_all_by_pillow(block: np.ndarray, boxes: np.ndarray, size: Size, interpolation: str) -> np.ndarray:
    return np.stack([resize_by_pillow(image, box, size, interpolation) for image, box in zip(block, boxes, strict=True)])


def wrap(block: np.ndarray) -> list[LazyImage]:
    return [LazyImage(pixels, "an image") for pixels in block]


def compare(given: np.ndarray, expected: np.ndarray) -> np.ndarray:
    assert given.dtype == expected.dtype == np.uint8
    assert given.shape == expected.shape
    return np.abs(given.astype(np.int64) - expected)


@pytest.mark.parametrize("num_channels", [1, 3])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("old", "new"), SMALL + LARGE)
def test_boxes_are_resized_like_by_pillow(old: Size, new: Size, interpolation: TrainInterpolation, num_channels: int) -> None:
    num_images = 40 if max(*old, *new) <= MAX_BLOCK_SIDE else 6
    block, boxes = build_block(num_images, old, num_channels), draw_boxes(num_images, old)
    expected = resize_all_by_pillow(block, boxes, new, interpolation)
    for resized in (
        resample_block(block, boxes, new, interpolation, num_channels),
        resample_images(wrap(block), boxes, new, interpolation, num_channels),
    ):
        difference = compare(resized, expected)
        assert difference.max() <= TOLERANCE
        assert (difference > 0).mean() < 0.04  # sums that end in a half, frequent for black and white
        assert (difference > 1).mean() < 1e-3


@pytest.mark.parametrize(("old", "new"), SMALL)
def test_matrices_equal_pillows_bilinear_filter(old: Size, new: Size) -> None:
    block, boxes = build_block(60, old)[1::2], draw_boxes(30, old)  # only the noise
    expected = resize_all_by_pillow(block, boxes, new, "bilinear")
    difference = compare(resample_by_matrices(block, boxes, new, "bilinear"), expected)
    if new[0] >= old[0] and new[1] >= old[1]:
        assert difference.max() == 0
    # When scaling down, weights are fractions like 3/16, so many sums end in a half, up to Pillow's fixed point.
    assert difference.max() <= 1
    assert (difference > 0).mean() < 0.03


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_blocks_and_images_agree(interpolation: TrainInterpolation) -> None:
    block, boxes = build_block(60, (50, 44)), draw_boxes(60, (50, 44))
    difference = compare(
        resample_block(block, boxes, (32, 32), interpolation, 3),
        resample_images(wrap(block), boxes, (32, 32), interpolation, 3),
    )
    assert difference.max() <= TOLERANCE


def test_bilinear_equals_one_call_of_pillow() -> None:
    """The order does not matter: bilinear weights do not overshoot, so nothing is clipped in between."""
    block, boxes = build_block(60, (64, 64)), draw_boxes(60, (64, 64))
    expected = [
        np.asarray(Image.fromarray(image[top : top + h, left : left + w]).resize((32, 32), Image.Resampling.BILINEAR))
        for image, (top, left, h, w) in zip(block, boxes.tolist(), strict=True)
    ]
    assert compare(resample_block(block, boxes, (32, 32), "bilinear", 3), np.stack(expected)).max() <= 2


def test_pixels_outside_the_box_do_not_matter() -> None:
    block = build_block(20, (32, 32))
    boxes = np.tile([5, 9, 17, 11], (20, 1))
    other = 255 - block
    other[:, 5:22, 9:20] = block[:, 5:22, 9:20]
    for interpolation in ("bilinear", "bicubic"):
        first, second = (resample_block(each, boxes, (24, 24), interpolation, 3) for each in (block, other))
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("side", [8, 64, 65, 100])
def test_resize_to_the_same_size_changes_nothing(side: int, interpolation: TrainInterpolation) -> None:
    block = build_block(5, (side, side))
    whole = np.tile([0, 0, side, side], (5, 1))
    np.testing.assert_array_equal(resample_block(block, whole, (side, side), interpolation, 3), block)
    np.testing.assert_array_equal(resample_images(wrap(block), whole, (side, side), interpolation, 3), block)
    # A box of the requested size is only cut out, also next to others that are resized.
    boxes = np.array([[0, 0, side, side], [1, 2, 5, 6], [0, 0, side, side], [2, 1, 5, 6], [0, 0, 3, 3]])
    cut = resample_block(block, boxes, (5, 6), interpolation, 3)
    np.testing.assert_array_equal(cut[1], block[1, 1:6, 2:8])
    np.testing.assert_array_equal(cut[3], block[3, 2:7, 1:7])
    np.testing.assert_array_equal(resample_block(block, boxes, (side, side), interpolation, 3)[[0, 2]], block[[0, 2]])


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("level", [0, 1, 127, 128, 254, 255])
def test_constant_images_stay_constant(level: int, interpolation: TrainInterpolation) -> None:
    for old, new in [((30, 64), (17, 33)), ((7, 64), (64, 7)), ((80, 120), (33, 200))]:
        block, boxes = np.full((12, *old, 3), level, dtype=np.uint8), draw_boxes(12, old)
        assert (resample_block(block, boxes, new, interpolation, 3) == level).all()
        assert (resample_images(wrap(block), boxes, new, interpolation, 3) == level).all()


def test_halving_by_the_closed_form() -> None:
    """The triangle kernel has weights 1, 3, 3, 1, truncated at the edge."""
    line = np.array([0, 80, 160, 240, 80, 0], dtype=np.uint8)
    block = np.tile(line[None, None, :, None], (1, 6, 1, 1))
    weights = np.array([[3, 3, 1, 0, 0, 0], [0, 1, 3, 3, 1, 0], [0, 0, 0, 1, 3, 3]])
    expected = np.floor(weights @ line / weights.sum(axis=1) + 0.5)
    halved = resample_block(block, np.array([[0, 0, 6, 6]]), (3, 3), "bilinear", 1)
    np.testing.assert_array_equal(halved[0, :, :, 0], np.tile(expected, (3, 1)))


@pytest.mark.parametrize(("stored", "wanted"), [(1, 3), (3, 1)])
@pytest.mark.parametrize("side", [30, 90])
def test_channels_are_converted_first(side: int, stored: int, wanted: int) -> None:
    block, boxes = build_block(6, (side, side), stored), draw_boxes(6, (side, side))
    mode = "RGB" if wanted == 3 else "L"
    fitted = [np.asarray(LazyImage(image, "an image").to_pil(stored).convert(mode)) for image in block]
    expected = resize_all_by_pillow(np.stack(fitted).reshape(6, side, side, wanted), boxes, (24, 20), "bilinear")
    assert compare(resample_block(block, boxes, (24, 20), "bilinear", wanted), expected).max() <= 2
    assert compare(resample_images(wrap(block), boxes, (24, 20), "bilinear", wanted), expected).max() <= 2


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("num_images", [1, 129])
def test_result_does_not_depend_on_the_batch(num_images: int, interpolation: TrainInterpolation) -> None:
    """Bit-equal, because batches are split differently for other numbers of ranks."""
    block, boxes = build_block(num_images, (32, 32)), draw_boxes(num_images, (32, 32))
    together = resample_block(block, boxes, (28, 28), interpolation, 3)
    assert together.shape == (num_images, 28, 28, 3)
    for part in (1, 64):
        parts = [
            resample_block(block[k : k + part], boxes[k : k + part], (28, 28), interpolation, 3)
            for k in range(0, num_images, part)
        ]
        np.testing.assert_array_equal(np.concatenate(parts), together)


@pytest.mark.parametrize("old", [(32, 32), (28, 40), (100, 100)])
def test_empty_batch(old: Size) -> None:
    boxes = np.zeros((0, 4), np.int64)
    for num_channels in (1, 3):
        assert resample_block(np.zeros((0, *old, 3), np.uint8), boxes, (32, 30), "bilinear", num_channels).shape == (
            (0, 32, 30, num_channels)
        )
        assert resample_images([], boxes, (32, 30), "bilinear", num_channels).shape == (0, 32, 30, num_channels)


@pytest.mark.parametrize("is_writable", [True, False])
@pytest.mark.parametrize("side", [32, 90])
def test_arguments_are_unchanged(side: int, is_writable: bool) -> None:
    block, boxes = build_block(6, (side, side)), draw_boxes(6, (side, side))
    before = block.copy()
    block.flags.writeable = is_writable  # e.g. a memory map; torch warns of read-only arrays
    for size in ((20, 20), (side, side)):
        resample_block(block, boxes, size, "bicubic", 3)
        resample_images(wrap(block), boxes, size, "bicubic", 3)
    np.testing.assert_array_equal(block, before)


@pytest.mark.parametrize("side", [32, 90])
def test_arrays_with_negative_strides(side: int) -> None:
    """E.g. BGR viewed as RGB; torch does not support negative strides."""
    block, boxes = build_block(6, (side, side)), draw_boxes(6, (side, side))
    turned = block[..., ::-1]
    for resized in (
        resample_block(turned, boxes, (20, 20), "bilinear", 3),
        resample_images(wrap(turned), boxes, (20, 20), "bilinear", 3),
    ):
        expected = resize_all_by_pillow(np.ascontiguousarray(turned), boxes, (20, 20), "bilinear")
        assert compare(resized, expected).max() <= 2


def test_arrays_that_are_not_contiguous() -> None:
    block, boxes = build_block(6, (90, 80)), draw_boxes(6, (80, 90))
    turned = block.transpose(0, 2, 1, 3)
    for side in (24, 70):
        np.testing.assert_array_equal(
            resample_block(turned, boxes, (side, side), "bilinear", 3),
            resample_block(np.ascontiguousarray(turned), boxes, (side, side), "bilinear", 3),
        )


@given(st.integers(1, 70), st.integers(1, 70), st.integers(1, 70), st.integers(1, 70), st.sampled_from(["bilinear", "bicubic"]))
@settings(max_examples=60, deadline=None)
def test_any_size_to_any_size(height: int, width: int, tall: int, wide: int, interpolation: TrainInterpolation) -> None:
    block, boxes = build_block(2, (height, width)), draw_boxes(2, (height, width))
    expected = resize_all_by_pillow(block, boxes, (tall, wide), interpolation)
    assert compare(resample_block(block, boxes, (tall, wide), interpolation, 3), expected).max() <= 2
    for image, (top, left, h, w), wanted in zip(block, boxes.tolist(), expected, strict=True):
        resized = resize(image[top : top + h, left : left + w], (tall, wide), interpolation)
        assert compare(np.ascontiguousarray(resized), wanted).max() <= 2


# JPEG files, which may be decoded at 1/2, 1/4 or 1/8.


def build_jpeg(size: Size, num_blobs: int = 12, num_channels: int = 3, **options: object) -> bytes:
    """A smooth image, like photographs at the scale of a few pixels."""
    coarse = np.random.default_rng(3).integers(0, 256, (num_blobs, num_blobs, 3), dtype=np.uint8)
    picture = Image.fromarray(coarse).resize((size[1], size[0]), Image.Resampling.BICUBIC)
    file = io.BytesIO()
    picture.convert("RGB" if num_channels == 3 else "L").save(file, "JPEG", quality=95, **options)
    return file.getvalue()


def read_both(content: bytes, box: Box, size: Size) -> tuple[np.ndarray, np.ndarray]:
    """Our crop and Pillow's from the whole file, as levels (h, w, 3)."""
    given = resample_images([LazyImage(content, "a photograph")], np.array([box]), size, "bilinear", 3)[0]
    top, left, height, width = box
    whole = Image.open(io.BytesIO(content)).convert("RGB").crop((left, top, left + width, top + height))
    return given.astype(np.float64), np.asarray(whole.resize((size[1], size[0]), Image.Resampling.BILINEAR)).astype(np.float64)


def compute_half_pixel_difference(image: np.ndarray) -> float:
    """Average change if the image moves by half a pixel down and across."""
    return float(np.abs(np.diff(image, axis=0)).mean() + np.abs(np.diff(image, axis=1)).mean()) / 2


@pytest.mark.parametrize("side", [400, 200, 100, 50, 99])
def test_jpeg_at_a_smaller_scale_shows_the_same_image(side: int) -> None:
    # Boxes at edges of JPEG blocks do not move, so only the filters differ: a box and then a triangle instead of one wide
    # triangle, which costs up to 1.5 of 255 levels in a smooth image.
    content = build_jpeg((800, 1600))
    for box in ((0, 0, 800, 1600), (0, 0, 800, 800), (0, 800, 800, 800)):
        given, expected = read_both(content, box, (side, side))
        assert np.abs(given - expected).mean() < 1.5
        assert abs(given.mean() - expected.mean()) < 0.5


@pytest.mark.parametrize(
    "box", [(0, 0, 805, 1001), (0, 0, 800, 800), (5, 190, 795, 800), (3, 199, 801, 801), (4, 200, 800, 801)]
)
@pytest.mark.parametrize("side", [400, 100, 50])
def test_box_moves_by_at_most_half_a_pixel(box: Box, side: int) -> None:
    """As documented in LazyImage.to_numpy; one more level for the filters."""
    given, expected = read_both(build_jpeg((805, 1001)), box, (side, side))
    assert np.abs(given - expected).mean() < compute_half_pixel_difference(expected) + 1.0


def test_edges_are_scaled_as_the_decoder_scales() -> None:
    """At scale 1/8, pixel k covers 8k to 8k + 8, even if the width is not a multiple of 8."""
    content = build_jpeg((805, 1001), num_channels=1)
    assert LazyImage(content, "a photograph").to_numpy(1, (0, 0, 800, 800), (90, 90)).shape == (100, 100, 1)
    assert LazyImage(content, "a photograph").to_numpy(1, (0, 0, 800, 992), (90, 90)).shape == (100, 124, 1)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_boxes_of_rotated_jpegs_are_upright(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = build_jpeg((240, 400), exif=exif)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
    height, width = upright.height, upright.width
    box = (height // 4, width // 4, height // 2, width // 2)
    given = resample_images([LazyImage(content, "turned")], np.array([box]), (40, 40), "bilinear", 3)[0]
    cut = upright.crop((box[1], box[0], box[1] + box[3], box[0] + box[2])).resize((40, 40), Image.Resampling.BILINEAR)
    difference = np.abs(given.astype(np.float64) - np.asarray(cut))
    assert difference.mean() < compute_half_pixel_difference(np.asarray(cut).astype(np.float64)) / 2 + 1.0


def list_photographs(folder: Path, count: int) -> Iterator[bytes]:
    for path in sorted((folder / "imagenet-val-1000").rglob("*.*"))[:count]:
        if path.suffix.lower() in (".jpg", ".jpeg"):
            yield path.read_bytes()


@pytest.mark.parametrize("side", [32, 64])
def test_photographs_at_a_smaller_scale_are_close(assets: Path, side: int) -> None:
    """Boxes at arbitrary positions move by at most a quarter of a pixel on average."""
    differences, allowed = [], []
    for content in list_photographs(assets, 40):
        image = LazyImage(content, "a photograph")
        box = (image.height // 10, image.width // 7, image.height * 3 // 4, image.width * 3 // 4)
        given, expected = read_both(content, box, (side, side))
        differences.append(np.abs(given - expected).mean())
        allowed.append(compute_half_pixel_difference(expected))
        assert abs(given.mean() - expected.mean()) < 2.0
    assert len(differences) > 20
    assert np.mean(differences) < np.mean(allowed) / 2
