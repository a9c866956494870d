"""RandAugment against closed forms, operations of Pillow and scipy, and values measured with the original."""

import pickle
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps
from scipy import ndimage, stats

from vitrine.data.augment.rand_augment import OPERATIONS, RandAugment, Strength

RANDOM = np.random.default_rng(0)
NOISE = RANDOM.integers(0, 256, (37, 53, 3), dtype=np.uint8)
# A smooth image whose channels have different ranges.
SMOOTH = np.asarray(
    Image.fromarray(RANDOM.integers((10, 40, 90), (150, 240, 200), (5, 7, 3), dtype=np.uint8)).resize((224, 224))
)
FLAT = np.full((9, 9, 3), 77, dtype=np.uint8)
# fmt: off
NAMES = [
    "AutoContrast", "Equalize", "Invert", "Rotate", "Posterize", "Solarize", "Color", "Contrast",
    "Brightness", "Sharpness", "ShearX", "ShearY", "TranslateX", "TranslateY", "Cutout", "SolarizeAdd",
]
# fmt: on
POSITIVE, NEGATIVE = (0.0, 0.0), (0.5, 0.0)


def apply(name: str, image: np.ndarray, magnitude: float, draws: tuple[float, float] = POSITIVE) -> np.ndarray:
    strength = RandAugment(1, magnitude).compute_strength(*image.shape[:2])
    before = image.copy()
    result = OPERATIONS[name](image, strength, draws)
    assert np.array_equal(image, before)
    assert (result.shape, result.dtype) == (image.shape, np.uint8)
    return result


def choose(*names: str, others: tuple[float, float] = POSITIVE) -> np.ndarray:
    """Draws (1, num_draws) that choose these operations."""
    return np.array([[number for name in names for number in ((NAMES.index(name) + 0.5) / 16, *others)]])


def truncate(values: np.ndarray) -> np.ndarray:
    return np.clip(values, 0, 255).astype(np.uint8)


def is_close(ours: np.ndarray, theirs: np.ndarray, levels: int) -> bool:
    return bool((np.abs(ours.astype(int) - theirs) <= levels).all())


