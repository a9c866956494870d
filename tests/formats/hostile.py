"""Hostile files: each function spoils something in a copy of the originals and returns the path to load."""

import hashlib
import io
import json
import os
import pickle
import shutil
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from tests.corruptions import join_safetensors, read_directory, rewrite_zip, split_safetensors
from tests.formats.originals import CONFIG, INDEX, SHARDS, find_source

BOMB_MIB = 1024
TERABYTE = 10**12
MARKER = "marker"


def put(name: str, content: bytes, folder: Path, *, hole_bytes: int = 0) -> Path:
    """Replace a file by these bytes and a hole, which reads as zeros and takes no space on disk."""
    (folder / name).write_bytes(content)
    os.truncate(folder / name, len(content) + hole_bytes)
    return folder / find_source(name)


def rewrite(path: Path, change: Callable[[str, bytes], tuple[str, bytes]]) -> Path:
    path.write_bytes(rewrite_zip(path.read_bytes(), change))
    return path


def replace_member(path: Path, ending: str, content: bytes) -> Path:
    return rewrite(path, lambda name, member: (name, content if name.endswith(ending) else member))


def edit_json(path: Path, **changes: Any) -> Path:
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **changes}))
    return path.parent


# Code to run.


@dataclass(frozen=True)
class Touch:
    """An object that runs a command when it is unpickled."""

    path: Path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch '{self.path}'",)


def pickle_call(folder: Path) -> bytes:
    return pickle.dumps(Touch(folder / MARKER), protocol=2)


def call_in_archive(folder: Path) -> Path:
    return replace_member(folder / "timm.pth", ".pkl", pickle_call(folder))


def call_in_pickle(folder: Path) -> Path:
    return put("timm.pth", pickle_call(folder), folder)


def call_in_old_file(folder: Path) -> Path:
    """Write a file like torch before 1.6: four pickles, the first two its magic number and version."""
    parts = (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, {"head.weight": Touch(folder / MARKER)})
    (folder / "bin").mkdir()
    return put("bin/pytorch_model.bin", b"".join(pickle.dumps(part, protocol=2) for part in parts), folder)


