"""Several sources as one: each image is the part's."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrine.data.joined import Joined
from vitrine.data.source import ArraySource, Labels
from vitrine.data.sources.files import FileSource
from vitrine.data.subset import Selection

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)


def make_array(pixels: np.ndarray, labels: list[int], title: str) -> ArraySource:
    return ArraySource(pixels, Labels.one_each(labels), ("a", "b"), title)


@pytest.fixture
def joined() -> Joined:
    first = Selection(make_array(PIXELS[:4], [0, 1, 1, 0], "first"), np.array([0, 2, 3]))
    return Joined([first, make_array(PIXELS[4:], [1, 0], "second")])


def test_images_come_part_by_part(joined: Joined) -> None:
    assert len(joined) == 5
    assert joined.class_names == ("a", "b")
    assert joined.labels.values.tolist() == [0, 1, 0, 1, 0]
    assert [joined.name(index) for index in range(5)] == ["first[0]", "first[2]", "first[3]", "second[0]", "second[1]"]
    for index, place in enumerate((0, 2, 3, 4, 5)):
        image, label = joined.read(index)
        np.testing.assert_array_equal(image.pixels(), PIXELS[place])
        assert label == joined.labels[index]


@pytest.mark.parametrize("indices", [[], [4, 0, 3, 1, 3], [2], [3]])
def test_a_block_has_them_in_the_order_that_was_asked_for(joined: Joined, indices: list[int]) -> None:
    block = joined.read_block(np.array(indices, np.int64))
    np.testing.assert_array_equal(block, PIXELS[np.array([0, 2, 3, 4, 5])[indices]])


def test_there_is_no_block_of_several_sizes_or_of_files(tmp_path: Path) -> None:
    Image.fromarray(PIXELS[0]).save(tmp_path / "x.png")
    files = FileSource(tmp_path, ["x.png"], Labels.one_each([1]), ("a", "b"))
    small = make_array(PIXELS[:2, :4, :4], [0, 1], "small")
    for other in (files, small):
        mixed = Joined([make_array(PIXELS, [0] * 6, "first"), other])
        assert mixed.read_block(np.arange(2)) is None
        np.testing.assert_array_equal(mixed.read(6)[0].pixels(), other.read(0)[0].pixels())
    assert Joined([files, files]).files() == [tmp_path / "x.png"]


def test_it_can_be_sent(joined: Joined) -> None:
    copy = pickle.loads(pickle.dumps(joined))
    np.testing.assert_array_equal(copy.read(3)[0].pixels(), PIXELS[4])
