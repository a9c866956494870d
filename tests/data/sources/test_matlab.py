"""MATLAB files as scipy writes them, as the format's description has them, and damaged in many ways."""

import io
import random
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io

from vitrine.data.sources import matlab
from vitrine.data.sources.matlab import load_mat

RANDOM = np.random.default_rng(0)


def write_mat(path: Path, variables: dict[str, Any], **options: Any) -> Path:
    scipy.io.savemat(path, variables, **options)
    return path


def build_structures(rows: list[dict[str, Any]]) -> np.ndarray:
    """An array of structures (N, 1), as MATLAB has them and scipy writes them."""
    structures = np.zeros((len(rows), 1), dtype=[(field, object) for field in rows[0]])
    for index, row in enumerate(rows):
        structures[index, 0] = tuple(row.values())
    return structures


def encode(variables: dict[str, Any], **options: Any) -> bytes:
    file = io.BytesIO()
    scipy.io.savemat(file, variables, **options)
    return file.getvalue()


def element(kind: int, data: bytes, order: str = "<") -> bytes:
    return struct.pack(f"{order}II", kind, len(data)) + data + bytes(-len(data) % 8)


def matrix(array_class: int, shape: tuple[int, ...], name: bytes, *parts: bytes, order: str = "<") -> bytes:
    head = element(6, struct.pack(f"{order}II", array_class, 0), order)
    head += element(5, struct.pack(f"{order}{len(shape)}i", *shape), order) + element(1, name, order)
    return element(14, head + b"".join(parts), order)


def mat_file(*variables: bytes, order: str = "<") -> bytes:
    header = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack(f"{order}H", 0x0100) + (b"IM" if order == "<" else b"MI")
    return header + b"".join(variables)


@pytest.mark.parametrize("is_compressed", [False, True])
@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8"])
def test_numbers_are_those_that_scipy_wrote(dtype: str, is_compressed: bool, tmp_path: Path) -> None:
    wide = RANDOM.integers(0, 100, (3, 5)).astype(dtype)
    path = write_mat(tmp_path / "a.mat", {"wide": wide, "one": wide[:1, :1], "none": wide[:0]}, do_compression=is_compressed)
    found = load_mat(path, "none", "wide", "one")
    for name, value in {"wide": wide, "one": wide[:1, :1], "none": wide[:0]}.items():
        np.testing.assert_array_equal(found[name], value)
    assert set(load_mat(path, "one")) == {"one"}


@pytest.mark.parametrize("is_compressed", [False, True])
def test_structures_are_those_that_scipy_wrote(is_compressed: bool, tmp_path: Path) -> None:
    rows = [{"id": np.uint16(index), "words": f"größe {index}", "children": np.arange(index)} for index in range(4)]
    path = write_mat(tmp_path / "a.mat", {"synsets": build_structures(rows)}, do_compression=is_compressed)
    found = load_mat(path, "synsets")["synsets"]
    assert isinstance(found, list)
    assert [row["words"] for row in found] == [row["words"] for row in rows]
    assert [row["id"].tolist() for row in found] == [[[index]] for index in range(4)]
    assert [row["children"].size for row in found] == [0, 1, 2, 3]


def test_what_is_stored_with_fewer_bits_or_in_the_other_order_of_bytes_is_read() -> None:
    """A double may be stored as bytes, and a big-endian machine says MI: both are in the format's description."""
    for order in "<>":
        small = struct.pack(f"{order}I", 2 << 16 | 2) + b"\x05\x07\0\0"  # two bytes in the small format
        text = element(17, "né".encode("utf-16-le" if order == "<" else "utf-16-be"), order)
        content = mat_file(
            matrix(6, (1, 2), b"a", small, order=order), matrix(4, (1, 2), b"text", text, order=order), order=order
        )
        found = matlab.read_variables(content, ("a", "text"))
        np.testing.assert_array_equal(found["a"], [[5, 7]])
        assert found["text"] == "né"


def test_what_follows_compressed_data_is_not_aligned() -> None:
    packed = zlib.compress(matrix(9, (1, 1), b"a", element(2, b"\x05")))
    assert len(packed) % 8
    content = mat_file(struct.pack("<II", 15, len(packed)) + packed, matrix(9, (1, 1), b"b", element(2, b"\x06")))
    found = matlab.read_variables(content, ("a", "b"))
    assert [found[name].tolist() for name in "ab"] == [[[5]], [[6]]]


def test_what_is_not_numbers_text_or_structures_is_none(tmp_path: Path) -> None:
    cells = np.array([[1, "two"]], dtype=object)
    inner = build_structures([{"deep": build_structures([{"deeper": 1}])}])
    path = write_mat(tmp_path / "a.mat", {"cells": cells, "complex": np.array([1j]), "inner": inner, "lines": ["ab", "cd"]})
    assert load_mat(path, "cells", "complex", "inner", "lines") == {
        "cells": None,
        "complex": None,
        "inner": [{"deep": None}],
        "lines": None,
    }