def call_in_objects(folder: Path) -> Path:
    """Write an array of objects whose pickle has exactly the size that its shape states."""
    hostile = pickle_call(folder)
    hostile += bytes(-len(hostile) % 8)
    return replace_member(folder / "google.npz", "head/bias.npy", make_npy_header((len(hostile) // 8,), "|O") + hostile)


def make_npy_header(shape: tuple[int, ...], kind: str = "<f4") -> bytes:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": kind, "fortran_order": False, "shape": shape})
    return header.getvalue()


# Claims to be enormous.


def bomb_npz(folder: Path) -> Path:
    shape = (CONFIG.width, BOMB_MIB * 2**18 // CONFIG.width)
    return plant_bomb(folder / "google.npz", "head/kernel.npy", make_npy_header(shape))


def bomb_pth(folder: Path) -> Path:
    """Plant a bomb in a torch archive, whose pickle states the size of each storage."""
    return plant_bomb(folder / "timm.pth", "data/0")


def plant_bomb(path: Path, ending: str, start: bytes = b"") -> Path:
    """Replace a member by a megabyte that decompresses to a gigabyte of zeros."""
    compressor = zlib.compressobj(9, wbits=-15)
    begun = compressor.compress(start) + compressor.flush(zlib.Z_FULL_FLUSH)
    block = compressor.compress(bytes(2**20)) + compressor.flush(zlib.Z_FULL_FLUSH)
    replace_member(path, ending, begun + block * BOMB_MIB + compressor.flush())
    content = bytearray(path.read_bytes())
    entry = next(start for name, start in read_directory(bytes(content)).items() if name.endswith(ending))
    struct.pack_into("<H", content, entry + 10, zipfile.ZIP_DEFLATED)
    struct.pack_into("<I", content, entry + 24, len(start) + BOMB_MIB * 2**20)
    path.write_bytes(content)
    return path


def claim_many_blocks(folder: Path) -> Path:
    """Claim a stack of 10**12 blocks, each empty."""
    with zipfile.ZipFile(folder / "google.npz", "a") as archive:
        archive.writestr("Transformer/encoderblock/LayerNorm_0/scale.npy", make_npy_header((10**12, 0)))
    return folder / "google.npz"


def claim_wide_stem(folder: Path) -> Path:
    """Claim a stem whose stages double the width beyond 64 bits, with enough tensors for so many stages."""
    state = load_file(folder / "own" / "model.safetensors")
    save_file({**state, **{f"extra.{i}": torch.zeros(1) for i in range(40)}}, folder / "own" / "model.safetensors")
    stem = {"kind": "hybrid", "stem_stages": [1] * 40, "stem_width_factor": 1e7}
    sizes = {"width": 64, "depth": 1, "num_heads": 1, "mlp_dim": 8, "num_classes": 3, "image_size": [10**7, 10**7]}
    return edit_json(folder / "own" / "config.json", model={**stem, **sizes})


def claim_terabyte(folder: Path) -> Path:
    header = {"patches.projection.weight": {"dtype": "F32", "shape": [TERABYTE // 4], "data_offsets": [0, TERABYTE]}}
    return put("own/model.safetensors", join_safetensors(header, b""), folder, hole_bytes=TERABYTE)


# Descriptions, names and places.


def edit_header(change: Callable[[dict[str, Any]], dict[str, Any]], folder: Path) -> Path:
    header, numbers = split_safetensors((folder / "timm.safetensors").read_bytes())
    return put("timm.safetensors", join_safetensors(change(header), numbers), folder)


def nest_in_metadata(header: dict[str, Any]) -> dict[str, Any]:
    text = '{"a": ' * 100_000 + "1" + "}" * 100_000
    return {**header, "__metadata__": {"vitrine": text, "vitrine_checksum": hashlib.sha256(text.encode()).hexdigest()}}


def break_names(header: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("head.", "two\nlines."): entry for name, entry in header.items()}


def damage_key_of_metadata(folder: Path) -> Path:
    """Flip one bit of the metadata's key, which leaves a file in timm's format that does not state its heads."""
    content = (folder / "timm.safetensors").read_bytes()
    return put("timm.safetensors", content.replace(b'"vitrine"', b'"vitrind"'), folder)


def break_name_in_npz(folder: Path) -> Path:
    return rewrite(folder / "google.npz", lambda name, member: (name.replace("head/", "two\nlines/"), member))


def misplace_shard(place: Any, folder: Path) -> Path:
    places = json.loads((folder / INDEX).read_bytes())["weight_map"]
    first = Path(SHARDS[0]).name
    return edit_json(folder / INDEX, weight_map={name: place if held == first else held for name, held in places.items()})


def replace_file(make: Callable[[Path], None], name: str, folder: Path) -> Path:
    path = folder / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    make(path)
    return folder / find_source(name)


def link_to_itself(path: Path) -> None:
    path.symlink_to(path)


# Tensors.


def add_to_pth(key: Any, make: Callable[[], Any], folder: Path) -> Path:
    path = folder / "timm.pth"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested tensors are a prototype
        torch.save({**torch.load(path, weights_only=True), key: make()}, path)
    return path


def make_head(**options: Any) -> torch.Tensor:
    return torch.zeros(CONFIG.num_classes, CONFIG.width, **options)


# No plain numbers, under a name and of a shape that fit.
STRANGE_TENSORS: dict[str, Callable[[], Any]] = {
    "a negative view": lambda: torch.ops.aten._neg_view(make_head()),
    "nested": lambda: torch.nested.nested_tensor([make_head(), make_head()]),
    "sparse": lambda: make_head().to_sparse(),
    "meta": lambda: make_head(device="meta"),
    "complex": lambda: make_head(dtype=torch.complex64),
    "four bits": lambda: make_head(dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
    "a terabyte by strides of 0": lambda: torch.zeros(1).expand(TERABYTE // 4),
    "a gigabyte by strides of 0": lambda: torch.zeros(1).expand(10**9 // 4),
}
SHARD_NAMES = (
    "../own/model.safetensors",
    "/etc/passwd",
    "..",
    ".",
    "",
    "two\nlines",
    "nul\0",
    "x" * 5000,
    "\ud800",
    3,
    None,
    ["a"],
)
JSON_FILES = ("own/config.json", "timm.pth.vitrine.json", INDEX)
WEIGHTS = ("own/model.safetensors", "timm.pth", "google.npz", SHARDS[0])
DEEP_JSON = b'{"format": 1, "model": ' + b'{"a": [' * 100_000 + b"]}" * 100_000 + b"}"
DEEP_HEADER = b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"

HOSTILE: dict[str, Callable[[Path], Path]] = {
    "a call in torch's archive": call_in_archive,
    "a call in a bare pickle": call_in_pickle,
    "a call in torch's old format": call_in_old_file,
    "a call in an array of objects": call_in_objects,
    "a bomb in npz": bomb_npz,
    "a bomb in pth": bomb_pth,
    "a stack of 10**12 empty blocks": claim_many_blocks,
    "a stem wider than 64 bits": claim_wide_stem,
    "a terabyte in safetensors": claim_terabyte,
    "a terabyte of zip": partial(put, "timm.pth", b"PK\3\4", hole_bytes=TERABYTE),
    "a terabyte of pickle": partial(put, "timm.pth", b"\x80\2}", hole_bytes=TERABYTE),
    "a terabyte of config": partial(put, "own/config.json", b"{", hole_bytes=TERABYTE),
    "a terabyte of index": partial(put, INDEX, b"{", hole_bytes=TERABYTE),
    **{f"depth in {name}": partial(put, name, DEEP_JSON) for name in JSON_FILES},
    "depth in the header": partial(put, "timm.safetensors", len(DEEP_HEADER).to_bytes(8, "little") + DEEP_HEADER),
    "depth in the metadata": partial(edit_header, nest_in_metadata),
    "a flipped bit in the metadata's key": damage_key_of_metadata,
    **{f"a loop at {name}": partial(replace_file, link_to_itself, name) for name in (*WEIGHTS, "own", "own/config.json")},
    # Opening a pipe for reading waits for a writer.
    **{f"a pipe at {name}": partial(replace_file, os.mkfifo, name) for name in (*WEIGHTS, "own/config.json")},
    **{f"a shard at {str(name)[:30]!r}": partial(misplace_shard, name) for name in SHARD_NAMES},
    **{f"nothing in {name}": partial(put, name, b"") for name in (*WEIGHTS, *JSON_FILES)},
    "a name of two lines in safetensors": partial(edit_header, break_names),
    "a name of two lines in npz": break_name_in_npz,
    "a name of two lines in pth": partial(add_to_pth, "two\nlines", make_head),
    "a name of two lines without a tensor": partial(add_to_pth, "two\nlines", int),
    "a tensor for a name": partial(add_to_pth, torch.zeros(2, 2), make_head),
    **{f"a tensor that is {what}": partial(add_to_pth, "head.weight", make) for what, make in STRANGE_TENSORS.items()},
}
