"""Weights files are detected by their content and read bit for bit; bad files are errors of one line."""

import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from vitrine.formats.tensor_files import NUMPY_DTYPES, open_tensors

SAMPLE = {"a.weight": torch.randn(3, 4), "b": torch.randn(()), "c/kernel": torch.randn(2, 1, 3)}
FLOATS = [torch.float16, torch.float32, torch.float64, torch.bfloat16]
LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 346284714\n"


def as_array(tensor: Tensor) -> Any:
    """Return an array as JAX programs save it: bfloat16 as two untyped bytes."""
    return tensor.view(torch.int16).numpy().view("V2") if tensor.dtype == torch.bfloat16 else tensor.numpy()


def write_npz(path: Path, tensors: dict[str, Tensor], save: Callable[..., None] = np.savez) -> None:
    with path.open("wb") as file:  # given a path, NumPy would append its ending
        save(file, **{name: as_array(tensor) for name, tensor in tensors.items()})


WRITERS: dict[str, Callable[[Path, dict[str, Tensor]], None]] = {
    "safetensors": lambda path, tensors: save_file(tensors, path),
    "npz": write_npz,
    "compressed npz": lambda path, tensors: write_npz(path, tensors, np.savez_compressed),
    "pth": lambda path, tensors: torch.save(tensors, path),
    "legacy pth": lambda path, tensors: torch.save(tensors, path, _use_new_zipfile_serialization=False),
}
every_kind = pytest.mark.parametrize("kind", WRITERS)


def assert_holds(path: Path, expected: dict[str, Tensor]) -> None:
    with open_tensors(path) as file:
        assert file.tensors.keys() == expected.keys()
        for name, tensor in file.tensors.items():
            assert (tensor.shape, tensor.dtype) == (tuple(expected[name].shape), str(expected[name].dtype))
            assert tensor.is_floating_point
            torch.testing.assert_close(tensor.read(), expected[name], rtol=0, atol=0)


def read_all(path: Path) -> dict[str, Tensor]:
    with open_tensors(path) as file:
        return {name: tensor.read() for name, tensor in file.tensors.items()}


