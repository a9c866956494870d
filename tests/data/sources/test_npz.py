"""Tests of data/sources/npz.py.

Images and labels in NumPy's files: which array is which, and what does not fit together.
NumPy's files against NumPy's own writers, and archives that are not what they say.
Headers as NumPy itself writes them.
"""

import io
import pickle
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrine.data.sources.npz import (
    FORMAT,
    list_arrays,
    locate,
    locate_npy,
    map_numbers,
    open_archive,
    read_npy_header,
    read_numbers,
)

RANDOM = np.random.default_rng(0)
GREY = RANDOM.integers(0, 256, (6, 5, 4), dtype=np.uint8)
COLOURS = RANDOM.integers(0, 256, (6, 5, 4, 3), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2])


def make_arrays(folder: Path) -> Path:
    path = folder / "data.npz"
    np.savez(path, images=COLOURS, labels=LABELS, class_names=np.array(["cat", "dog", "ship"]))
    return path


def save(folder: Path, **arrays: object) -> Path:
    path = folder / "data.npz"
    np.savez_compressed(path, **arrays)
    return path


def require_sentence(path: Path, sentence: str, split: str | None = None) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        FORMAT.open(path, split)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_without_splits(tmp_path: Path) -> None:
    path = make_arrays(tmp_path)
    assert FORMAT.matches(path)
    assert FORMAT.list_splits(path) == ()
    source = FORMAT.open(path, None)
    assert isinstance(source.pixels, np.memmap)  # np.savez does not compress
    for copy in (source, pickle.loads(pickle.dumps(source))):
        np.testing.assert_array_equal(copy.pixels, COLOURS)
        assert [copy.read(index)[1] for index in range(6)] == LABELS.tolist()
        np.testing.assert_array_equal(copy.read(4)[0].to_numpy(), COLOURS[4])
        assert copy.class_names == ("cat", "dog", "ship")
    assert source.name(4) == "data.npz/images[4]"
    assert source.files() == [path]


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
@pytest.mark.parametrize(("images", "labels"), [("images", "labels"), ("x", "y"), ("data", "targets"), ("image", "label")])
def test_names_of_arrays(tmp_path: Path, write: object, images: str, labels: str) -> None:
    path = tmp_path / "data.npz"
    write(path, **{images: GREY, labels: LABELS})
    source = FORMAT.open(path, None)
    np.testing.assert_array_equal(source.pixels, GREY[..., None])
    assert source.labels.values.tolist() == LABELS.tolist()
    assert source.class_names == ("0", "1", "2")


def test_keras(tmp_path: Path) -> None:
    labels = LABELS.astype(np.uint8)
    path = save(tmp_path, x_train=COLOURS, y_train=labels[:, None], x_test=COLOURS[:2], y_test=np.array([[5], [0]], np.uint8))
    assert FORMAT.list_splits(path) == ("train", "test")
    train, test = FORMAT.open(path, "train"), FORMAT.open(path, "test")
    np.testing.assert_array_equal(train.pixels, COLOURS)
    assert (train.labels.has_several, train.labels.values.tolist()) == (False, LABELS.tolist())
    assert (test.labels.values.tolist(), test.name(1)) == ([5, 0], "data.npz/x_test[1]")
    assert train.class_names == test.class_names == tuple("012345")


def test_medmnist_with_several_labels_each(tmp_path: Path) -> None:
    table = np.array([[1, 0, 0], [0, 1, 1], [0, 0, 0], [1, 1, 1], [0, 0, 1], [1, 0, 1]])
    numbers = {"train": 6, "val": 2, "test": 1}
    arrays = {f"{split}_images": GREY[:number] for split, number in numbers.items()}
    path = save(tmp_path, **arrays, **{f"{split}_labels": table[:number] for split, number in numbers.items()})
    assert FORMAT.list_splits(path) == ("train", "val", "test")
    source = FORMAT.open(path, "train")
    assert [source.read(index)[1] for index in range(6)] == [(0,), (1, 2), (), (0, 1, 2), (2,), (0, 2)]
    np.testing.assert_array_equal(source.labels.to_targets(np.arange(6), 3), table)
    assert source.class_names == ("0", "1", "2")
    assert FORMAT.open(path, "val").labels[1] == (1, 2)


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", ["C", "F"])
def test_where_the_channels_stand(tmp_path: Path, write: object, order: str) -> None:
    path = tmp_path / "data.npz"
    for stored, expected in (
        (COLOURS, COLOURS),
        (COLOURS.transpose(0, 3, 1, 2), COLOURS),
        (GREY[..., None], GREY[..., None]),
        (GREY[:, None], GREY[..., None]),
        (COLOURS[:, :3], COLOURS[:, :3]),  # (6, 3, 4, 3): the last
    ):
        write(path, images=np.asarray(stored, order=order))
        source = FORMAT.open(path, None)
        np.testing.assert_array_equal(source.pixels, expected)
        np.testing.assert_array_equal(source.read(3)[0].to_numpy(expected.shape[3]), expected[3])
        np.testing.assert_array_equal(source.read_block(np.array([5, 0])), expected[[5, 0]])


