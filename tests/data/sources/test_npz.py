"""Images and labels in NumPy files, written by NumPy itself, damaged, or with wrong headers."""

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

from tests.clock import wait_for_tick
from vitrine.core import checksums
from vitrine.data.sources.npz import (
    FORMAT,
    list_arrays,
    list_splits,
    locate_member,
    locate_npy,
    map_array,
    open_archive,
    open_npz,
    read_array,
    read_npy_header,
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


def check_error(path: Path, match: str, split: str | None = None) -> None:
    with pytest.raises(ValueError, match=match) as caught:
        FORMAT.open(path, split)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_file_without_splits(tmp_path: Path) -> None:
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
def test_position_of_the_channels(tmp_path: Path, write: object, order: str) -> None:
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


def test_npy_contains_images_without_labels(tmp_path: Path) -> None:
    path = tmp_path / "images.npy"
    np.save(path, GREY)
    assert FORMAT.matches(path)
    assert FORMAT.list_splits(path) == ()
    source = FORMAT.open(path, None)
    assert isinstance(source.pixels, np.memmap)
    np.testing.assert_array_equal(source.pixels, GREY[..., None])
    assert (len(source), source.labels[0], source.class_names, source.name(2)) == (6, (), (), "images.npy[2]")
    whole = path.read_bytes()
    for content in (whole + b"\0", whole[:-1]):
        path.write_bytes(content)
        check_error(path, r"uint8 of shape \(6, 5, 4\) .*bytes")
    np.save(path, COLOURS[0])
    check_error(path, r"shape \(5, 4, 3\)")


def test_no_labels(tmp_path: Path) -> None:
    source = FORMAT.open(save(tmp_path, images=GREY), None)
    assert (len(source), source.labels[0], source.class_names) == (6, (), ())
    path = save(tmp_path, x_train=GREY, y_train=LABELS, x_test=GREY)
    test = FORMAT.open(path, "test")
    assert (len(test), test.labels[0], test.class_names) == (6, (), ("0", "1", "2"))


def test_other_paths_are_not_recognised(tmp_path: Path) -> None:
    (tmp_path / "folder.npz").mkdir()
    for name in ("folder.npz", "nothing.npz", "data.zip"):
        assert not FORMAT.matches(tmp_path / name)
    for name in ("nothing.npz", "nothing.npy"):
        with pytest.raises(FileNotFoundError, match=f"{name} does not exist"):
            FORMAT.open(tmp_path / name, None)
    check_error(tmp_path / "folder.npz", "Is a directory")


OBJECTS = np.array([["cat"], ["dog", "ship"]], dtype=object)
WRONG_ARRAYS = {
    "floats": ({"images": GREY / 255}, r"images in .* float64.*np\.rint\(images \* 255\)"),
    "wide numbers": ({"images": GREY.astype(np.int64)}, "int64"),
    "two channels": ({"images": COLOURS[..., :2]}, r"shape \(6, 5, 4, 2\)"),
    "flat images": ({"images": GREY.reshape(6, 20)}, r"shape \(6, 20\)"),
    "no images": ({"images": GREY[:0]}, r"shape \(0, 5, 4\)"),
    "objects": ({"images": OBJECTS}, "images in .* Python objects"),
    "unknown names": ({"a": GREY, "b": LABELS}, "no images among the arrays a, b"),
    "unknown labels": ({"images": GREY, "classes": LABELS}, "no labels for images, but the arrays classes"),
    "two of images": ({"images": GREY, "x": GREY}, "arrays images, x"),
    "two of labels": ({"images": GREY, "y": LABELS, "targets": LABELS}, "arrays y, targets"),
    "both layouts": ({"images": GREY, "x_train": GREY}, "with and without splits"),
    "too few labels": ({"images": GREY, "labels": LABELS[:5]}, "6 images but 5 labels"),
    "float labels": ({"images": GREY, "labels": LABELS / 2}, r"labels in .* float64 and shape \(6,\)"),
    "negative labels": ({"images": GREY, "labels": LABELS - 1}, "from -1 to 1; expected 0 to 999999"),
    "huge labels": ({"images": GREY, "labels": LABELS.astype(np.uint64) + 2**63}, "from 9223372036854775808"),
    "a table of counts": ({"images": GREY, "labels": np.stack([LABELS, LABELS], 1)}, "from 0 to 2; expected 0 to 1"),
    "too few names": (
        {"images": GREY, "labels": LABELS, "class_names": np.array(["cat", "dog"])},
        "2 class_names for 3 classes",
    ),
    "object names": (
        {"images": GREY, "labels": LABELS, "class_names": np.array(["a", "b", "c"], dtype=object)},
        "class_names in .* Python objects",
    ),
    "names as numbers": (
        {"images": GREY, "labels": LABELS, "class_names": LABELS},
        r"class_names in .* int64 and shape \(6,\)",
    ),
    "half a letter": (
        {"images": GREY, "labels": LABELS, "class_names": np.array(["a", "b", "\ud800"])},
        "surrogates not allowed",
    ),
}


@pytest.mark.parametrize("case", WRONG_ARRAYS)
def test_wrong_arrays_are_errors(tmp_path: Path, case: str) -> None:
    arrays, match = WRONG_ARRAYS[case]
    check_error(save(tmp_path, **arrays), match)


def test_labels_of_different_widths_are_errors(tmp_path: Path) -> None:
    table = np.eye(3, dtype=np.int64)[LABELS]
    path = save(tmp_path, x_train=GREY, y_train=table, x_test=GREY, y_test=LABELS)
    check_error(path, "y_train, y_test of different widths", "train")


@settings(max_examples=150, deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), value=st.integers(0, 255), is_cut=st.booleans())
@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_damaged_bytes_give_an_error_or_data(
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
        assert str(path) in str(error)  # noqa: PT017 (no error if the byte is unchanged or a pixel)
    else:
        assert (len(source), source.pixels.shape) == (6, (6, 5, 4, 1))


ARRAYS = {
    "bytes": GREY,
    "fortran": np.asfortranarray(GREY),
    "doubles": RANDOM.normal(size=(3, 2)),
    "big_endian": np.arange(5, dtype=">i4"),
    "text": np.array(["cat", "größer"]),
    "scalar": np.array(7, dtype=np.int16),
    "empty": np.zeros((0, 3), dtype=np.float32),
}


def read_one(path: Path, name: str) -> np.ndarray:
    with open_archive(path) as archive:
        return read_array(locate_member(path, archive, name), archive)


def check_array_error(path: Path, match: str, name: str = "images") -> None:
    with pytest.raises(ValueError, match=match) as caught:
        read_one(path, name)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_archives_written_by_numpy(tmp_path: Path, write: object) -> None:
    path = tmp_path / "data.npz"
    write(path, **ARRAYS)
    with open_archive(path) as archive:
        assert list_arrays(path, archive) == set(ARRAYS)
        for name, array in ARRAYS.items():
            stored = locate_member(path, archive, name)
            assert (stored.shape, stored.dtype, str(stored)) == (array.shape, array.dtype, f"{name} in {path}")
            np.testing.assert_array_equal(read_array(stored, archive), array)
            assert (stored.start is None) == (write is np.savez_compressed)
            if stored.start is not None and array.size > 0:
                mapped = map_array(stored)
                assert isinstance(mapped, np.memmap)
                np.testing.assert_array_equal(mapped, array)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_files_of_every_version(tmp_path: Path, version: tuple[int, int]) -> None:
    path = tmp_path / "images.npy"
    for array in (GREY, np.asfortranarray(GREY)):
        with path.open("wb") as file:
            np.lib.format.write_array(file, array, version)
        stored = locate_npy(path)
        assert (stored.shape, stored.dtype, str(stored)) == (array.shape, array.dtype, str(path))
        np.testing.assert_array_equal(map_array(stored), array)


def build_npy(shape: tuple[int, ...], content: bytes, dtype: str = "|u1") -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue() + content


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("shape", [(6, 5, 3), (6, 5, 5), (2**20, 2**10, 2**10), (2**40, 2**40, 2**40), (-6, -5, 4)])
def test_header_with_a_wrong_shape_is_an_error(tmp_path: Path, compression: int, shape: tuple[int, ...]) -> None:
    path = tmp_path / "data.npz"
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("images.npy", build_npy(shape, GREY.tobytes()))
    check_array_error(path, "uint8 of shape .* by its header")


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_wrong_size_in_the_archive_takes_no_memory(tmp_path: Path, compression: int) -> None:
    path = tmp_path / "data.npz"
    header = build_npy((2**10, 2**10, 2**10), b"")
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("images.npy", header + GREY.tobytes())
    content = bytearray(path.read_bytes())
    entry = content.index(b"PK\1\2")  # the central directory; the size is 24 bytes further
    content[entry + 24 : entry + 28] = struct.pack("<I", len(header) + 2**30)
    path.write_bytes(content)
    tracemalloc.start()
    check_array_error(path, "by its header")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**22


def test_unknown_compression_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("images.npy", build_npy(GREY.shape, GREY.tobytes()))
    check_array_error(path, "compression")


def test_other_files_in_the_archive_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, images=GREY)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("labels.csv", "0,1,2,0,1,2")
    with open_archive(path) as archive, pytest.raises(ValueError, match=r"labels\.csv"):
        list_arrays(path, archive)