def test_cells_in_cells_do_not_end_the_process(tmp_path: Path) -> None:
    """scipy follows them as deep as they are, and the stack overflows."""
    start = element(6, struct.pack("<II", 1, 0)) + element(5, struct.pack("<ii", 1, 1))
    size, parts = 0, []
    for depth in reversed(range(100_000)):
        name = element(1, b"labels" if depth == 0 else b"")
        size += len(start) + len(name)
        parts.append(struct.pack("<II", 14, size) + start + name)
        size += 8
    (tmp_path / "a.mat").write_bytes(mat_file(b"".join(reversed(parts))))
    assert load_mat(tmp_path / "a.mat", "labels") == {"labels": None}


@pytest.mark.parametrize("is_compressed", [False, True])
def test_damage_costs_a_sentence(is_compressed: bool, tmp_path: Path) -> None:
    rows = [{"id": index, "words": f"word {index}"} for index in range(3)]
    variables = {"labels": np.arange(40, dtype=np.uint8), "synsets": build_structures(rows)}
    whole, path = encode(variables, do_compression=is_compressed), tmp_path / "a.mat"
    chance = random.Random(0)
    refusals = []
    for _ in range(300):
        content = bytearray(whole)
        start = chance.randrange(120, len(content))
        content[start : start + 4] = chance.choice([b"", b"\0\0\0\0", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x0e\0\0\0"])
        path.write_bytes(content[: chance.choice([None, None, chance.randrange(len(content))])])
        try:
            load_mat(path, "labels", "synsets")
        except ValueError as error:
            refusals.append(str(error))
    assert len(refusals) > 200
    assert all(refusal.startswith(f"{path} ") for refusal in refusals)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "its header is not that of versions 5 to 7"),
        (b"\0" * 200, "its header is not that of versions 5 to 7"),
        (encode({"labels": np.arange(3)}, format="4"), "its header is not that of versions 5 to 7"),
        (mat_file(element(9, bytes(8))), "it has data of type 9 where an array"),
        (mat_file(matrix(6, (1, 2), b"labels", element(8, bytes(8)))), "it has data of type 8 where a number"),
        (mat_file(matrix(6, (1, -1), b"labels", element(9, bytes(8)))), r"an array has 2 flags and the shape \(1, -1\)"),
        (mat_file(matrix(6, (2, 3), b"labels", element(9, bytes(8)))), "cannot reshape array of size 1"),
        (mat_file(*[matrix(6, (1, 1), b"labels", element(9, bytes(8)))] * 2), "it has two variables labels"),
        (mat_file(struct.pack("<II", 15, 4) + b"none"), "Error -3 while decompressing data: incorrect header check"),
        (
            mat_file(matrix(2, (9, 9), b"labels", element(5, b"\2\0\0\0"), element(1, b"a\0b\0"))),
            "it has 0 values for structures",
        ),
        (
            mat_file(matrix(2, (1, 1), b"labels", element(5, bytes(4)), element(1, b"a\0"))),
            ".*field names",
        ),
        (mat_file(matrix(4, (1, 2), b"labels", element(16, b"\xff\xff"))), "'utf-8' codec can't decode byte 0xff"),
    ],
)
def test_each_kind_of_damage_has_its_words(content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "a.mat"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"a\.mat is not a complete MATLAB file \({reason}.*\)"):
        load_mat(path, "labels")


def test_a_bomb_and_a_file_without_end_cost_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matlab, "MAX_BYTES", 10_000)
    path = write_mat(tmp_path / "a.mat", {"labels": np.zeros(20_000, np.uint8)}, do_compression=True)
    with pytest.raises(ValueError, match="more than 10000 bytes"):
        load_mat(path, "labels")
    write_mat(path, {"labels": np.zeros(20_000, np.uint8)})
    with pytest.raises(ValueError, match="it has more than 10000 bytes"):
        load_mat(path, "labels")


@pytest.mark.parametrize("content", [b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\0\2IM", b"\x89HDF\r\n\x1a\n"])
def test_hdf5_is_refused_with_a_way_out(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.mat").write_bytes(content.ljust(600, b"\0"))
    with pytest.raises(ValueError, match=r"a\.mat is a MATLAB 7\.3 file \(HDF5\).*-v7"):
        load_mat(tmp_path / "a.mat", "labels")


def test_a_variable_that_is_not_there_costs_a_sentence(tmp_path: Path) -> None:
    path = write_mat(tmp_path / "a.mat", {"other": np.arange(3)})
    with pytest.raises(ValueError, match=r"a\.mat has no variable labels"):
        load_mat(path, "labels", "other")
    with pytest.raises(FileNotFoundError, match=r"b\.mat does not exist"):
        load_mat(tmp_path / "b.mat", "labels")