def test_npy_is_images_without_labels(tmp_path: Path) -> None:
    path = tmp_path / "images.npy"
    np.save(path, GREY)
    assert FORMAT.matches(path)
    assert FORMAT.list_splits(path) == ()
    source = FORMAT.open(path, None)
    assert isinstance(source.pixels, np.memmap)
    np.testing.assert_array_equal(source.pixels, GREY[..., None])
    assert (len(source), source.labels[0], source.class_names, source.name(2)) == (6, (), (), "images.npy[2]")
    path.write_bytes(path.read_bytes() + b"\0")
    require_sentence(path, r"says that it is uint8 of shape \(6, 5, 4\), and is not as long")
    path.write_bytes(path.read_bytes()[:-2])
    require_sentence(path, r"says that it is uint8 of shape \(6, 5, 4\), and is not as long")
    np.save(path, COLOURS[0])
    require_sentence(path, r"has the shape \(5, 4, 3\), and images \(number, height, width\)")


def test_no_labels(tmp_path: Path) -> None:
    source = FORMAT.open(save(tmp_path, images=GREY), None)
    assert (len(source), source.labels[0], source.class_names) == (6, (), ())
    path = save(tmp_path, x_train=GREY, y_train=LABELS, x_test=GREY)
    test = FORMAT.open(path, "test")
    assert (len(test), test.labels[0], test.class_names) == (6, (), ("0", "1", "2"))


def test_what_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "folder.npz").mkdir()
    for name in ("folder.npz", "nothing.npz", "data.zip"):
        assert not FORMAT.matches(tmp_path / name)
    for name in ("nothing.npz", "nothing.npy"):
        with pytest.raises(FileNotFoundError, match=rf"{name} does not exist, and a \.np. file was needed"):
            FORMAT.open(tmp_path / name, None)
    require_sentence(tmp_path / "folder.npz", r"cannot be read \(Is a directory\), and a \.npz file was needed")