def test_pickles_are_not_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        archive.writestr("images.npy", pickle.dumps(GREY))
    check_array_error(tmp_path / "data.npz", "expected the array images")
    (tmp_path / "data.npy").write_bytes(pickle.dumps(GREY))
    with pytest.raises(ValueError, match=r"data\.npy cannot be read"):
        locate_npy(tmp_path / "data.npy")


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_header_is_read_and_nothing_else(version: tuple[int, int], order: str) -> None:
    array = np.asarray(np.arange(6, dtype=np.int16).reshape(2, 3), order=order)
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version)
    file.seek(0)
    assert read_npy_header(file) == ((2, 3), order == "F", np.dtype(np.int16))
    assert file.read() == array.tobytes(order="A")


def test_changed_pixels_are_noticed_also_after_the_first_use(tmp_path: Path) -> None:
    """They are memory-mapped, where nothing compares the checksum of the archive."""
    path = tmp_path / "data.npz"
    images = np.random.default_rng(0).integers(0, 256, (9, 64, 64), dtype=np.uint8)  # more than zipfile reads ahead
    np.savez(path, images=images, labels=np.zeros(9, np.int64))
    assert len(open_npz(path, None)) == 9
    content = bytearray(path.read_bytes())
    content[content.index(images.tobytes()) + 30_000] ^= 1
    wait_for_tick(path)
    path.write_bytes(content)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"checksum|CRC"):
            open_npz(path, None)


def test_an_archive_of_very_many_members_is_refused_by_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, **{f"array{number}": np.zeros(1, np.uint8) for number in range(11)})
    monkeypatch.setattr(checksums, "MAX_MEMBERS", 10)
    monkeypatch.setattr(zipfile.ZipFile, "open", None)  # nothing may be read
    with pytest.raises(ValueError, match="11 members"):
        list_splits(path)


def test_an_array_renamed_in_the_directory_alone_is_noticed(tmp_path: Path) -> None:
    """Its name would no longer be known, and it would be left out."""
    path = tmp_path / "data.npz"
    names = np.array(["ant", "bee"])
    np.savez_compressed(path, images=GREY, labels=np.zeros(len(GREY), np.int64), class_names=names)
    before, after = path.read_bytes().rsplit(b"class_names", 1)
    path.write_bytes(before + b"glass_names" + after)
    with pytest.raises(ValueError, match="glass_names"):
        open_npz(path, None)
