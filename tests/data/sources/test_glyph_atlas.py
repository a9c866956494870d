"""Fields of characters against closed forms, the classes, and the cache."""

import unicodedata
from pathlib import Path

import numpy as np
import pytest
from benchmarks.glyph_classes import DIGITS, FACES, LIKE_A_CLASS, LIKE_A_DIGIT, compare, draw_coverage

from vitrine.data.sources import glyph_atlas
from vitrine.data.sources.glyph_atlas import (
    DEJAVU,
    GLYPH_SIDE,
    SIDE,
    STEPS,
    GlyphAtlas,
    GlyphPen,
    draw_atlas,
    load_atlas,
    read_characters,
)


def test_the_field_of_a_square_is_the_distance_to_its_sides() -> None:
    field = GlyphPen("DejaVuSans").draw("\N{BLACK SQUARE}")
    assert field is not None
    line = np.minimum(np.arange(SIDE) + 0.5 - (SIDE - GLYPH_SIDE) / 2, (SIDE + GLYPH_SIDE) / 2 - np.arange(SIDE) - 0.5)
    x, y = line, line[:, None]
    outside = np.hypot(np.minimum(x, 0), np.minimum(y, 0))
    np.testing.assert_allclose(field, np.where(np.minimum(x, y) > 0, np.minimum(x, y), -outside), atol=0.75)


@pytest.mark.parametrize("face", glyph_atlas.FACES)
def test_characters_have_one_size(face: str) -> None:
    pen = GlyphPen(face)
    for character in "AimW":
        field = pen.draw(character)
        assert field is not None
        rows, columns = np.nonzero(field > 0)
        assert max(np.ptp(rows), np.ptp(columns)) + 1 == pytest.approx(GLYPH_SIDE, abs=3)  # ends of thin strokes
        for places in (rows, columns):
            assert abs((places.min() + places.max() + 1) / 2 - SIDE / 2) <= 1.5


def test_letters_have_all_faces_and_others_those_that_have_them() -> None:
    atlas = draw_atlas(["A", "z", "Ж", "#"])
    counts = np.diff(atlas.starts)
    assert counts[:2].tolist() == [21, 21]
    assert 12 <= counts[2] <= 16
    assert 12 <= counts[3] <= 16  # Computer Modern has another character in this place
    assert atlas.fields.shape == (counts.sum(), SIDE, SIDE)
    assert atlas.fields.dtype == np.int8
    assert (atlas.fields > 0).any(axis=(1, 2)).all()
    exact = GlyphPen("DejaVuSans").draw("A")
    assert exact is not None
    np.testing.assert_allclose(atlas.fields[0] / STEPS, np.clip(exact, -128 / STEPS, 127 / STEPS), atol=0.5 / STEPS)


def test_the_classes() -> None:
    characters = read_characters()
    assert len(set(characters)) == len(characters) == 1044
    assert {unicodedata.category(each)[0] for each in characters} == {"L", "P", "S"}
    pens = [GlyphPen(face) for face in DEJAVU]
    assert all(pen.has(each) for pen in pens for each in characters)
    for digit_like in "ZOolIBSQ\N{LATIN CAPITAL LETTER EZH}\N{LATIN LETTER TWO WITH STROKE}0123456789":
        assert digit_like not in characters
    for other in "AFHKMXYhk&#@":
        assert other in characters


def test_no_class_looks_like_a_digit_or_like_another() -> None:
    """Some classes, compared in all pairs of faces with the digits, and in each face with each other."""
    some = read_characters()[:60]
    shapes = [np.stack([draw_coverage(GlyphPen(face), each) for each in (*some, *DIGITS)]) for face in FACES]
    assert max(compare(one[:60], other[60:]).max() for one in shapes for other in shapes) < LIKE_A_DIGIT
    likeness = np.mean([compare(each[:60], each[:60]) for each in shapes], axis=0)
    assert np.triu(likeness, 1).max() < LIKE_A_CLASS


def test_parts_are_drawn_once_and_join(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    monkeypatch.setattr(glyph_atlas, "PART", 4)
    monkeypatch.setattr(glyph_atlas, "draw_atlas", lambda characters: drawn.append(len(characters)) or draw_atlas(characters))
    five = load_atlas.__wrapped__(5)
    assert drawn == [4, 4]
    assert len(list((cache / "glyphs").glob("*.npz"))) == 2
    whole = draw_atlas(read_characters()[:5])
    assert np.array_equal(five.fields, whole.fields)
    assert np.array_equal(five.starts, whole.starts)
    again = load_atlas.__wrapped__(5)
    assert drawn == [4, 4]
    assert np.array_equal(again.fields, five.fields)


def test_a_damaged_part_is_drawn_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glyph_atlas, "PART", 3)
    before = load_atlas.__wrapped__(3)
    (path,) = (cache / "glyphs").glob("*.npz")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)
    with pytest.warns(UserWarning, match="damaged"):
        after = load_atlas.__wrapped__(3)
    assert np.array_equal(after.fields, before.fields)
    assert np.array_equal(load_atlas.__wrapped__(3).fields, before.fields)


def test_a_cache_that_cannot_be_written_is_a_warning(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glyph_atlas, "PART", 3)
    cache.write_text("a file, not a folder")
    with pytest.warns(UserWarning, match="cached"):
        atlas = load_atlas.__wrapped__(3)
    assert isinstance(atlas, GlyphAtlas)
