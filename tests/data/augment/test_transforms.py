"""Transforms against Pillow and NumPy; files, images in memory and any split of the batch give the same."""

import io
import itertools

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats
from torch import Tensor

from vitrine.data.augment.crops import draw_crop_boxes
from vitrine.data.augment.transforms import (
    EvalTransform,
    Images,
    TrainTransform,
    Transform,
    cut_windows,
    flip_left_right,
    image_sizes,
)
from vitrine.data.config import AugmentConfig, CropKind
from vitrine.data.image import LazyImage
from vitrine.data.preprocessing import Preprocessing
from vitrine.data.sampling import RngStream, SampleRng
from vitrine.data.source import ArraySource, Labels

CROPS: tuple[CropKind, ...] = ("inception", "random", "pad", "none")
Size = tuple[int, int]


pytestmark = pytest.mark.usefixtures("torch_warns_always")


def build_block(num_images: int, size: Size, num_channels: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (num_images, *size, num_channels), dtype=np.uint8)


def build_rng(num_samples: int, seed: int = 0) -> SampleRng:
    return SampleRng(seed, np.arange(num_samples) % 3, np.arange(num_samples) * 7 + 1)


def take(rng: SampleRng, rows: np.ndarray) -> SampleRng:
    return rng.take(rows)


def apply(transform: Transform, images: Images, rng: SampleRng) -> Tensor:
    """Images of the transform, which passes the targets through."""
    targets = torch.arange(len(images))
    batch, passed = transform(images, targets, rng)
    assert passed is targets
    return batch


def wrap(block: np.ndarray) -> list[LazyImage]:
    return [LazyImage(pixels, "an image") for pixels in block]


def build_preprocessing(size: Size, num_channels: int = 3) -> Preprocessing:
    half = (0.5,) * num_channels
    return Preprocessing(resize=size, crop=size, mean=half, std=half)


def build_augmentation(size: Size, num_channels: int = 3, **settings: object) -> TrainTransform:
    return TrainTransform(AugmentConfig(**settings), build_preprocessing(size, num_channels))


def to_pixels(batch: Tensor) -> np.ndarray:
    """Check type and memory layout of a batch, and return (B, H, W, C)."""
    assert batch.dtype == torch.uint8
    assert batch.ndim == 4
    assert batch.is_contiguous(memory_format=torch.channels_last)
    return batch.permute(0, 2, 3, 1).numpy()


def count_levels(first: np.ndarray, second: np.ndarray) -> int:
    assert first.shape == second.shape
    return int(np.abs(first.astype(np.int64) - second).max(initial=0))


def encode(pixels: np.ndarray, format: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format)
    return file.getvalue()


PREPROCESSINGS = {
    "both sides": Preprocessing(resize=(20, 24), crop=(20, 24)),
    "short side": Preprocessing(resize=36, crop=(32, 32), interpolation="bicubic"),
    "no resize": Preprocessing(resize=None, crop=(16, 20)),
    "same size": Preprocessing(resize=(40, 48), crop=(40, 48)),
    "larger": Preprocessing(resize=None, crop=(70, 60), interpolation="lanczos"),
    "grey": Preprocessing(resize=30, crop=(24, 24), mean=(0.5,), std=(0.5,)),
    "enlarged, then cropped to the size of the images": Preprocessing(resize=46, crop=(40, 48)),
    "grey, same size": Preprocessing(resize=None, crop=(40, 48), mean=(0.5,), std=(0.5,)),
}


@pytest.mark.parametrize("num_channels", [1, 3])
@pytest.mark.parametrize("kind", PREPROCESSINGS)
def test_evaluation_equals_prepare(kind: str, num_channels: int) -> None:
    preprocessing, block = PREPROCESSINGS[kind], build_block(5, (40, 48), num_channels)
    pictures = [Image.fromarray(pixels if num_channels == 3 else pixels[..., 0]) for pixels in block]
    expected = torch.stack([preprocessing.prepare(picture) for picture in pictures])
    for images in (block, wrap(block), [LazyImage(encode(np.asarray(p), "PNG"), "a file") for p in pictures]):
        batch = apply(EvalTransform(preprocessing), images, build_rng(5))
        to_pixels(batch)
        assert torch.equal(batch, expected)


