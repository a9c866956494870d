"""The source `glyphs`: its names, its labels, and images that are a function of seed, split and index."""

import pickle

import numpy as np
import pytest

from vitrine.data.open_data import find_data, open_data
from vitrine.data.source import ArraySource
from vitrine.data.sources import glyphs
from vitrine.data.sources.glyph_atlas import read_characters
from vitrine.data.sources.glyphs import NUM_HELD_OUT, GlyphSettings, GlyphsSource, open_glyphs, parse_settings

FEW = GlyphSettings(classes=5, images=40, image_size=16)


def test_names_are_settings() -> None:
    assert parse_settings("glyphs") == GlyphSettings()
    assert parse_settings("glyphs@32") == GlyphSettings(image_size=32)
    assert parse_settings("glyphs:classes=50,images=3000,warp=0.25,noise=1,seed=7@8") == GlyphSettings(
        classes=50, images=3000, warp=0.25, noise=1.0, seed=7, image_size=8
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("glyphs:classes", "classes=''.*whole number from 2 to 1,044"),
        ("glyphs:classes=1", "2 to 1,044"),
        ("glyphs:classes=1045", "2 to 1,044"),
        ("glyphs:images=2.5", "whole number"),
        ("glyphs:images=20000001", "20,000,000"),
        ("glyphs:warp=2", "a number from 0 to 1"),
        ("glyphs:warp=nan", "a number from 0 to 1"),
        ("glyphs:noise=-1", "a number from 0 to 1"),
        ("glyphs:noise=1,noise=1", "more than once"),
        ("glyphs:class=5", "unknown setting 'class': use classes"),
        ("glyphs:image_size=28", "unknown setting"),
        ("glyphs@7", "8 to 64"),
        ("glyphs@", "8 to 64"),
        ("glyphs@28@28", "8 to 64"),
        ("glyphs:seed=1²", "whole number"),
    ],
)
def test_wrong_names(name: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        find_data(name)


def test_images_by_split() -> None:
    handle = find_data("glyphs:classes=5,images=40@16")
    assert handle.splits == ("train", "val", "test")
    assert [len(handle.open(split)) for split in handle.splits] == [40, NUM_HELD_OUT, NUM_HELD_OUT]
    first = [handle.open(split).fetch(0) for split in handle.splits]
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first[1], first[2])


def test_classes_are_even_and_named_by_their_characters() -> None:
    source = open_data("glyphs:classes=5,images=40@16", "train")
    assert source.class_names == read_characters()[:5]
    assert np.bincount(source.labels.values).tolist() == [8] * 5


def test_drawn_at_once_or_as_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = open_glyphs(FEW, "train")
    assert isinstance(at_once, ArraySource)
    monkeypatch.setattr(glyphs, "MAX_BYTES_IN_MEMORY", 0)
    lazily = open_glyphs(FEW, "train")
    assert isinstance(lazily, GlyphsSource)
    assert [at_once.name(3), at_once.read(3)[1]] == [lazily.name(3), lazily.read(3)[1]]
    chosen = np.array([30, 2, 2, 17])
    assert np.array_equal(at_once.read_block(chosen), lazily.read_block(chosen))
    assert np.array_equal(lazily.fetch(17), at_once.pixels[17])
    assert lazily.read_block(np.zeros(0, np.int64)).shape == (0, 16, 16, 1)


def test_more_images_begin_with_the_same_ones() -> None:
    few, many = (GlyphsSource(GlyphSettings(classes=5, images=count), 0, count) for count in (40, 9_000_000))
    assert np.array_equal(few.read_block(np.arange(40)), many.read_block(np.arange(40)))
    assert len(many) == 9_000_000
    many.fetch(8_999_999)


def test_another_seed_gives_other_images_of_the_same_classes() -> None:
    one, other = (GlyphsSource(GlyphSettings(classes=5, images=40, seed=seed), 0, 40) for seed in (0, 1))
    assert one.labels.values.tolist() == other.labels.values.tolist()
    assert not np.array_equal(one.fetch(0), other.fetch(0))


def test_another_process_draws_the_same_images() -> None:
    source = GlyphsSource(FEW, 1, 40)
    content = pickle.dumps(source)
    assert len(content) < 10_000  # the atlas is not in it
    assert np.array_equal(pickle.loads(content).read_block(np.arange(40)), source.read_block(np.arange(40)))


def test_classes_can_be_told_apart() -> None:
    """Nearest mean images: far above chance on images that were not seen, and below all right."""
    source = open_data("glyphs:classes=20,images=2000,warp=0.3,noise=0.3@28", "train")
    pixels = source.read_block(np.arange(2000)).reshape(2000, -1).astype(float)
    pixels = (pixels - pixels.mean(axis=1, keepdims=True)) / pixels.std(axis=1, keepdims=True)
    labels = source.labels.values
    means = np.stack([pixels[:1500][labels[:1500] == label].mean(axis=0) for label in range(20)])
    accuracy = np.mean((pixels[1500:] @ means.T).argmax(axis=1) == labels[1500:])
    assert 0.3 < accuracy < 0.99
