"""Tests of data/source.py.

The contract of sources: labels of each kind, errors that name the image, arrays as sources.
Names in, names out.
"""

import errno
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitrine.data.image import BadImage
from vitrine.data.source import ArraySource, Labels, PackedStrings, Source

ONE = Labels.one_each([2, 0, 1, 2])
SEVERAL = Labels.several_each([(0, 2), (), (1,), (2, 1, 0)])
NONE = Labels.none_each(4)


def test_one_label_each() -> None:
    assert (len(ONE), ONE.has_several) == (4, False)
    assert [ONE[index] for index in range(4)] == [2, 0, 1, 2]
    assert isinstance(ONE[0], int)
    assert ONE.values.dtype == np.int64
    assert Labels.one_each(np.array([[3], [1]], dtype=np.uint8)).values.tolist() == [3, 1]
    assert len(Labels.one_each([])) == 0


def test_several_labels_each_or_none() -> None:
    assert (len(SEVERAL), SEVERAL.has_several) == (4, True)
    assert [SEVERAL[index] for index in range(4)] == [(0, 2), (), (1,), (2, 1, 0)]
    assert all(type(label) is int for label in SEVERAL[3])
    assert SEVERAL.starts.tolist() == [0, 2, 2, 3, 6]
    assert len(Labels.several_each([])) == 0
    assert len(Labels.several_each([(), ()])) == 2


def test_no_labels() -> None:
    assert (len(NONE), NONE.has_several) == (4, True)
    assert {NONE[index] for index in range(4)} == {()}
    assert NONE.to_targets(np.array([0, 3]), 0).shape == (2, 0)
    assert len(NONE.take(np.array([1, 1, 2]))) == 3


@pytest.mark.parametrize("labels", [ONE, SEVERAL, NONE], ids=["one", "several", "none"])
@pytest.mark.parametrize("indices", [[], [3], [2, 0], [1, 1, 3], [3, 2, 1, 0]])
def test_taken_labels_are_those_of_the_images(labels: Labels, indices: list[int]) -> None:
    taken = labels.take(np.array(indices, dtype=np.int64))
    assert (len(taken), taken.has_several) == (len(indices), labels.has_several)
    assert [taken[place] for place in range(len(taken))] == [labels[index] for index in indices]
    twice = taken.take(np.arange(len(indices))[::-1])
    assert [twice[place] for place in range(len(twice))] == [labels[index] for index in reversed(indices)]


def test_batches_of_labels() -> None:
    one = ONE.to_targets(np.array([3, 1, 1]), 3)
    assert (one.dtype, one.tolist()) == (np.int64, [2, 0, 0])
    several = SEVERAL.to_targets(np.array([3, 1, 0]), 4)
    assert several.dtype == np.float32
    assert several.tolist() == [[1, 1, 1, 0], [0, 0, 0, 0], [1, 0, 1, 0]]
    assert torch.from_numpy(several).shape == (3, 4)


def test_a_batch_of_labels_is_nobody_elses() -> None:
    labels = Labels.one_each([2, 0, 1, 2])
    labels.to_targets(np.arange(4), 3)[:] = 9
    assert labels.values.tolist() == [2, 0, 1, 2]


class Broken(Source):
    def __init__(self, error: Exception) -> None:
        self.labels, self.class_names, self.error = Labels.one_each([0, 0]), ("a",), error

    def fetch(self, index: int) -> bytes:
        raise self.error

    def name(self, index: int) -> str:
        return f"train/cat/{index:03d}.jpg"

    def files(self) -> list[Path]:
        return []


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.EIO, os.strerror(errno.EIO)), "Input/output error"),
        (PermissionError(errno.EACCES, "Permission denied", "/secret/place.jpg"), "Permission denied"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "/x"), "No such file or directory"),
        (OSError("a shard ends too early"), "a shard ends too early"),
    ],
)
def test_what_the_disk_says_becomes_a_sentence_that_names_the_image(error: OSError, reason: str) -> None:
    with pytest.raises(BadImage) as complaint:
        Broken(error).read(1)
    message = f"train/cat/001.jpg cannot be read ({reason}), and an image was needed: restore it, or remove it."
    assert str(complaint.value) == message


