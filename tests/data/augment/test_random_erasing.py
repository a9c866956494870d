"""Random erasing against the distributions of chosen images, rectangles and noise."""

import re
from typing import Any

import numpy as np
import pytest
from scipy import stats

from vitrine.data.augment.random_erasing import NUM_DRAWS, draw_rectangles, random_erase


def build_draws(num_images: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((num_images, NUM_DRAWS))


def build_images(num_images: int, height: int = 40, width: int = 40, num_channels: int = 3) -> np.ndarray:
    return np.random.default_rng(9).integers(0, 256, (num_images, height, width, num_channels), dtype=np.uint8)


def find_box(changed: np.ndarray) -> tuple[int, int, int, int]:
    """Top, left, height and width of the True region in (H, W)."""
    rows, columns = np.flatnonzero(changed.any(axis=1)), np.flatnonzero(changed.any(axis=0))
    return rows[0], columns[0], rows[-1] - rows[0] + 1, columns[-1] - columns[0] + 1


def test_fraction_of_erased_images_is_the_rate() -> None:
    images = np.zeros((4000, 16, 16, 1), dtype=np.uint8)
    for rate in (0.1, 0.25, 0.8):
        erased = (random_erase(images, rate, build_draws(4000), "grey") != images).any(axis=(1, 2, 3)).sum()
        assert stats.binomtest(int(erased), 4000, rate).pvalue > 1e-3


def test_rate_zero_and_one() -> None:
    images = build_images(50)
    assert random_erase(images, 0.0, np.zeros((50, NUM_DRAWS))) is images
    erased = random_erase(images, 1.0, build_draws(50))
    assert (erased != images).any(axis=(1, 2, 3)).all()
    assert random_erase(images[:0], 1.0, build_draws(0)).shape == (0, 40, 40, 3)


@pytest.mark.parametrize("num_channels", [1, 3])
def test_exactly_a_rectangle_changes(num_channels: int) -> None:
    images = build_images(60, 30, 50, num_channels)
    images[images == 128] = 127
    before = images.copy()
    erased = random_erase(images, 1.0, build_draws(60), "grey")
    assert np.array_equal(images, before)
    for old, new in zip(images, erased, strict=True):
        changed = (old != new).all(axis=2)
        assert np.array_equal(changed, (old != new).any(axis=2))
        top, left, height, width = find_box(changed)
        assert changed[top : top + height, left : left + width].all()
        assert changed.sum() == height * width
        assert (new[changed] == 128).all()


def test_noise_is_uniform_and_inside_the_rectangle() -> None:
    images = np.full((300, 64, 64, 3), 128, dtype=np.uint8)
    boxes, fits = draw_rectangles(64, 64, build_draws(300)[:, 2:])
    erased = random_erase(images, 1.0, build_draws(300))
    assert fits.all()
    values = []
    for image, (top, left, height, width) in zip(erased, boxes, strict=True):
        inside = image[top : top + height, left : left + width].copy()
        values.append(inside.reshape(-1))
        image[top : top + height, left : left + width] = 128
        assert (image == 128).all()
    assert stats.chisquare(np.bincount(np.concatenate(values), minlength=256)).pvalue > 1e-3
    assert len({value[:16].tobytes() for value in values}) == 300


def test_distribution_of_areas_ratios_and_positions() -> None:
    side = 10_000  # so large that rounding to pixels does not matter
    boxes, fits = draw_rectangles(side, side, build_draws(5000)[:, 2:])
    assert fits.all()
    top, left, height, width = boxes.T.astype(float)
    areas, ratios = height * width / side**2, height / width
    assert areas.min() >= 0.0199
    assert areas.max() <= 0.3301
    # Large and long ones may not fit (0.33 * 3.3 > 1) and are drawn again. Up to an area of 0.24, all fit.
    is_small = areas < 0.24
    assert stats.kstest(areas[is_small], stats.uniform(0.02, 0.22).cdf).pvalue > 1e-3
    assert stats.kstest(np.log(ratios[is_small]), stats.uniform(np.log(0.3), np.log(3.3 / 0.3)).cdf).pvalue > 1e-3
    assert stats.kstest(top / (side - height + 1), "uniform").pvalue > 1e-3
    assert stats.kstest(left / (side - width + 1), "uniform").pvalue > 1e-3


def test_rectangles_reach_the_borders_of_long_images() -> None:
    for height, width in ((20, 60), (60, 20), (7, 7)):
        boxes, fits = draw_rectangles(height, width, build_draws(3000)[:, 2:])
        assert fits.mean() > 0.99
        top, left, tall, wide = boxes[fits].T
        assert (top.min(), left.min()) == (0, 0)
        assert ((top + tall).max(), (left + wide).max()) == (height, width)
        assert min(tall.min(), wide.min()) >= 1


def test_attempt_that_does_not_fit_is_followed_by_the_next() -> None:
    draws = np.full((1, NUM_DRAWS), 0.999)  # a third of the area, 3.3 times as high as wide: 83 rows of 80
    draws[0, 0] = 0
    image = build_images(1, 80, 80)
    assert np.array_equal(random_erase(image, 1.0, draws), image)
    draws[0, 2 + 4 * 9 :] = 0  # the last attempt: 2 %, height 0.3 of width, at the corner
    changed = (random_erase(image, 1.0, draws, "grey") != image).any(axis=(0, 3))
    assert find_box(changed) == (0, 0, round((128 * 0.3) ** 0.5), round((128 / 0.3) ** 0.5))


def test_erasing_does_not_depend_on_the_batch() -> None:
    images, draws = build_images(20), build_draws(20)
    together = random_erase(images, 0.5, draws)
    order = np.random.default_rng(1).permutation(20)
    assert np.array_equal(random_erase(images[order], 0.5, draws[order]), together[order])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": np.zeros((2, 4, 4, 3))}, "float64"),
        ({"draws": np.zeros((2, 3))}, "(2, 3)"),
        ({"rate": 1.5}, "rate=1.5"),
        ({"rate": float("nan")}, "rate=nan"),
        ({"fill": "gray"}, "fill='gray'"),
    ],
)
def test_invalid_arguments(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"images": np.zeros((2, 4, 4, 3), np.uint8), "rate": 0.5, "draws": build_draws(2)}
    with pytest.raises(ValueError, match=re.escape(message)):
        random_erase(**(arguments | change))
