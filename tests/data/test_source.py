"""Sources: labels of each kind, errors that name the image, arrays as sources, packed names."""

import errno
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
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


def test_sets_of_labels() -> None:
    assert (len(SEVERAL), SEVERAL.has_several) == (4, True)
    assert [SEVERAL[index] for index in range(4)] == [(0, 2), (), (1,), (2, 1, 0)]
    assert all(type(label) is int for label in SEVERAL[3])
    assert SEVERAL.starts.tolist() == [0, 2, 2, 3, 6]
    assert len(Labels.several_each([])) == 0
    assert len(Labels.several_each([(), ()])) == 2


def test_unlabelled_images() -> None:
    assert (len(NONE), NONE.has_several) == (4, True)
    assert {NONE[index] for index in range(4)} == {()}
    assert NONE.to_targets(np.array([0, 3]), 0).shape == (2, 0)
    assert len(NONE.take(np.array([1, 1, 2]))) == 3


@pytest.mark.parametrize("labels", [ONE, SEVERAL, NONE], ids=["one", "several", "none"])
@pytest.mark.parametrize("indices", [[], [3], [2, 0], [1, 1, 3], [3, 2, 1, 0]])
def test_taking_labels(labels: Labels, indices: list[int]) -> None:
    taken = labels.take(np.array(indices, dtype=np.int64))
    assert (len(taken), taken.has_several) == (len(indices), labels.has_several)
    assert [taken[position] for position in range(len(taken))] == [labels[index] for index in indices]
    twice = taken.take(np.arange(len(indices))[::-1])
    assert [twice[position] for position in range(len(twice))] == [labels[index] for index in reversed(indices)]


def test_targets_of_a_batch() -> None:
    one = ONE.to_targets(np.array([3, 1, 1]), 3)
    assert (one.dtype, one.tolist()) == (np.int64, [2, 0, 0])
    several = SEVERAL.to_targets(np.array([3, 1, 0]), 4)
    assert several.dtype == np.float32
    assert several.tolist() == [[1, 1, 1, 0], [0, 0, 0, 0], [1, 0, 1, 0]]
    ONE.to_targets(np.arange(4), 3)[:] = 9  # a copy
    assert ONE.values.tolist() == [2, 0, 1, 2]


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
        (PermissionError(errno.EACCES, "Permission denied", "/secret/1.jpg"), "Permission denied"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "/x"), "No such file or directory"),
        (OSError("a shard ends too early"), "a shard ends too early"),
    ],
)
def test_error_of_the_file_system_names_the_image_and_the_reason(error: OSError, reason: str) -> None:
    with pytest.raises(BadImage, match=rf"^train/cat/001\.jpg .*{reason}"):
        Broken(error).read(1)


@pytest.mark.parametrize("error", [BadImage("train/cat/001.jpg is bad."), RuntimeError("a bug"), KeyError("a bug")])
def test_other_errors_are_not_converted(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        Broken(error).read(1)
    assert caught.value is error


@pytest.mark.parametrize("index", [-1, 2, 10**9])
def test_index_out_of_range(index: int) -> None:
    with pytest.raises(IndexError, match=f"index={index}"):
        Broken(OSError("not reached")).read(index)


PIXELS = np.random.default_rng(0).integers(0, 256, (4, 5, 6, 3), dtype=np.uint8)


@pytest.mark.parametrize("num_channels", [3, 1])
def test_array_source(num_channels: int) -> None:
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


def test_block_is_a_copy() -> None:
    source = ArraySource(PIXELS.copy(), ONE, ("a", "b", "c"), "array")
    source.read_block(np.arange(4))[:] = 0
    np.testing.assert_array_equal(source.pixels, PIXELS)


def test_array_source_can_be_pickled() -> None:
    source = pickle.loads(pickle.dumps(ArraySource(PIXELS, SEVERAL, ("a", "b", "c"), "array")))
    assert source.read(3)[1] == (2, 1, 0)
    np.testing.assert_array_equal(source.read(3)[0].to_numpy(), PIXELS[3])


FILE_NAMES = st.binary(max_size=12).map(lambda content: content.decode("utf-8", "surrogateescape"))


@given(st.lists(FILE_NAMES, max_size=20))
def test_packed_strings_come_back(names: list[str]) -> None:
    packed = PackedStrings.pack(names)
    assert len(packed) == len(names)
    assert [packed[index] for index in range(len(names))] == names
    again = pickle.loads(pickle.dumps(packed))
    assert [again[index] for index in range(len(names))] == names


def test_slice_of_packed_strings() -> None:
    part = PackedStrings.pack(["a", "", "ü", "cat/1.jpg"]).slice(1, 4)
    assert [part[index] for index in range(len(part))] == ["", "ü", "cat/1.jpg"]
    assert len(PackedStrings.pack("abc").slice(2, 2)) == 0


def test_packed_strings_check_the_index() -> None:
    with pytest.raises(IndexError):
        PackedStrings.pack(["a"])[1]