def test_evaluation_of_photographs_equals_prepare() -> None:
    """Training may decode JPEG files at a smaller scale, evaluation never."""
    smooth = np.asarray(Image.fromarray(build_block(1, (9, 12))[0]).resize((640, 480), Image.Resampling.BICUBIC))
    content, preprocessing = encode(smooth, "JPEG"), Preprocessing(resize=36, crop=(32, 32))
    expected = preprocessing.prepare(Image.open(io.BytesIO(content)))
    for transform in (EvalTransform(preprocessing), TrainTransform(AugmentConfig(crop="none", flip=False), preprocessing)):
        assert torch.equal(apply(transform, [LazyImage(content, "a photograph")], build_rng(1))[0], expected)


def test_evaluation_is_not_random() -> None:
    block = build_block(4, (30, 30))
    transform = EvalTransform(build_preprocessing((20, 20)))
    assert torch.equal(apply(transform, block, build_rng(4, seed=1)), apply(transform, block, build_rng(4, seed=2)))


@pytest.mark.parametrize("num_channels", [1, 3])
@pytest.mark.parametrize("flips", [False, True])
@pytest.mark.parametrize("padding", [0, 1, 4, 20])
def test_pad_crop_equals_numpy(padding: int, flips: bool, num_channels: int) -> None:
    block, rng = build_block(64, (12, 16), num_channels), build_rng(64)
    pixels = to_pixels(apply(build_augmentation((12, 16), num_channels, crop="pad", padding=padding, flip=flips), block, rng))
    offsets = np.floor(rng.uniforms(RngStream.CROP, 2) * (2 * padding + 1)).astype(int)
    turned = rng.uniforms(RngStream.FLIP, 1)[:, 0] < 0.5
    for row, (top, left) in enumerate(offsets):
        padded = np.pad(block[row], ((padding, padding), (padding, padding), (0, 0)))
        window = padded[top : top + 12, left : left + 16]
        np.testing.assert_array_equal(pixels[row], window[:, ::-1] if flips and turned[row] else window)


def test_pad_crop_resizes_first() -> None:
    block, rng = build_block(8, (20, 30)), build_rng(8)
    pixels = to_pixels(apply(build_augmentation((16, 16), crop="pad", padding=0, flip=False), block, rng))
    expected = [np.asarray(Image.fromarray(image).resize((16, 16), Image.Resampling.BILINEAR)) for image in block]
    assert count_levels(pixels, np.stack(expected)) <= 2  # rounded twice, see test_crops


def test_inception_crop_equals_pillow() -> None:
    block, rng = build_block(40, (60, 50)), build_rng(40)
    pixels = to_pixels(apply(build_augmentation((24, 24), crop="inception", flip=False), block, rng))
    config = AugmentConfig()
    boxes = draw_crop_boxes(np.tile([60, 50], (40, 1)), rng, config.crop_area, config.crop_ratio)
    for row, (top, left, height, width) in enumerate(boxes.tolist()):
        cut = Image.fromarray(block[row, top : top + height, left : left + width])
        across = cut.resize((24, height), Image.Resampling.BILINEAR)  # across first, see test_crops
        assert count_levels(pixels[row], np.asarray(across.resize((24, 24), Image.Resampling.BILINEAR))) <= 2


def test_inception_crop_respects_its_limits() -> None:
    """Limits of area 1 and ratio 1 give the whole square image."""
    block = build_block(10, (32, 32))
    augmentation = build_augmentation((32, 32), crop="inception", crop_area=(1.0, 1.0), crop_ratio=(1.0, 1.0), flip=False)
    np.testing.assert_array_equal(to_pixels(apply(augmentation, block, build_rng(10))), block)


@pytest.mark.parametrize(("resize", "square"), [(None, (32, 16)), (40, (40, 40))])
def test_random_crop_is_a_resize_and_a_window(resize: int | None, square: Size) -> None:
    block, rng = build_block(30, (20, 45)), build_rng(30)
    pixels = to_pixels(apply(build_augmentation((28, 14), crop="random", resize=resize, flip=False), block, rng))
    room = np.array(square) - (28, 14)
    offsets = np.floor(rng.uniforms(RngStream.CROP, 2) * (room + 1)).astype(int)
    for row, (top, left) in enumerate(offsets):
        across = Image.fromarray(block[row]).resize((square[1], 20), Image.Resampling.BILINEAR)
        resized = np.asarray(across.resize((square[1], square[0]), Image.Resampling.BILINEAR))
        assert count_levels(pixels[row], resized[top : top + 28, left : left + 14]) <= 2


def test_random_crop_of_224_is_taken_from_256() -> None:
    assert build_augmentation((224, 224), crop="random").square == (256, 256)
    assert build_augmentation((384, 384), crop="random", resize=512).square == (512, 512)


