"""Signatures against the definition of the cosine transform, and what they stay the same under."""

import math

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from tests.data.pictures import draw_picture, encode
from vitrine.data.signature import NUM_WEAK, Signatures, compute_signature, shrink, sign
from vitrine.data.stored import StoredImage


def compute(image: Image.Image) -> Signatures:
    return compute_signature(StoredImage(np.asarray(image), "picture"))


def count_differing(first: Signatures, second: Signatures, views: tuple[int, int] = (0, 0)) -> int:
    return int(np.bitwise_count(first.words[0, views[0]] ^ second.words[0, views[1]]).sum())


def test_bits_are_signs_of_low_frequencies() -> None:
    """The sum that defines the transform (type II), for the first bits of each band."""
    grey = shrink(StoredImage(np.asarray(draw_picture(0)), "picture"), 32)
    words = sign(grey).words[0, 0]
    line = (np.arange(32) + 0.5) * math.pi / 32
    for band, (row, column) in enumerate([(0, 1), (1, 0), (1, 1), (0, 2)]):  # the lowest four, one to a band
        frequency = (grey[0] * np.cos(row * line)[:, None] * np.cos(column * line)).sum()
        assert bool(words[0] >> np.uint64(16 * band) & np.uint64(1)) == (frequency > 0)


def test_each_band_has_its_weak_bits() -> None:
    weak = int(compute(draw_picture(1)).weak[0, 0])
    assert [(weak >> 16 * band & 0xFFFF).bit_count() for band in range(4)] == [NUM_WEAK] * 4


@pytest.mark.parametrize("seed", range(5))
def test_copies_keep_their_bits(seed: int) -> None:
    image = draw_picture(seed)
    original = compute(image)
    recompressed = compute_signature(StoredImage(encode(image, quality=50), "picture"))
    half = compute(image.resize((64, 48), Image.Resampling.BICUBIC))
    brighter = compute(ImageEnhance.Brightness(image).enhance(1.2))
    for copy in (recompressed, half, brighter):
        assert count_differing(original, copy) <= 14


def test_a_piece_is_like_the_inner_view_of_the_whole() -> None:
    image = draw_picture(3, (200, 250))
    piece = compute(image.crop((10, 8, 240, 192)))  # 4 % off at each edge
    assert count_differing(compute(image), piece, (1, 0)) <= 4
    assert count_differing(compute(image), piece, (0, 0)) > 4


def test_unrelated_pictures_differ_in_half_of_the_bits() -> None:
    signatures = Signatures.join([compute(draw_picture(seed)) for seed in range(40)])
    words = signatures.words[:, 0]
    differing = np.bitwise_count(words[:, None] ^ words[None]).sum(axis=2)[np.triu_indices(40, 1)]
    assert abs(differing.mean() - 64) < 3
    assert differing.min() > 36


def test_a_blank_image_says_nothing() -> None:
    blank = compute(Image.new("RGB", (50, 40), (200, 10, 10)))
    assert blank.is_flat.all()
    assert not compute(draw_picture(0)).is_flat.any()


def test_rows_are_taken_and_joined() -> None:
    parts = [compute(draw_picture(seed)) for seed in range(3)]
    joined = Signatures.join(parts)
    assert len(joined) == 3
    assert np.array_equal(joined.take(np.array([2])).words, parts[2].words)
    assert Signatures.empty(4).is_flat.all()
