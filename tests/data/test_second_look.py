"""Copies are told from pictures that are only alike."""

import io

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from tests.data.pictures import draw_picture, encode
from vitrine.data.second_look import LEAST_LIKENESS, WINDOWS, Look, compare, look_at, prepare
from vitrine.data.stored import StoredImage


def load(image: Image.Image) -> Look:
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


def compare_plainly(first: np.ndarray, second: np.ndarray) -> float:
    """Every piece of either is made and laid over the whole of the other."""

    def list_steps(image: np.ndarray) -> np.ndarray:
        return np.concatenate([np.diff(image, axis=0)[:, 1:].reshape(-1), np.diff(image, axis=1)[1:].reshape(-1)])

    likeness = []
    for larger, smaller in ((first, second), (second, first)):
        whole = list_steps(WINDOWS[0] @ smaller @ WINDOWS[0].T)
        for rows in WINDOWS:
            for columns in WINDOWS:
                steps = list_steps(rows @ larger @ columns.T)
                likeness.append(steps @ whole / np.sqrt((steps @ steps) * (whole @ whole)))
    return max(likeness)


def test_it_is_the_best_of_all_pieces() -> None:
    generator = np.random.default_rng(0)
    first = generator.uniform(0, 255, (48, 48)).astype(np.float32)
    second = np.roll(first, 2, axis=1) + 20 * generator.standard_normal((48, 48)).astype(np.float32)
    expected = compare_plainly(first.astype(np.float64), second.astype(np.float64))
    assert 0.1 < expected < 0.99
    assert compare(look_at(first), look_at(second)) == pytest.approx(expected, abs=1e-4)  # of float32


def test_blank_images_are_like_nothing() -> None:
    blank = look_at(np.full((48, 48), 7, dtype=np.float32))
    assert compare(blank, blank) < 1e-3
