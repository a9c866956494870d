"""Files of tensors are told by their content, read bit for bit, and refused in one sentence."""

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

from vitrine.core.console import join_names
from vitrine.core.files import MAX_JSON_BYTES, parse_json, read_json
from vitrine.formats.tensor_files import NUMPY_DTYPES, open_tensors

SAMPLE = {"a.weight": torch.randn(3, 4), "b": torch.randn(()), "c/kernel": torch.randn(2, 1, 3)}
FLOATS = [torch.float16, torch.float32, torch.float64, torch.bfloat16]
LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 346284714\n"


def as_array(tensor: Tensor) -> Any:
    """As JAX's programs save it: bfloat16 as two bytes of nothing in particular."""
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
        for name, stored in file.tensors.items():
            assert (stored.shape, stored.dtype) == (tuple(expected[name].shape), str(expected[name].dtype))
            assert stored.is_floating_point
            torch.testing.assert_close(stored.read(), expected[name], rtol=0, atol=0)


def read_all(path: Path) -> dict[str, Tensor]:
    with open_tensors(path) as file:
        return {name: stored.read() for name, stored in file.tensors.items()}


def assert_refused(path: Path, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refusal:
        read_all(path)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


@every_kind
@pytest.mark.parametrize("name", ["weights", "weights.bin", "weights.npz", "weights.safetensors"])
def test_a_file_is_told_by_its_content(kind: str, name: str, tmp_path: Path) -> None:
    WRITERS[kind](tmp_path / name, SAMPLE)
    assert_holds(tmp_path / name, SAMPLE)


@every_kind
@pytest.mark.parametrize("dtype", FLOATS)
def test_every_kind_of_number_keeps_its_bits(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    tensors = {"w": torch.randn(5, 3).to(dtype), "none": torch.zeros(2, 0, dtype=dtype)}
    WRITERS[kind](tmp_path / "w", tensors)
    assert_holds(tmp_path / "w", tensors)


@pytest.mark.parametrize("dtype", ["<f2", ">f2", ">f4", ">f8", "V2"])
def test_any_order_of_bytes_and_axes(dtype: str, tmp_path: Path) -> None:
    expected = torch.randn(2, 3, 4).to(NUMPY_DTYPES[dtype[-2:]])
    array = as_array(expected).astype(dtype)
    np.savez(tmp_path / "w.npz", c=array, fortran=np.asfortranarray(array))
    assert_holds(tmp_path / "w.npz", {"c": expected, "fortran": expected})


@every_kind
def test_whole_numbers_are_no_weights(kind: str, tmp_path: Path) -> None:
    WRITERS[kind](tmp_path / "w", {"step": torch.arange(3)})
    with open_tensors(tmp_path / "w") as file:
        assert not file.tensors["step"].is_floating_point
        assert file.tensors["step"].dtype in ("I64", "i8", "int64")


@pytest.mark.parametrize("wrapper", ["state_dict", "model", "teacher"])
def test_the_state_dict_among_what_a_training_program_keeps(wrapper: str, tmp_path: Path) -> None:
    torch.save({"epoch": 3, "optimizer": {"state": [1]}, wrapper: SAMPLE}, tmp_path / "w.pth")
    assert_holds(tmp_path / "w.pth", SAMPLE)


def test_views_and_parameters_are_read_as_plain_tensors(tmp_path: Path) -> None:
    whole = torch.randn(4, 6)
    torch.save({"turned": whole.T, "row": whole[1], "parameter": torch.nn.Parameter(whole)}, tmp_path / "w.pth")
    assert_holds(tmp_path / "w.pth", {"turned": whole.T, "row": whole[1], "parameter": whole})
    assert all(tensor.is_contiguous() and not tensor.requires_grad for tensor in read_all(tmp_path / "w.pth").values())


def test_safetensors_carries_metadata(tmp_path: Path) -> None:
    save_file(SAMPLE, tmp_path / "a", metadata={"format": "pt"})
    save_file(SAMPLE, tmp_path / "b")
    with open_tensors(tmp_path / "a") as with_metadata, open_tensors(tmp_path / "b") as without:
        assert (with_metadata.metadata, without.metadata) == ({"format": "pt"}, {})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty: fetch or copy it again"),
        (b"<!DOCTYPE html>", r"holds no weights: it begins with b'<!DOCTYP'; needed is a safetensors, npz, pth or pt file"),
        (LFS_POINTER, r"holds no weights: it begins with b'version '.* a Git LFS pointer"),
        (b"PK\x03\x04 and no more", "cannot be read as a zip archive: File is not a zip file. Fetch or copy it again"),
        (b"PK\x05\x06" + bytes(18), "cannot be read as weights of torch"),
        (b"\xff" * 8 + b"{}", "cannot be read as safetensors: .*header too large"),
        (pickle.dumps({"w": object()}, protocol=2), "cannot be read as weights of torch .nothing but tensors is read"),
    ],
)
def test_what_holds_no_weights(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(content)
    assert_refused(tmp_path / "w", message)


@every_kind
def test_half_a_file(kind: str, tmp_path: Path) -> None:
    WRITERS[kind](tmp_path / "w", {"w": torch.randn(100)})
    (tmp_path / "w").write_bytes((tmp_path / "w").read_bytes()[:300])
    assert_refused(tmp_path / "w", "cannot be read as .* Fetch or copy it again")


@pytest.mark.parametrize("kind", ["npz", "compressed npz"])
def test_damaged_numbers_in_npz(kind: str, tmp_path: Path) -> None:
    """It is the checksum that is changed here: changed numbers could break the compression before it is compared."""
    WRITERS[kind](tmp_path / "w", {"w": torch.randn(100)})
    with zipfile.ZipFile(tmp_path / "w") as archive:
        checksum = archive.getinfo("w.npy").CRC.to_bytes(4, "little")
    (tmp_path / "w").write_bytes((tmp_path / "w").read_bytes().replace(checksum, b"\0\0\0\0"))
    assert_refused(tmp_path / "w", r"cannot be read as npz: Bad CRC-32 for file 'w\.npy'")


def test_npz_that_claims_more_than_it_holds(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (1000, 1000)})
    with zipfile.ZipFile(tmp_path / "w.npz", "w") as archive:
        archive.writestr("w.npy", header.getvalue())
    assert_refused(tmp_path / "w.npz", r"w\.npy should hold 4000000 bytes of numbers, and does not")