def test_square_smaller_than_the_image_size_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"resize=31 .*32 x 20"):
        build_augmentation((32, 20), crop="random", resize=31)
    build_augmentation((32, 20), crop="random", resize=32)


@pytest.mark.parametrize(("stored", "num_channels"), [(3, 3), (1, 3), (3, 1)])
@pytest.mark.parametrize("crop", CROPS)
@pytest.mark.parametrize(
    ("old", "new"), [((32, 32), (32, 32)), ((28, 28), (32, 32)), ((40, 30), (20, 26)), ((80, 70), (32, 32))]
)
def test_block_is_augmented_like_its_images_one_by_one(
    old: Size, new: Size, crop: CropKind, stored: int, num_channels: int
) -> None:
    block, rng = build_block(12, old, stored), build_rng(12)
    augmentation = build_augmentation(new, num_channels, crop=crop)
    together, one_by_one = (to_pixels(apply(augmentation, images, rng)) for images in (block, wrap(block)))
    assert together.shape == (12, *new, num_channels)
    # Small blocks are resized by matrices and images by torch's kernel: both round twice, see test_crops.
    assert count_levels(together, one_by_one) <= (0 if crop == "none" or max(old) > 64 else 2)
    files = [LazyImage(encode(pixels.squeeze(), "PNG"), "a file") for pixels in block]
    np.testing.assert_array_equal(to_pixels(apply(augmentation, files, rng)), one_by_one)


EVERYTHING = {"rand_augment_ops": 2, "erase_rate": 0.7}
AUGMENTATIONS: list[dict[str, object]] = [
    *({"crop": crop, **EVERYTHING} for crop in CROPS),
    {"crop": "inception", "interpolation": "bicubic"},
]


@pytest.mark.parametrize("augmentations", AUGMENTATIONS, ids=str)
@pytest.mark.parametrize("is_block", [True, False])
def test_sample_does_not_depend_on_the_batch(is_block: bool, augmentations: dict[str, object]) -> None:
    """Bit-equal in any order, because batches are split differently for other numbers of ranks."""
    block, rng = build_block(20, (32, 32)), build_rng(20)
    augmentation = build_augmentation((28, 28), **augmentations)

    def augment(rows: np.ndarray) -> np.ndarray:
        images = block[rows] if is_block else wrap(block[rows])
        return to_pixels(apply(augmentation, images, take(rng, rows)))

    together = augment(np.arange(20))
    np.testing.assert_array_equal(augment(np.arange(20)), together)
    for rows in (np.arange(20)[::-1], np.array([3]), np.array([7, 7, 1]), np.arange(10), np.arange(10, 20)):
        np.testing.assert_array_equal(augment(rows), together[rows])


@pytest.mark.parametrize("crop", CROPS)
def test_epochs_and_indices_change_the_augmentation(crop: CropKind) -> None:
    block = np.repeat(build_block(1, (32, 32)), 40, axis=0)
    augmentation = build_augmentation((32, 32), crop=crop)
    zeros, numbers = np.zeros(40, np.int64), np.arange(40)
    for rng in (SampleRng(0, numbers, zeros), SampleRng(0, zeros, numbers)):
        kinds = np.unique(to_pixels(apply(augmentation, block, rng)), axis=0)
        assert len(kinds) == 2 if crop == "none" else len(kinds) > 20


# Settings in which little but in-place operations remains.
IN_PLACE: list[dict[str, object]] = [
    {"crop": "none", "flip": False},
    {"crop": "none", "flip": False, "erase_rate": 1.0},
    {"crop": "pad", "erase_rate": 1.0},
    {"crop": "random", "rand_augment_ops": 2},
    {"crop": "inception", "rand_augment_ops": 1, "erase_rate": 1.0},
]


@pytest.mark.parametrize("augmentations", IN_PLACE, ids=str)
@pytest.mark.parametrize("size", [(16, 16), (12, 20)])
@pytest.mark.parametrize("is_writable", [True, False])
def test_images_in_memory_are_not_changed(size: Size, is_writable: bool, augmentations: dict[str, object]) -> None:
    """For the whole array, a part of it, and read-only memory."""
    pixels = build_block(12, (16, 16))
    before = pixels.copy()
    pixels.flags.writeable = is_writable
    augmentation = build_augmentation(size, padding=0, **augmentations)
    for block in (pixels, pixels[:], pixels[2:9], pixels[::2]):
        apply(augmentation, block, build_rng(len(block)))
        apply(augmentation, wrap(block), build_rng(len(block)))
        np.testing.assert_array_equal(pixels, before)