@pytest.mark.parametrize("error", [BadImage("train/cat/001.jpg is bad."), RuntimeError("a bug"), KeyError("a bug")])
def test_any_other_error_is_itself(error: Exception) -> None:
    with pytest.raises(type(error)) as complaint:
        Broken(error).read(1)
    assert complaint.value is error


@pytest.mark.parametrize("index", [-1, 2, 10**9])
def test_numbers_outside_cost_a_sentence(index: int) -> None:
    with pytest.raises(IndexError, match=rf"^index={index} must be at least 0 and below 2, the number of images\.$"):
        Broken(OSError("not reached")).read(index)


def test_what_is_not_told_otherwise_is_read_one_by_one() -> None:
    assert Broken(OSError()).read_block(np.zeros(0, np.int64)) is None


PIXELS = np.random.default_rng(0).integers(0, 256, (4, 5, 6, 3), dtype=np.uint8)


@pytest.mark.parametrize("num_channels", [3, 1])
def test_an_array_is_a_source(num_channels: int) -> None:
    pixels = PIXELS[..., :num_channels]
    source = ArraySource(pixels, ONE, ("a", "b", "c"), "digits/train", [Path("digits.npz")])
    assert len(source) == 4
    assert [source.name(index) for index in range(4)] == [f"digits/train[{index}]" for index in range(4)]
    assert source.files() == [Path("digits.npz")]
    for index in range(4):
        image, label = source.read(index)
        assert (image.name, label) == (f"digits/train[{index}]", ONE[index])
        np.testing.assert_array_equal(image.to_numpy(num_channels), pixels[index])
    np.testing.assert_array_equal(source.read_block(np.array([3, 0, 3])), pixels[[3, 0, 3]])
    assert source.read_block(np.zeros(0, np.int64)).shape == (0, 5, 6, num_channels)


def test_a_block_may_be_written_to() -> None:
    source = ArraySource(PIXELS.copy(), ONE, ("a", "b", "c"), "array")
    source.read_block(np.arange(4))[:] = 0
    np.testing.assert_array_equal(source.pixels, PIXELS)


def test_an_array_can_be_sent_to_another_process() -> None:
    source = pickle.loads(pickle.dumps(ArraySource(PIXELS, SEVERAL, ("a", "b", "c"), "array")))
    assert source.read(3)[1] == (2, 1, 0)
    np.testing.assert_array_equal(source.read(3)[0].to_numpy(), PIXELS[3])


@pytest.mark.parametrize("pixels", [PIXELS[0], PIXELS.astype(np.float32), PIXELS[:3]], ids=["rank", "dtype", "count"])
def test_our_own_code_gives_it_arrays_that_fit(pixels: np.ndarray) -> None:
    with pytest.raises(AssertionError):
        ArraySource(pixels, ONE, ("a", "b", "c"), "array")


FILE_NAMES = st.binary(max_size=12).map(lambda content: content.decode("utf-8", "surrogateescape"))


@given(st.lists(FILE_NAMES, max_size=20))
def test_every_name_comes_back(names: list[str]) -> None:
    packed = PackedStrings.pack(names)
    assert len(packed) == len(names)
    assert [packed[index] for index in range(len(names))] == names
    again = pickle.loads(pickle.dumps(packed))
    assert [again[index] for index in range(len(names))] == names


def test_a_slice_counts_from_its_start() -> None:
    part = PackedStrings.pack(["a", "", "ü", "cat/1.jpg"]).slice(1, 4)
    assert [part[index] for index in range(len(part))] == ["", "ü", "cat/1.jpg"]
    assert len(PackedStrings.pack("abc").slice(2, 2)) == 0


def test_what_is_outside_is_an_error() -> None:
    with pytest.raises(IndexError):
        PackedStrings.pack(["a"])[1]
