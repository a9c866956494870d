"""What the search finds, against comparing each with each."""

import numpy as np
import pytest

from vitrine.data import signature_search
from vitrine.data.signature import Signatures
from vitrine.data.signature_search import (
    MOST_OF_64,
    MOST_OF_128,
    expand_ranges,
    list_probes,
    search,
    split_evenly,
)

WEAK = np.uint64(0x003F_003F_003F_003F)  # the lowest six bits of each band


def draw(num_images: int, seed: int = 0) -> Signatures:
    words = np.random.default_rng(seed).integers(0, 2**64, (num_images, 2, 2), dtype=np.uint64)
    return Signatures(words, np.full((num_images, 2), WEAK), np.zeros(num_images, dtype=bool))


def flip(signatures: Signatures, number: int, bits: list[int]) -> Signatures:
    words = signatures.words.copy()
    words[number, :, 0] ^= np.bitwise_or.reduce(np.uint64(1) << np.array(bits, dtype=np.uint64))
    return Signatures(words, signatures.weak, signatures.is_flat)


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
    for num_flipped, is_found in ((MOST_OF_128, True), (MOST_OF_128 + 1, False)):
        words = database.words[5:6].copy()
        words[:, :, 1] ^= np.uint64(2**num_flipped - 1)
        assert len(search(database, Signatures(words, database.weak[5:6], database.is_flat[5:6]))) == int(is_found)


def test_any_view_may_be_like_any_other() -> None:
    database, queries = draw(20), draw(4, seed=1)
    queries.words[2, 0] = database.words[11, 1]
    queries.words[3, 1] = database.words[12, 0]
    assert search(database, queries).tolist() == [[11, 2], [12, 3]]


def test_flat_images_are_like_nothing() -> None:
    database = draw(10)
    flat = Signatures(database.words, database.weak, np.arange(10) < 9)
    assert search(flat, database).tolist() == [[9, 9]]
    assert search(database, flat).tolist() == [[9, 9]]


def test_nothing_to_search() -> None:
    assert search(draw(0), draw(5)).shape == (0, 2)
    assert search(draw(5), draw(0)).shape == (0, 2)


def test_few_pairs_at_once_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    signatures = draw(200)
    signatures.words[100:] = signatures.words[:100]
    whole = search(signatures, signatures)
    monkeypatch.setattr(signature_search, "PAIRS_AT_ONCE", 3)
    monkeypatch.setattr(signature_search, "QUERIES_AT_ONCE", 7)
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
    assert [(part.start, part.stop) for part in split_evenly(np.array([2**21, 1, 1, 2**22, 1]))] == [
        (0, 1),
        (1, 3),
        (3, 4),
        (4, 5),
    ]
    assert MOST_OF_64 < MOST_OF_128