def assert_fails(path: Path, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        read_all(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@every_kind
def test_a_file_is_detected_by_its_content(kind: str, tmp_path: Path) -> None:
    for name in ("weights", "weights.bin", "weights.npz", "weights.safetensors"):
        WRITERS[kind](tmp_path / name, SAMPLE)
        assert_holds(tmp_path / name, SAMPLE)


@every_kind
def test_every_dtype_keeps_its_bits(kind: str, tmp_path: Path) -> None:
    tensors = {str(dtype): torch.randn(5, 3).to(dtype) for dtype in FLOATS}
    empty = {f"empty {dtype}": torch.zeros(2, 0, dtype=dtype) for dtype in FLOATS}
    WRITERS[kind](tmp_path / "w", tensors | empty)
    assert_holds(tmp_path / "w", tensors | empty)


@pytest.mark.parametrize("dtype", ["<f2", ">f2", ">f4", ">f8", "V2"])
def test_any_byte_order_and_axis_order(dtype: str, tmp_path: Path) -> None:
    expected = torch.randn(2, 3, 4).to(NUMPY_DTYPES[dtype[-2:]])
    array = as_array(expected).astype(dtype)
    np.savez(tmp_path / "w.npz", c=array, fortran=np.asfortranarray(array))
    assert_holds(tmp_path / "w.npz", {"c": expected, "fortran": expected})


@every_kind
def test_integers_are_not_floating_point(kind: str, tmp_path: Path) -> None:
    WRITERS[kind](tmp_path / "w", {"step": torch.arange(3)})
    with open_tensors(tmp_path / "w") as file:
        assert not file.tensors["step"].is_floating_point
        assert file.tensors["step"].dtype in ("I64", "i8", "int64")


@pytest.mark.parametrize("wrapper", ["state_dict", "model", "teacher"])
def test_state_dict_within_a_training_checkpoint(wrapper: str, tmp_path: Path) -> None:
    torch.save({"epoch": 3, "optimizer": {"state": [1]}, wrapper: SAMPLE}, tmp_path / "w.pth")
    assert_holds(tmp_path / "w.pth", SAMPLE)


def test_views_and_parameters_are_read_as_contiguous_tensors(tmp_path: Path) -> None:
    whole = torch.randn(4, 6)
    torch.save({"turned": whole.T, "row": whole[1], "parameter": torch.nn.Parameter(whole)}, tmp_path / "w.pth")
    assert_holds(tmp_path / "w.pth", {"turned": whole.T, "row": whole[1], "parameter": whole})
    assert all(tensor.is_contiguous() and not tensor.requires_grad for tensor in read_all(tmp_path / "w.pth").values())


def test_safetensors_metadata(tmp_path: Path) -> None:
    save_file(SAMPLE, tmp_path / "a", metadata={"format": "pt"})
    save_file(SAMPLE, tmp_path / "b")
    with open_tensors(tmp_path / "a") as with_metadata, open_tensors(tmp_path / "b") as without:
        assert (with_metadata.metadata, without.metadata) == ({"format": "pt"}, {})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"<!DOCTYPE html>", "<!DOCTYP"),
        (LFS_POINTER, "b'version '.*Git LFS"),
        (b"PK\x03\x04 and no more", "zip archive"),
        (b"PK\x05\x06" + bytes(18), "torch weights"),
        (b"\xff" * 8 + b"{}", "safetensors: .*header too large"),
        (pickle.dumps({"w": object()}, protocol=2), "torch weights"),
    ],
)
def test_files_that_are_not_weights(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(content)
    assert_fails(tmp_path / "w", message)


@every_kind
def test_a_truncated_file(kind: str, tmp_path: Path) -> None:
    WRITERS[kind](tmp_path / "w", {"w": torch.randn(100)})
    (tmp_path / "w").write_bytes((tmp_path / "w").read_bytes()[:300])
    assert_fails(tmp_path / "w", "cannot be read as")


@pytest.mark.parametrize("kind", ["npz", "compressed npz"])
def test_damaged_values_in_npz(kind: str, tmp_path: Path) -> None:
    """The checksum is changed here: changed values could break the compression before it is compared."""
    WRITERS[kind](tmp_path / "w", {"w": torch.randn(100)})
    with zipfile.ZipFile(tmp_path / "w") as archive:
        checksum = archive.getinfo("w.npy").CRC.to_bytes(4, "little")
    (tmp_path / "w").write_bytes((tmp_path / "w").read_bytes().replace(checksum, b"\0\0\0\0"))
    assert_fails(tmp_path / "w", "Bad CRC-32")


def test_npz_whose_header_claims_too_much(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (1000, 1000)})
    with zipfile.ZipFile(tmp_path / "w.npz", "w") as archive:
        archive.writestr("w.npy", header.getvalue())
    assert_fails(tmp_path / "w.npz", r"w\.npy .*4000000 bytes")


def test_an_array_of_objects_is_not_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", w=np.array([{"a": 1}], dtype=object))
    assert_fails(tmp_path / "w.npz", "npz")


@pytest.mark.parametrize("is_zip", [True, False])
def test_pickled_code_does_not_run(is_zip: bool, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "sprung"),)

    torch.save({"w": torch.ones(2), "trap": Trap()}, tmp_path / "w.pth", _use_new_zipfile_serialization=is_zip)
    assert_fails(tmp_path / "w.pth", "only tensors")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ([torch.ones(2)], "none"),
        ({}, "none"),
        ({"w": torch.ones(2), "epoch": 3, 4: torch.ones(2)}, "epoch, 4"),
        ({"model": {"w": torch.ones(2).to_sparse()}}, "w"),
        ({"w": torch.ones(2, device="meta")}, "w"),
        ({f"n{index}": index for index in range(11)}, "n7 and 3 more"),
    ],
)
def test_content_that_is_not_a_state_dict(content: object, found: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "w.pth")
    assert_fails(tmp_path / "w.pth", f"named tensors.*{found}.*state_dict")