def gather(image: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Nearest pixel to each position, and grey outside of the image."""
    result = np.full_like(image, 128)
    rows, columns = np.floor(rows + 0.5).astype(int), np.floor(columns + 0.5).astype(int)
    for y, x in np.ndindex(image.shape[:2]):
        if 0 <= rows[y, x] < image.shape[0] and 0 <= columns[y, x] < image.shape[1]:
            result[y, x] = image[rows[y, x], columns[y, x]]
    return result


def test_order_of_the_sixteen_operations() -> None:
    assert list(OPERATIONS) == NAMES


@pytest.mark.parametrize(
    "image", [NOISE, SMOOTH, FLAT, NOISE[:, :, :1], NOISE[:1, :1]], ids=["noise", "soft", "flat", "grey", "dot"]
)
def test_equalise_equals_pillow(image: np.ndarray) -> None:
    theirs = ImageOps.equalize(Image.fromarray(image.squeeze()) if image.shape[2] == 1 else Image.fromarray(image))
    assert np.array_equal(apply("Equalize", image, 10), np.asarray(theirs).reshape(image.shape))


@pytest.mark.parametrize("image", [NOISE // 2 + 9, SMOOTH, FLAT], ids=["noise", "soft", "flat"])
def test_auto_contrast_equals_pillow_up_to_rounding(image: np.ndarray) -> None:
    ours = apply("AutoContrast", image, 10)
    assert is_close(ours, np.asarray(ImageOps.autocontrast(Image.fromarray(image))), 1)
    if image is not FLAT:
        assert (ours.min((0, 1)) == 0).all()
        assert (ours.max((0, 1)) == 255).all()


def test_auto_contrast_reaches_white_for_every_range() -> None:
    for span in range(1, 256):
        image = np.arange(span + 1, dtype=np.uint8).reshape(1, -1, 1) + np.uint8((255 - span) // 2)
        assert np.array_equal(apply("AutoContrast", image, 0).reshape(-1), np.arange(span + 1) * 255 // span)


def test_invert() -> None:
    assert np.array_equal(apply("Invert", NOISE, 3), NOISE ^ 0xFF)


# Magnitude 0 keeps one bit: TensorFlow shifts by at most 7.
@pytest.mark.parametrize(("magnitude", "bits"), [(0, 1), (2.5, 1), (5, 2), (7.5, 3), (10, 4), (15, 6), (20, 8), (30, 8)])
def test_posterise_keeps_upper_bits(magnitude: float, bits: int) -> None:
    assert np.array_equal(apply("Posterize", NOISE, magnitude), NOISE // 2 ** (8 - bits) * 2 ** (8 - bits))


# Issue 110 of big_vision: the threshold is a byte, so 256 and 512 invert everything, and 384 is 128.
@pytest.mark.parametrize(("magnitude", "threshold"), [(0, 0), (5, 128), (7, 179), (9.9, 253), (10, 0), (15, 128), (20, 0)])
def test_solarise_threshold_overflows(magnitude: float, threshold: int) -> None:
    expected = [[value if value < threshold else 255 - value for value in row] for row in NOISE[:, :, 0].tolist()]
    assert np.array_equal(apply("Solarize", NOISE, magnitude)[:, :, 0], expected)


@pytest.mark.parametrize(("magnitude", "addition"), [(0, 0), (5, 55), (10, 110), (15, 165), (20, 220)])
def test_solarise_add(magnitude: float, addition: int) -> None:
    wide = NOISE.astype(int)
    assert np.array_equal(apply("SolarizeAdd", NOISE, magnitude), np.minimum(wide + addition * (wide < 128), 255))


@pytest.mark.parametrize(("magnitude", "factor"), [(0, 0.1), (5, 1.0), (10, 1.9), (20, 3.7)])
def test_brightness_is_a_product(magnitude: float, factor: float) -> None:
    ours = apply("Brightness", NOISE, magnitude)
    assert np.array_equal(ours, truncate(np.float32(factor) * NOISE.astype(np.float32)))
    assert np.array_equal(ours, np.asarray(ImageEnhance.Brightness(Image.fromarray(NOISE)).enhance(factor)))


def test_contrast_equals_measurement_of_the_original() -> None:
    # Issue 109 of big_vision: 224 x 224 pixels, factor 1.9, (192, 64, 64) becomes (188, 0, 0) and its opposite (0, 188, 188).
    tiles = np.empty((224, 224, 3), dtype=np.uint8)
    tiles[:112], tiles[112:] = (192, 64, 64), (64, 192, 192)
    changed = apply("Contrast", tiles, 10)
    assert (changed[:112] == (188, 0, 0)).all()
    assert (changed[112:] == (0, 188, 188)).all()


@pytest.mark.parametrize("side", [32, 224])
def test_contrast_blends_with_grey_196(side: int) -> None:
    image = np.resize(NOISE, (side, side, 1))
    for magnitude, factor in ((0, 0.1), (10, 1.9), (15, 2.8)):
        expected = truncate(196 + np.float32(factor) * (image.astype(np.float32) - 196))
        assert np.array_equal(apply("Contrast", image, magnitude), expected)


@pytest.mark.parametrize(("magnitude", "factor"), [(0, 0.1), (4, 0.82), (5, 1.0), (10, 1.9), (20, 3.7)])
def test_colour_equals_pillow_up_to_the_grey(magnitude: float, factor: float) -> None:
    ours = apply("Color", NOISE, magnitude)
    theirs = np.asarray(ImageEnhance.Color(Image.fromarray(NOISE)).enhance(factor))
    # TensorFlow's grey and Pillow's differ by at most 1, scaled by |1 - factor|; truncation adds 1.
    assert is_close(ours, theirs, int(abs(1 - factor)) + 1)
    assert np.array_equal(apply("Color", NOISE[:, :, :1], magnitude), NOISE[:, :, :1])


@pytest.mark.parametrize(("magnitude", "factor"), [(0, 0.1), (5, 1.0), (10, 1.9), (15, 2.8)])
def test_sharpness_extrapolates_from_the_smoothed_image(magnitude: float, factor: float) -> None:
    kernel = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]])
    smooth = NOISE.astype(int)
    for channel in range(3):
        sums = ndimage.convolve(NOISE[:, :, channel].astype(int), kernel)
        smooth[1:-1, 1:-1, channel] = sums[1:-1, 1:-1] // 13
    expected = truncate(smooth + np.float32(factor) * (NOISE - smooth).astype(np.float32))
    ours = apply("Sharpness", NOISE, magnitude)
    assert np.array_equal(ours, expected)
    assert np.array_equal(ours[0], NOISE[0])
    # Pillow rounds the mean, TensorFlow truncates it.
    theirs = np.asarray(ImageEnhance.Sharpness(Image.fromarray(NOISE)).enhance(factor))
    assert is_close(ours, theirs, int(abs(1 - factor)) + 1)


@pytest.mark.parametrize("shape", [(1, 1, 3), (2, 2, 3), (1, 9, 1), (9, 2, 3)])
def test_sharpness_leaves_the_border(shape: tuple[int, int, int]) -> None:
    image = np.resize(NOISE, shape)
    assert np.array_equal(apply("Sharpness", image, 10), image)


@pytest.mark.parametrize("draws", [POSITIVE, NEGATIVE])
@pytest.mark.parametrize("magnitude", [3.1, 9.7, 17.3])  # no position half-way between two pixels
def test_rotation_and_shear_take_the_nearest_pixel(magnitude: float, draws: tuple[float, float]) -> None:
    sign = 1 if draws is POSITIVE else -1
    y, x = np.mgrid[: NOISE.shape[0], : NOISE.shape[1]].astype(float)
    shear = sign * magnitude / 10 * 0.3
    angle = sign * np.deg2rad(3 * magnitude)
    dy, dx = y - 18, x - 26  # from the centre of 37 x 53
    positions = {
        "ShearX": (y, x + shear * y),
        "ShearY": (y + shear * x, x),
        "Rotate": (18 + np.sin(angle) * dx + np.cos(angle) * dy, 26 + np.cos(angle) * dx - np.sin(angle) * dy),
    }
    for name, (rows, columns) in positions.items():
        different = (apply(name, NOISE, magnitude, draws) != gather(NOISE, rows, columns)).any(axis=2)
        # Pillow's positions have 16 fractional bits, so a few that lie nearly half-way round to the other side.
        assert different.mean() < 0.002, name


def test_rotation_by_a_right_angle_is_exact() -> None:
    square = NOISE[:31, :31]
    turned = {apply("Rotate", square, 30, draws).tobytes() for draws in (POSITIVE, NEGATIVE)}
    assert turned == {np.ascontiguousarray(np.rot90(square, times)).tobytes() for times in (1, -1)}


@pytest.mark.parametrize(("magnitude", "pixels"), [(0, 0), (1, 10), (10, 100), (15, 150), (20, 200), (30, 224)])
def test_translation_at_224_pixels(magnitude: float, pixels: int) -> None:
    grey = np.full_like(SMOOTH, 128)
    right = np.concatenate([grey[:, :pixels], SMOOTH[:, : 224 - pixels]], axis=1)
    left = np.concatenate([SMOOTH[:, pixels:], grey[:, :pixels]], axis=1)
    down = np.concatenate([grey[:pixels], SMOOTH[: 224 - pixels]])
    up = np.concatenate([SMOOTH[pixels:], grey[:pixels]])
    assert np.array_equal(apply("TranslateX", SMOOTH, magnitude, POSITIVE), right)
    assert np.array_equal(apply("TranslateX", SMOOTH, magnitude, NEGATIVE), left)
    assert np.array_equal(apply("TranslateY", SMOOTH, magnitude, POSITIVE), down)
    assert np.array_equal(apply("TranslateY", SMOOTH, magnitude, NEGATIVE), up)


def test_lengths_scale_with_the_image() -> None:
    black = np.zeros((32, 32, 3), dtype=np.uint8)
    assert (apply("TranslateX", black, 10)[0, :, 0] == 128).sum() == 14  # 100 * 32 / 224 = 14.3
    assert (apply("Cutout", black, 10, (0.5, 0.5))[:, :, 0] == 128).sum() == (2 * 5) ** 2  # 40 * 32 / 224 = 5.7
    wide = np.zeros((64, 256, 1), dtype=np.uint8)  # as many pixels as 128 x 128
    assert (apply("TranslateX", wide, 10)[0, :, 0] == 128).sum() == 57


@pytest.mark.parametrize(("magnitude", "half"), [(0, 0), (5, 20), (10, 40), (15, 60)])
def test_cutout_is_a_square_around_a_pixel(magnitude: float, half: int) -> None:
    y, x = np.mgrid[:224, :224]
    for row, column in ((0, 0), (100, 120), (223, 223), (5, 200)):
        inside = (y >= row - half) & (y < row + half) & (x >= column - half) & (x < column + half)
        expected = np.where(inside[..., None], 128, SMOOTH)
        assert np.array_equal(apply("Cutout", SMOOTH, magnitude, ((row + 0.5) / 224, (column + 0.5) / 224)), expected)


def test_cutout_centre_is_uniform() -> None:
    draws = RANDOM.random((3000, 2))
    image = np.zeros((5, 6, 1), dtype=np.uint8)
    corners = Counter()
    strength = Strength(level=1.0, translation=0.0, cutout=1)
    for pair in draws.tolist():
        corners[tuple(np.argwhere(OPERATIONS["Cutout"](image, strength, pair)).max(axis=0))] += 1
    assert len(corners) == 30
    assert stats.chisquare(list(corners.values())).pvalue > 1e-3


def record_choices(monkeypatch: pytest.MonkeyPatch, num_ops: int, draws: np.ndarray) -> np.ndarray:
    """Indices of the operations applied (B, num_ops)."""
    choices: list[int] = []
    for number, name in enumerate(NAMES):
        monkeypatch.setitem(OPERATIONS, name, lambda image, strength, rest, number=number: choices.append(number) or image)
    RandAugment(num_ops, 10)(np.zeros((len(draws), 1, 1, 3), dtype=np.uint8), draws)
    return np.array(choices).reshape(len(draws), num_ops)


def test_every_pair_of_operations_is_equally_frequent(monkeypatch: pytest.MonkeyPatch) -> None:
    choices = record_choices(monkeypatch, 2, np.random.default_rng(1).random((10_000, 6)))
    pairs = np.bincount(choices[:, 0] * 16 + choices[:, 1], minlength=256)  # including the same operation twice
    assert stats.chisquare(pairs).pvalue > 1e-3
    assert stats.chisquare(np.bincount(choices.reshape(-1), minlength=16)).pvalue > 1e-3


def test_smallest_and_largest_draw_choose_first_and_last_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = np.array([[0.0, 0, 0], [np.nextafter(1 / 16, 0), 0, 0], [1 / 16, 0, 0], [np.nextafter(1, 0), 0, 0]])
    assert record_choices(monkeypatch, 1, draws).reshape(-1).tolist() == [0, 0, 1, 15]


@pytest.mark.parametrize("name", ["Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY"])
def test_signs_are_even(name: str) -> None:
    image = np.resize(NOISE, (8, 8, 3))
    draws = np.repeat(choose(name), 600, axis=0)
    draws[:, 1:] = np.random.default_rng(2).random((600, 2))
    results = Counter(result.tobytes() for result in RandAugment(1, 10)(np.repeat(image[None], 600, axis=0), draws))
    assert len(results) == 2
    assert stats.binomtest(next(iter(results.values())), 600).pvalue > 1e-3


@pytest.mark.parametrize("num_channels", [1, 3])
@pytest.mark.parametrize("num_ops", [1, 2, 5])
def test_batch_equals_its_images_one_by_one(num_ops: int, num_channels: int) -> None:
    images = RANDOM.integers(0, 256, (40, 20, 24, num_channels), dtype=np.uint8)
    before = images.copy()
    augment = RandAugment(num_ops, 12)
    draws = np.random.default_rng(3).random((40, augment.num_draws))
    together = augment(images, draws)
    assert (together.shape, together.dtype, together.flags.c_contiguous) == (images.shape, np.uint8, True)
    assert np.array_equal(images, before)
    assert np.array_equal(together, augment(images[:, ::-1][:, ::-1], draws))  # any memory layout
    assert np.array_equal(together, pickle.loads(pickle.dumps(augment))(images, draws))
    alone = [augment(images[row : row + 1], draws[row : row + 1]) for row in range(40)]
    assert np.array_equal(together, np.concatenate(alone))


def test_operations_are_applied_in_order() -> None:
    draws = choose("Posterize", "Invert", "TranslateX")
    assert draws.shape == (1, RandAugment(3, 10).num_draws)
    expected = np.full_like(SMOOTH, 128)
    expected[:, 100:] = 255 - (SMOOTH & 0xF0)[:, :124]
    assert np.array_equal(RandAugment(3, 10)(SMOOTH[None], draws)[0], expected)


def test_magnitude_zero_is_not_the_identity() -> None:
    unchanged = {name for name in NAMES if np.array_equal(apply(name, SMOOTH, 0), SMOOTH)}
    assert unchanged == {"Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY", "Cutout", "SolarizeAdd"}
    draws = np.random.default_rng(4).random((200, 6))
    small = SMOOTH[None, ::8, ::8].repeat(200, axis=0)
    changed = (RandAugment(2, 0)(small, draws) != small).any(axis=(1, 2, 3)).mean()
    assert changed > 0.7  # 1 - (7/16)^2 = 0.81, minus pairs that cancel out


def test_no_operations_return_the_batch_itself() -> None:
    images = SMOOTH[None]
    assert RandAugment(0, 10).num_draws == 0
    assert RandAugment(0, 10)(images, np.zeros((1, 0))) is images
    assert RandAugment(2, 10)(np.zeros((0, 4, 4, 3), np.uint8), np.zeros((0, 6))).shape == (0, 4, 4, 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_ops": -1, "magnitude": 10}, "num_ops=-1"),
        ({"num_ops": 1.5, "magnitude": 10}, "num_ops=1.5"),
        ({"num_ops": 2, "magnitude": -1}, "magnitude=-1"),
        ({"num_ops": 2, "magnitude": 1e300}, "magnitude=1e+300"),
        ({"num_ops": 2, "magnitude": float("nan")}, "magnitude=nan"),
    ],
)
def test_invalid_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        RandAugment(**settings)


@pytest.mark.parametrize(
    ("images", "draws", "message"),
    [
        (np.zeros((1, 4, 4, 3)), np.zeros((1, 6)), "float64"),
        (np.zeros((1, 3, 4, 4), np.uint8), np.zeros((1, 6)), "(1, 3, 4, 4)"),
        (np.zeros((1, 4, 4, 3), np.uint8), np.zeros((1, 2)), "(1, 2)"),
    ],
)
def test_invalid_batches(images: np.ndarray, draws: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        RandAugment(2, 10)(images, draws)