OBJECTS = np.array([["cat"], ["dog", "ship"]], dtype=object)
REFUSED = {
    "floats": ({"images": GREY / 255}, r"images in .* has pixels of float64, and bytes .* np\.rint\(images \* 255\)"),
    "wide numbers": ({"images": GREY.astype(np.int64)}, "has pixels of int64, and bytes"),
    "two channels": ({"images": COLOURS[..., :2]}, r"has the shape \(6, 5, 4, 2\), and images"),
    "flat images": ({"images": GREY.reshape(6, 20)}, r"has the shape \(6, 20\), and images"),
    "no images": ({"images": GREY[:0]}, r"has the shape \(0, 5, 4\), and images"),
    "objects": ({"images": OBJECTS}, "images in .* holds Python objects, which could run anything"),
    "unknown names": ({"a": GREY, "b": LABELS}, "has the arrays a, b, which are no images; images and labels, or x_train"),
    "unknown labels": ({"images": GREY, "classes": LABELS}, "has classes and no labels for images"),
    "two of images": ({"images": GREY, "x": GREY}, "has the arrays images, x, and only one of these"),
    "two of labels": ({"images": GREY, "y": LABELS, "targets": LABELS}, "has the arrays y, targets, and only one of these"),
    "both layouts": ({"images": GREY, "x_train": GREY}, "which are images with and without splits"),
    "too few labels": ({"images": GREY, "labels": LABELS[:5]}, "has 6 images and 5 labels, and as many were needed"),
    "float labels": ({"images": GREY, "labels": LABELS / 2}, r"labels in .* is float64 of shape \(6,\), and whole numbers"),
    "negative labels": ({"images": GREY, "labels": LABELS - 1}, "has labels from -1 to 1, and 0 to 999999 was needed"),
    "huge labels": ({"images": GREY, "labels": LABELS.astype(np.uint64) + 2**63}, "has labels from 9223372036854775808"),
    "a table of counts": ({"images": GREY, "labels": np.stack([LABELS, LABELS], 1)}, "has labels from 0 to 2, and 0 to 1"),
    "too few names": (
        {"images": GREY, "labels": LABELS, "class_names": np.array(["cat", "dog"])},
        "has 2 class_names, and 3 were needed",
    ),
    "object names": (
        {"images": GREY, "labels": LABELS, "class_names": np.array(["a", "b", "c"], dtype=object)},
        "class_names in .* holds Python objects",
    ),
    "names as numbers": (
        {"images": GREY, "labels": LABELS, "class_names": LABELS},
        r"class_names in .* is int64 of shape \(6,\), and one row of strings was needed",
    ),
    "half a letter": (
        {"images": GREY, "labels": LABELS, "class_names": np.array(["a", "b", "\ud800"])},
        "surrogates not allowed",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_costs_a_sentence(tmp_path: Path, case: str) -> None:
    arrays, sentence = REFUSED[case]
    require_sentence(save(tmp_path, **arrays), sentence)


def test_labels_of_different_widths_cost_a_sentence(tmp_path: Path) -> None:
    table = np.eye(3, dtype=np.int64)[LABELS]
    path = save(tmp_path, x_train=GREY, y_train=table, x_test=GREY, y_test=LABELS)
    require_sentence(path, "has y_train, y_test of different widths", "train")


@settings(max_examples=150, deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), value=st.integers(0, 255), is_cut=st.booleans())
@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_any_spoilt_byte_costs_at_most_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, write: object, place: float, value: int, is_cut: bool
) -> None:
    path = tmp_path_factory.mktemp("arrays") / "data.npz"
    write(path, images=GREY, labels=LABELS, class_names=np.array(["cat", "dog", "ship"]))
    content = bytearray(path.read_bytes())
    index = int(place * len(content))
    content[index] = value
    path.write_bytes(content[:index] if is_cut else content)
    try:
        source = FORMAT.open(path, None)
    except ValueError as error:
        assert str(path) in str(error)  # noqa: PT017 (it may also go well, if the byte is the same or a pixel)
    else:
        assert (len(source), source.pixels.shape) == (6, (6, 5, 4, 1))


RANDOM_NUMPY_FILES = np.random.default_rng(0)
BYTES = RANDOM_NUMPY_FILES.integers(0, 256, (6, 5, 4), dtype=np.uint8)
ARRAYS = {
    "bytes": BYTES,
    "columns_first": np.asfortranarray(BYTES),
    "doubles": RANDOM_NUMPY_FILES.normal(size=(3, 2)),
    "foreign_order": np.arange(5, dtype=">i4"),
    "text": np.array(["cat", "größer"]),
    "scalar": np.array(7, dtype=np.int16),
    "nothing": np.zeros((0, 3), dtype=np.float32),
}


def read_one(path: Path, name: str) -> np.ndarray:
    with open_archive(path) as archive:
        return read_numbers(locate(path, archive, name), archive)


def require_sentence_numpy_files(path: Path, sentence: str, name: str = "images") -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        read_one(path, name)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_archives_as_numpy_writes_them(tmp_path: Path, write: object) -> None:
    path = tmp_path / "data.npz"
    write(path, **ARRAYS)
    with open_archive(path) as archive:
        assert list_arrays(path, archive) == set(ARRAYS)
        for name, array in ARRAYS.items():
            stored = locate(path, archive, name)
            assert (stored.shape, stored.dtype, str(stored)) == (array.shape, array.dtype, f"{name} in {path}")
            np.testing.assert_array_equal(read_numbers(stored, archive), array)
            assert (stored.start is None) == (write is np.savez_compressed)
            if stored.start is not None and array.size > 0:
                mapped = map_numbers(stored)
                assert isinstance(mapped, np.memmap)
                np.testing.assert_array_equal(mapped, array)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_single_arrays_of_every_version(tmp_path: Path, version: tuple[int, int]) -> None:
    path = tmp_path / "images.npy"
    for array in (BYTES, np.asfortranarray(BYTES)):
        with path.open("wb") as file:
            np.lib.format.write_array(file, array, version)
        stored = locate_npy(path)
        assert (stored.shape, stored.dtype, str(stored)) == (array.shape, array.dtype, str(path))
        np.testing.assert_array_equal(map_numbers(stored), array)


