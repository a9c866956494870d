"""Tests of data/quality/perceptual_hash.py.

Signatures against the definition of the cosine transform, and what they stay the same under.
What the search finds, against comparing each with each.
"""

import math

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from tests.data.pictures import draw_picture, encode
from vitrine.data.image import LazyImage
from vitrine.data.quality import perceptual_hash
from vitrine.data.quality.perceptual_hash import (
    MAX_DIFFERENT_OF_64,
    MAX_DIFFERENT_OF_128,
    NUM_WEAK,
    PerceptualHashes,
    compute_perceptual_hash,
    expand_ranges,
    hash_views,
    list_probes,
    resize_to_views,
    search,
    split_by_sum,
)


def compute(image: Image.Image) -> PerceptualHashes:
    return compute_perceptual_hash(LazyImage(np.asarray(image), "picture"))


def count_differing(first: PerceptualHashes, second: PerceptualHashes, views: tuple[int, int] = (0, 0)) -> int:
    return int(np.bitwise_count(first.words[0, views[0]] ^ second.words[0, views[1]]).sum())


def test_bits_are_signs_of_low_frequencies() -> None:
    """The sum that defines the transform (type II), for the first bits of each band."""
    grey = resize_to_views(LazyImage(np.asarray(draw_picture(0)), "picture"), 32)
    words = hash_views(grey).words[0, 0]
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
    recompressed = compute_perceptual_hash(LazyImage(encode(image, quality=50), "picture"))
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
    signatures = PerceptualHashes.join([compute(draw_picture(seed)) for seed in range(40)])
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
    joined = PerceptualHashes.join(parts)
    assert len(joined) == 3
    assert np.array_equal(joined.take(np.array([2])).words, parts[2].words)
    assert PerceptualHashes.empty(4).is_flat.all()


WEAK = np.uint64(0x003F_003F_003F_003F)  # the lowest six bits of each band


def draw(num_images: int, seed: int = 0) -> PerceptualHashes:
    words = np.random.default_rng(seed).integers(0, 2**64, (num_images, 2, 2), dtype=np.uint64)
    return PerceptualHashes(words, np.full((num_images, 2), WEAK), np.zeros(num_images, dtype=bool))


def flip(signatures: PerceptualHashes, number: int, bits: list[int]) -> PerceptualHashes:
    words = signatures.words.copy()
    words[number, :, 0] ^= np.bitwise_or.reduce(np.uint64(1) << np.array(bits, dtype=np.uint64))
    return PerceptualHashes(words, signatures.weak, signatures.is_flat)


def test_copies_are_found_and_nothing_else() -> None:
    """Unrelated ones differ in 64 of 128 bits with a spread of 5.7: none of these comes near."""
    database = draw(500)
    queries = flip(flip(database.take(np.arange(100)), 3, [0, 1, 2, 16, 17]), 7, [20, 21, 40, 63])
    assert search(database, queries).tolist() == [[number, number] for number in range(100)]


@pytest.mark.parametrize(
    ("bits", "is_found"),
    [
        ([], True),
        ([0, 1, 2, 16, 17, 18, 32, 33, 34, 48, 49, 50], True),  # three weak bits of every band
        ([6, 22, 38, 54], False),  # one strong bit of every band
        ([6, 22, 38], True),  # a band is left as it was
        ([0, 1, 2, 3, 16, 17, 18, 19, 32, 33, 34, 35, 48, 49, 50, 51], False),  # four weak bits of every band
        (list(range(15)), True),
        (list(range(16)), False),  # too many, though three bands are the same
    ],
)
def test_which_differences_are_bridged(bits: list[int], is_found: bool) -> None:
    database = draw(20)
    queries = database.take(np.array([5]))
    queries = queries if not bits else flip(queries, 0, bits)
    assert (search(database, queries).tolist() == [[5, 0]]) == is_found


def test_the_second_word_is_compared_too() -> None:
    database = draw(20)
    for num_flipped, is_found in ((MAX_DIFFERENT_OF_128, True), (MAX_DIFFERENT_OF_128 + 1, False)):
        words = database.words[5:6].copy()
        words[:, :, 1] ^= np.uint64(2**num_flipped - 1)
        assert len(search(database, PerceptualHashes(words, database.weak[5:6], database.is_flat[5:6]))) == int(is_found)


def test_any_view_may_be_like_any_other() -> None:
    database, queries = draw(20), draw(4, seed=1)
    queries.words[2, 0] = database.words[11, 1]
    queries.words[3, 1] = database.words[12, 0]
    assert search(database, queries).tolist() == [[11, 2], [12, 3]]


def test_flat_images_are_like_nothing() -> None:
    database = draw(10)
    flat = PerceptualHashes(database.words, database.weak, np.arange(10) < 9)
    assert search(flat, database).tolist() == [[9, 9]]
    assert search(database, flat).tolist() == [[9, 9]]


def test_nothing_to_search() -> None:
    assert search(draw(0), draw(5)).shape == (0, 2)
    assert search(draw(5), draw(0)).shape == (0, 2)


def test_few_pairs_at_once_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    signatures = draw(200)
    signatures.words[100:] = signatures.words[:100]
    whole = search(signatures, signatures)
    monkeypatch.setattr(perceptual_hash, "MAX_PAIRS_AT_ONCE", 3)
    monkeypatch.setattr(perceptual_hash, "QUERIES_AT_ONCE", 7)
    assert np.array_equal(search(signatures, signatures), whole)
    assert len(whole) == 400  # each half is like itself and like the other


def test_probes_are_all_flips_of_up_to_three_weak_bits() -> None:
    (probes,) = list_probes(np.array([0x1234], dtype=np.uint64), np.array([WEAK]), band=0)
    near = {0x1234 ^ flips for flips in range(64) if flips.bit_count() <= 3}
    assert set(probes.tolist()) == near
    assert probes[0] == 0x1234


def test_ranges_and_parts() -> None:
    counts = np.array([2, 0, 3, 1])
    assert expand_ranges(np.array([5, 9, 1, 7]), counts).tolist() == [5, 6, 1, 2, 3, 7]
    assert [(part.start, part.stop) for part in split_by_sum(np.array([2**21, 1, 1, 2**22, 1]))] == [
        (0, 1),
        (1, 3),
        (3, 4),
        (4, 5),
    ]
    assert MAX_DIFFERENT_OF_64 < MAX_DIFFERENT_OF_128