def test_an_array_of_objects_is_not_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", w=np.array([{"a": 1}], dtype=object))
    assert_refused(tmp_path / "w.npz", "cannot be read as npz")


@pytest.mark.parametrize("is_zip", [True, False])
def test_nothing_is_run_by_reading(is_zip: bool, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "sprung"),)

    torch.save({"w": torch.ones(2), "trap": Trap()}, tmp_path / "w.pth", _use_new_zipfile_serialization=is_zip)
    assert_refused(tmp_path / "w.pth", "cannot be read as weights of torch .nothing but tensors is read from such files")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ([torch.ones(2)], "none"),
        ({}, "none"),
        ({"w": torch.ones(2), "epoch": 3, 4: torch.ones(2)}, "epoch, 4 besides"),
        ({"model": {"w": torch.ones(2).to_sparse()}}, "w besides"),
        ({"w": torch.ones(2, device="meta")}, "w besides"),
        ({f"n{index}": index for index in range(11)}, "n0, n1, n2, n3, n4, n5, n6, n7 and 3 more besides"),
    ],
)
def test_what_is_no_state_dict(content: object, found: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "w.pth")
    assert_refused(tmp_path / "w.pth", f"must hold named tensors, and holds {found}: save the model's state_dict alone")


@every_kind
def test_more_than_the_memory_is_refused(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    WRITERS[kind](tmp_path / "w", {"w": torch.zeros(1000, 1000, dtype=torch.float16)})
    monkeypatch.setattr(os, "sysconf", lambda name: 1000)
    monkeypatch.delattr(torch, "load")  # nothing is loaded before the refusal
    size = "4" if kind == "compressed npz" else "2"  # as float32, which they become; or what the file has on the disk
    assert_refused(tmp_path / "w", rf"w holds {size} MB of weights, more than this machine's 1 MB\.")


def test_a_sparse_file_beyond_the_memory(tmp_path: Path) -> None:
    num_bytes = 2 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    header = json.dumps({"w": {"dtype": "F32", "shape": [num_bytes // 4], "data_offsets": [0, num_bytes]}}).encode()
    with (tmp_path / "w").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + num_bytes)
    assert_refused(tmp_path / "w", "more than this machine's")


def write_shards(folder: Path, places: dict[str, object]) -> Path:
    save_file({"a": torch.ones(2)}, folder / "one.safetensors")
    torch.save({"b": torch.zeros(3), "c": torch.ones(1)}, folder / "two.bin")
    (folder / "model.index.json").write_text(json.dumps({"weight_map": places}))
    return folder / "model.index.json"


def test_shards_are_one_file(tmp_path: Path) -> None:
    index = write_shards(tmp_path, {"a": "one.safetensors", "b": "two.bin", "c": "two.bin"})
    assert_holds(index, {"a": torch.ones(2), "b": torch.zeros(3), "c": torch.ones(1)})


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ({}, "has no weight_map, which says in which file each tensor is"),
        ({"a": "../one.safetensors"}, "points to '../one.safetensors'; shards must lie beside their index"),
        ({"a": "."}, "points to '.'; shards must lie beside their index"),
        ({"a": "/etc/passwd"}, "points to '/etc/passwd'; shards must lie beside their index"),
        ({"a": "one.safetensors", "d": "one.safetensors"}, r"model\.index\.json disagree on d\."),
        ({"b": "two.bin"}, r"two\.bin and its index model\.index\.json disagree on c\."),
        ({"b": "one.safetensors"}, r"one\.safetensors and its index model\.index\.json disagree on a, b\."),
    ],
)
def test_a_wrong_index(places: dict[str, object], message: str, tmp_path: Path) -> None:
    index = write_shards(tmp_path, places)
    with pytest.raises(ValueError, match=message):
        read_all(index)


@pytest.mark.parametrize("place", ["three.bin", "..", "", 3, None, "nul\0"])
def test_a_missing_shard_is_named(place: object, tmp_path: Path) -> None:
    index = write_shards(tmp_path, {"a": place})
    with pytest.raises(FileNotFoundError, match=r"names the shard .*, which is not beside it: fetch or copy it too\."):
        read_all(index)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"weights", r"is not JSON \(Expecting value: line 1 column 1 .char 0.\): fetch or copy it again"),
        (b"", "is not JSON"),
        (b'{"a": 1', "is not JSON"),
        (b"\xff\xfe\xfd{}", "is not JSON"),
        (b'{"a":' * 100_000, "is not JSON .maximum recursion depth exceeded"),
        (b'{"a":' + b"9" * 5000 + b"}", "is not JSON .Exceeds the limit"),
        (b"[1]", "must be an object of JSON, not a list"),
        (b"null", "must be an object of JSON, not a NoneType"),
    ],
)
def test_what_is_no_json(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ValueError, match=f"a.json {message}"):
        read_json(tmp_path / "a.json")
    with pytest.raises(ValueError, match=f"^here {message}"):
        parse_json(content, "here")


def test_json_of_any_length_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "a.json").open("wb") as sparse:
        sparse.truncate(MAX_JSON_BYTES + 1)
    with pytest.raises(ValueError, match="has 64 MB, far too much for what is read here"):
        read_json(tmp_path / "a.json")


def test_long_lists_are_cut() -> None:
    assert join_names(["a", "b"], limit=2) == "a, b"
    assert join_names(["a", "b", "c"], limit=1) == "a and 2 more"