@pytest.mark.parametrize("ending", [b"\0", b""])
def test_single_arrays_of_another_length_cost_a_sentence(tmp_path: Path, ending: bytes) -> None:
    path = tmp_path / "images.npy"
    np.save(path, BYTES)
    path.write_bytes(path.read_bytes() + ending if ending else path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"images\.npy says that it is uint8 of shape \(6, 5, 4\), and is not as long"):
        locate_npy(path)


def test_what_is_not_there_costs_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(FileNotFoundError, match=r"data\.npy does not exist, and a \.npy file was needed: check the name"):
        locate_npy(tmp_path / "data.npy")
    with pytest.raises(FileNotFoundError, match=r"data\.npz does not exist, and a \.npz file was needed: check the name"):
        open_archive(tmp_path / "data.npz")
    with pytest.raises(ValueError, match=r"cannot be read \(Is a directory\), and a \.npz file was needed: fetch or save it"):
        open_archive(tmp_path / "folder.npz")


def test_objects_cost_a_sentence(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", images=np.array([["cat"], ["dog", "ship"]], dtype=object))
    require_sentence_numpy_files(tmp_path / "data.npz", "images in .* holds Python objects, which could run anything")


def build_npy(shape: tuple[int, ...], content: bytes, dtype: str = "|u1") -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue() + content


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("shape", [(6, 5, 3), (6, 5, 5), (2**20, 2**10, 2**10), (2**40, 2**40, 2**40), (-6, -5, 4)])
def test_a_header_that_lies_costs_a_sentence(tmp_path: Path, compression: int, shape: tuple[int, ...]) -> None:
    path = tmp_path / "data.npz"
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("images.npy", build_npy(shape, BYTES.tobytes()))
    require_sentence_numpy_files(path, "says that it is uint8 of shape .*, and is not as long; a whole array was needed")


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_table_of_contents_that_lies_as_well_costs_a_sentence(tmp_path: Path, compression: int) -> None:
    path = tmp_path / "data.npz"
    header = build_npy((2**10, 2**10, 2**10), b"")
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("images.npy", header + BYTES.tobytes())
    content = bytearray(path.read_bytes())
    entry = content.index(b"PK\1\2")  # of the central directory, in which the size stands 24 bytes further
    content[entry + 24 : entry + 28] = struct.pack("<I", len(header) + 2**30)
    path.write_bytes(content)
    tracemalloc.start()
    require_sentence_numpy_files(path, "and is not as long; a whole array was needed")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**22


def test_uncommon_compression_costs_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("images.npy", build_npy(BYTES.shape, BYTES.tobytes()))
    require_sentence_numpy_files(path, "compressed in a way that NumPy does not have")


def test_an_archive_of_other_things_costs_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, images=BYTES)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("labels.csv", "0,1,2,0,1,2")
    with (
        open_archive(path) as archive,
        pytest.raises(ValueError, match=r"holds labels\.csv, and nothing but arrays was needed"),
    ):
        list_arrays(path, archive)


def test_a_pickle_is_not_an_array(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        archive.writestr("images.npy", pickle.dumps(BYTES))
    require_sentence_numpy_files(tmp_path / "data.npz", "and the array images was needed")
    (tmp_path / "data.npy").write_bytes(pickle.dumps(BYTES))
    with pytest.raises(ValueError, match=r"data\.npy cannot be read \(.*\), and a \.npy file was needed"):
        locate_npy(tmp_path / "data.npy")


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_header_is_read_and_no_more(version: tuple[int, int], order: str) -> None:
    array = np.asarray(np.arange(6, dtype=np.int16).reshape(2, 3), order=order)
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version)
    file.seek(0)
    assert read_npy_header(file) == ((2, 3), order == "F", np.dtype(np.int16))
    assert file.read() == array.tobytes(order="A")


def test_what_is_no_array_is_an_error() -> None:
    with pytest.raises(ValueError, match="magic"):
        read_npy_header(io.BytesIO(b"nothing of the kind"))
