"""Copies are told from pictures that are only alike."""

import io

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from tests.data.pictures import draw_picture, encode
from vitrine.data.second_look import LEAST_LIKENESS, WINDOWS, compare, measure_likeness, prepare
from vitrine.data.stored import StoredImage


def load(image: Image.Image) -> np.ndarray:
    return prepare(StoredImage(np.asarray(image), "picture"))


def test_an_image_is_like_itself_and_no_other() -> None:
    pictures = [load(draw_picture(seed)) for seed in range(6)]
    assert compare(pictures[0], pictures[0]) == pytest.approx(1, abs=1e-5)
    assert max(compare(pictures[0], other) for other in pictures[1:]) < 0.5


@pytest.mark.parametrize("seed", range(4))
def test_copies_are_confirmed(seed: int) -> None:
    image = draw_picture(seed, (200, 250))
    copies = [
        Image.open(io.BytesIO(encode(image, 50))),
        image.resize((125, 100), Image.Resampling.BICUBIC),
        ImageEnhance.Brightness(image).enhance(1.3),
        image.crop((12, 10, 238, 190)),
        image.crop((12, 0, 250, 200)),
        image.crop((0, 3, 240, 195)),
    ]
    assert min(compare(load(image), load(copy)) for copy in copies) > LEAST_LIKENESS


def test_alike_in_light_and_different_in_detail_is_not_the_same() -> None:
    """The same gradient from dark to light, with other things on it."""
    slope = np.linspace(0, 160, 128)[None, :, None] + np.zeros((96, 128, 3))
    first, second = (slope + 0.4 * np.asarray(draw_picture(seed)) for seed in (1, 2))
    likeness = compare(*(load(Image.fromarray(each.clip(0, 255).astype(np.uint8))) for each in (first, second)))
    assert likeness < LEAST_LIKENESS


def test_windows_keep_the_mean_of_what_they_see() -> None:
    assert np.allclose(WINDOWS.sum(axis=2), 1, atol=1e-6)
    assert np.allclose(WINDOWS[0], np.kron(np.eye(24), np.full((1, 2), 0.5)))


def test_blank_images_are_like_nothing() -> None:
    blank = np.full((48, 48), 7, dtype=np.float32)
    assert compare(blank, blank) == 0


def test_pairs_are_measured_in_order() -> None:
    pictures = [load(draw_picture(seed)) for seed in range(3)]
    found = measure_likeness(np.array([[0, 0], [0, 1], [2, 2]]), pictures.__getitem__, pictures.__getitem__)
    assert found.shape == (3,)
    assert (found > LEAST_LIKENESS).tolist() == [True, False, True]
    assert measure_likeness(np.zeros((0, 2), np.int64), pictures.__getitem__, pictures.__getitem__).shape == (0,)