def test_batches_do_not_share_memory_with_the_source() -> None:
    pixels = build_block(12, (16, 16))
    before = pixels.copy()
    source = ArraySource(pixels, Labels.one_each(np.zeros(12)), ("a",), "noise")
    rows = np.arange(12)
    for crop, flips in itertools.product(CROPS, (True, False)):
        batch = apply(build_augmentation((16, 16), crop=crop, flip=flips), source.read_block(rows), build_rng(12))
        batch.zero_()  # the batch may be changed by its user
        batch = apply(build_augmentation((16, 16), crop=crop, flip=flips), [source.read(row)[0] for row in rows], build_rng(12))
        batch.zero_()
        np.testing.assert_array_equal(source.pixels, before)
    apply(EvalTransform(build_preprocessing((16, 16))), source.read_block(rows), build_rng(12)).zero_()
    np.testing.assert_array_equal(source.pixels, before)


@pytest.mark.parametrize("is_writable", [True, False])
def test_evaluation_does_not_change_images(is_writable: bool) -> None:
    pixels = build_block(6, (16, 16))
    before = pixels.copy()
    pixels.flags.writeable = is_writable
    for size in ((16, 16), (12, 12)):
        apply(EvalTransform(build_preprocessing(size)), pixels, build_rng(6))
    np.testing.assert_array_equal(pixels, before)


def test_half_of_the_images_are_flipped() -> None:
    block = np.tile(np.array([10, 200], dtype=np.uint8)[None, None, :, None], (10_000, 1, 1, 1))
    pixels = to_pixels(apply(build_augmentation((1, 2), 1, crop="none"), block, build_rng(10_000)))
    turned = pixels[:, 0, 0, 0] == 200
    assert stats.binomtest(int(turned.sum()), 10_000).pvalue > 1e-6
    np.testing.assert_array_equal(turned, pixels[:, 0, 1, 0] == 10)
    # Independent of the position of the crop.
    offsets = build_rng(10_000).uniforms(RngStream.CROP, 2)
    assert abs(np.corrcoef(turned, offsets[:, 1])[0, 1]) < 5.5 / 100


@pytest.mark.parametrize("num_channels", [1, 3])
def test_flip_of_chosen_images(num_channels: int) -> None:
    block = build_block(7, (5, 6), num_channels)
    before = block.copy()
    for chosen in itertools.product([False, True], repeat=3):
        which = np.array([*chosen, False, True, False, True])
        flipped = block.copy()
        flip_left_right(flipped, which)
        np.testing.assert_array_equal(flipped, np.where(which[:, None, None, None], before[:, :, ::-1], before))


def test_cut_windows() -> None:
    block = np.arange(2 * 2 * 3 * 2, dtype=np.uint8).reshape(2, 2, 3, 2) + 1
    padded = np.pad(block, ((0, 0), (2, 2), (2, 2), (0, 0)))
    windows = cut_windows(padded, np.array([[0, 0], [4, 5]]), (2, 2))
    np.testing.assert_array_equal(windows, np.stack([padded[0, :2, :2], padded[1, 4:6, 5:7]]))


@pytest.mark.parametrize("augmentations", AUGMENTATIONS, ids=str)
@pytest.mark.parametrize("num_images", [0, 1])
def test_batches_of_zero_and_one_images(num_images: int, augmentations: dict[str, object]) -> None:
    """A rank may get nothing of a small last batch."""
    for num_channels, size in ((3, (32, 32)), (1, (20, 24))):
        for transform in (
            build_augmentation(size, num_channels, **augmentations),
            EvalTransform(build_preprocessing(size, num_channels)),
        ):
            block = build_block(num_images, (32, 32))
            for images in (block, wrap(block)):
                assert apply(transform, images, build_rng(num_images)).shape == (num_images, num_channels, *size)


@pytest.mark.parametrize("crop", CROPS)
def test_images_of_many_sizes_become_one_batch(crop: CropKind) -> None:
    random = np.random.default_rng(0)
    sizes = [(1, 1), (3, 100), (100, 3), (33, 47), (200, 120), (1, 64)]
    images = [LazyImage(random.integers(0, 256, (*size, 3), dtype=np.uint8), "an image") for size in sizes]
    assert image_sizes(images).tolist() == [list(size) for size in sizes]
    assert apply(build_augmentation((24, 18), crop=crop), images, build_rng(6)).shape == (6, 3, 24, 18)