@every_kind
def test_weights_larger_than_memory(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    WRITERS[kind](tmp_path / "w", {"w": torch.zeros(1000, 1000, dtype=torch.float16)})
    monkeypatch.setattr(os, "sysconf", lambda name: 1000)
    monkeypatch.delattr(torch, "load")  # nothing is loaded before the error
    size = "4" if kind == "compressed npz" else "2"  # as float32, which they become; or the size of the file
    assert_fails(tmp_path / "w", f"{size} MB .* 1 MB")


def test_a_sparse_file_larger_than_memory(tmp_path: Path) -> None:
    num_bytes = 2 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    header = json.dumps({"w": {"dtype": "F32", "shape": [num_bytes // 4], "data_offsets": [0, num_bytes]}}).encode()
    with (tmp_path / "w").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + num_bytes)
    assert_fails(tmp_path / "w", "memory")


def write_shards(folder: Path, shard_of: dict[str, object]) -> Path:
    save_file({"a": torch.ones(2)}, folder / "one.safetensors")
    torch.save({"b": torch.zeros(3), "c": torch.ones(1)}, folder / "two.bin")
    (folder / "model.index.json").write_text(json.dumps({"weight_map": shard_of}))
    return folder / "model.index.json"


def test_shards_are_one_file(tmp_path: Path) -> None:
    index = write_shards(tmp_path, {"a": "one.safetensors", "b": "two.bin", "c": "two.bin"})
    assert_holds(index, {"a": torch.ones(2), "b": torch.zeros(3), "c": torch.ones(1)})


@pytest.mark.parametrize(
    ("shard_of", "message"),
    [
        ({}, "weight_map"),
        ({"a": "../one.safetensors"}, "points to '../one.safetensors'"),
        ({"a": "."}, "points to '.'"),
        ({"a": "/etc/passwd"}, "points to '/etc/passwd'"),
        ({"a": "one.safetensors", "d": "one.safetensors"}, r"disagree on d\."),
        ({"b": "two.bin"}, r"two\.bin .* disagree on c\."),
        ({"b": "one.safetensors"}, r"one\.safetensors .* disagree on a, b\."),
    ],
)
def test_a_wrong_index(shard_of: dict[str, object], message: str, tmp_path: Path) -> None:
    index = write_shards(tmp_path, shard_of)
    with pytest.raises(ValueError, match=message):
        read_all(index)


@pytest.mark.parametrize("shard", ["three.bin", "..", "", 3, None, "nul\0"])
def test_a_missing_shard_is_named(shard: object, tmp_path: Path) -> None:
    index = write_shards(tmp_path, {"a": shard})
    with pytest.raises(FileNotFoundError, match=r"names the shard .* missing"):
        read_all(index)


@pytest.mark.parametrize("name", ["weights.pth", "weights.npz"])
def test_changed_values_in_an_archive_are_noticed(name: str, tmp_path: Path) -> None:
    """torch itself does not compare the checksums of its archives."""
    path, values = tmp_path / name, torch.arange(1000.0)
    if name == "weights.npz":
        np.savez(path, weight=values.numpy())
    else:
        torch.save({"weight": values}, path)
    content = path.read_bytes()
    start = content.index(values.numpy().tobytes())
    path.write_bytes(content[: start + 400] + bytes([content[start + 400] ^ 1]) + content[start + 401 :])
    with pytest.raises(ValueError, match=r"checksum|CRC"), open_tensors(path) as file:
        file.tensors["weight"].read()


def test_torch_weights_saved_without_checksums_are_read(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    torch.save({"weight": torch.arange(3.0)}, tmp_path / "weights.pth")
    torch.serialization.set_crc32_options(True)
    with open_tensors(tmp_path / "weights.pth") as file:
        assert file.tensors["weight"].read().tolist() == [0, 1, 2]
