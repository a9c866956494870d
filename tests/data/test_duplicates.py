"""Copies are found across and within data sets; other pictures are not."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from tests.data.pictures import draw_picture, encode, write_picture
from vitrine.data.duplicates import find_across, find_within, pair_digests
from vitrine.data.opening import open_data
from vitrine.data.source import Source
from vitrine.data.survey import survey_source

NUM_PICTURES = 12


def name_pairs(first: Source, second: Source) -> list[tuple[str, str, bool]]:
    pairs = find_across(survey_source(first, ""), first, survey_source(second, ""), second)
    return [(first.name(a), second.name(b), bool(e)) for (a, b), e in zip(pairs.numbers.tolist(), pairs.is_exact, strict=True)]


@pytest.fixture
def folder(tmp_path: Path, cache: Path) -> Path:
    for number in range(NUM_PICTURES):
        write_picture(tmp_path / "first" / "all" / f"{number:02}.jpg", seed=number)
    write_picture(tmp_path / "second" / "all" / "other.jpg", seed=100)
    return tmp_path


def test_every_kind_of_copy_is_found(folder: Path) -> None:
    image, place = draw_picture(4), folder / "second" / "all"
    (place / "exact.jpg").write_bytes((folder / "first" / "all" / "04.jpg").read_bytes())
    (place / "compressed.jpg").write_bytes(encode(image, 50))
    image.resize((64, 48), Image.Resampling.BICUBIC).save(place / "half.png")
    ImageEnhance.Brightness(image).enhance(1.3).save(place / "bright.png")
    image.crop((6, 5, 122, 91)).save(place / "cut.png")
    found = name_pairs(open_data(folder / "first"), open_data(folder / "second"))
    names = ("bright.png", "compressed.jpg", "cut.png", "exact.jpg", "half.png")
    assert found == [("all/04.jpg", f"all/{name}", name == "exact.jpg") for name in names]


def test_nothing_is_found_where_there_is_nothing(folder: Path) -> None:
    assert name_pairs(open_data(folder / "first"), open_data(folder / "second")) == []
    source = open_data(folder / "first")
    assert len(find_within(survey_source(source, ""), source)) == 0


def test_copies_within_are_paired_with_the_first(folder: Path) -> None:
    place = folder / "first" / "all"
    for name in ("20.jpg", "21.jpg"):
        (place / name).write_bytes((place / "03.jpg").read_bytes())
    (place / "22.jpg").write_bytes(encode(draw_picture(3), 40))
    source = open_data(folder / "first")
    pairs = find_within(survey_source(source, ""), source)
    assert pairs.numbers.tolist() == [[3, 12], [3, 13], [3, 14]]
    assert pairs.is_exact.tolist() == [True, True, False]
    assert pairs.likeness[2] > 0.9


def test_what_cannot_be_read_is_like_nothing(folder: Path) -> None:
    for name in ("first", "second"):
        (folder / name / "all" / "broken.jpg").write_bytes(b"the same nothing")
        Image.new("RGB", (20, 20), "red").save(folder / name / "all" / f"{name}.png", compress_level=len(name) % 5)
    found = name_pairs(open_data(folder / "first"), open_data(folder / "second"))
    assert [pair for pair in found if not pair[2]] == []
    assert all("broken" not in name for pair in found for name in pair[:2])


def test_digests_are_paired() -> None:
    rows = np.array([[0, 0], [1, 2], [3, 4], [1, 2]], dtype=np.uint8)
    assert pair_digests(rows, rows[[1, 0, 2]]).tolist() == [[1, 0], [3, 0], [2, 2]]


def test_copies_of_photographs(assets: Path, cache: Path, tmp_path: Path) -> None:
    """Of every tenth photograph of pets, among all of them: all copies, and no other."""
    source = open_data(assets / "pets", "test")
    chosen = range(0, len(source), 10)
    for number in chosen:
        image = source.read(number)[0].image()
        place = tmp_path / "copies" / "all"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:03}-compressed.jpg").write_bytes(encode(image, 50))
        width, height = image.size
        image.crop((round(0.03 * width), round(0.05 * height), width, height)).save(place / f"{number:03}-cut.jpg")
    copies = open_data(tmp_path / "copies")
    found = find_across(survey_source(source, ""), source, survey_source(copies, ""), copies)
    expected = {(number, 2 * place + which) for place, number in enumerate(chosen) for which in (0, 1)}
    assert expected <= set(map(tuple, found.numbers.tolist()))
    assert len(found) - len(expected) <= 2  # two photographs of this set are the same
