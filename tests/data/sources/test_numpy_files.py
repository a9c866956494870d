"""NumPy's files against NumPy's own writers, and archives that are not what they say."""

import io
import pickle
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from vitrine.data.sources.numpy_files import list_arrays, locate, locate_npy, map_numbers, open_archive, read_numbers

RANDOM = np.random.default_rng(0)
BYTES = RANDOM.integers(0, 256, (6, 5, 4), dtype=np.uint8)
ARRAYS = {
    "bytes": BYTES,
    "columns_first": np.asfortranarray(BYTES),
    "doubles": RANDOM.normal(size=(3, 2)),
    "foreign_order": np.arange(5, dtype=">i4"),
    "text": np.array(["cat", "größer"]),
    "scalar": np.array(7, dtype=np.int16),
    "nothing": np.zeros((0, 3), dtype=np.float32),
}


def read_one(path: Path, name: str) -> np.ndarray:
    with open_archive(path) as archive:
        return read_numbers(locate(path, archive, name), archive)


def require_sentence(path: Path, sentence: str, name: str = "images") -> None:
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
    require_sentence(tmp_path / "data.npz", "images in .* holds Python objects, which could run anything")


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
    require_sentence(path, "says that it is uint8 of shape .*, and is not as long; a whole array was needed")


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
    require_sentence(path, "and is not as long; a whole array was needed")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**22


def test_uncommon_compression_costs_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("images.npy", build_npy(BYTES.shape, BYTES.tobytes()))
    require_sentence(path, "compressed in a way that NumPy does not have")


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
    require_sentence(tmp_path / "data.npz", "and the array images was needed")
    (tmp_path / "data.npy").write_bytes(pickle.dumps(BYTES))
    with pytest.raises(ValueError, match=r"data\.npy cannot be read \(.*\), and a \.npy file was needed"):
        locate_npy(tmp_path / "data.npy")
