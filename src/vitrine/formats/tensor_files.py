"""Files of tensors: safetensors, npz, torch's zip and pickle, shards with an index. Read one by one; nothing is unpickled.

What a file is is told by its first bytes. Everything that a broken or hostile file can cause ends as one sentence here.
"""

import math
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from vitrine.core.console import format_bytes, join_names, summarise
from vitrine.core.files import read_json
from vitrine.data.sources.npz import read_npy_header

# The kinds of numbers that weights may have, as safetensors calls them.
SAFETENSORS_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# And NumPy; it has no bfloat16, which JAX's programs store as two bytes of nothing in particular.
NUMPY_DTYPES = {"f8": torch.float64, "f4": torch.float32, "f2": torch.float16, "V2": torch.bfloat16}
# Where training programs keep the weights among other things, the first that is there.
WRAPPERS = ("state_dict", "model", "teacher")


@dataclass(frozen=True)
class LazyTensor:
    """A tensor that is still in its file. What `read` returns may be mapped from it, to be copied and let go."""

    shape: tuple[int, ...]
    dtype: str
    """As the file calls it; `torch.float32` and its kin if it can be weights."""
    read: Callable[[], Tensor]

    @property
    def is_floating_point(self) -> bool:
        return self.dtype.startswith("torch.")


Tensors = Mapping[str, LazyTensor]


@dataclass(frozen=True)
class TensorFile:
    path: Path
    tensors: Tensors
    metadata: Mapping[str, str] = field(default_factory=dict)
    """What safetensors carries beside the tensors; empty for the others."""


@contextmanager
def open_tensors(path: Path) -> Iterator[TensorFile]:
    """The tensors of a file of any known kind, or of all files of an index."""
    with ExitStack() as stack:
        file = open_shards(path, stack) if path.name.endswith(".index.json") else open_one(path, stack)
        require_memory(file)
        yield file


def open_one(path: Path, stack: ExitStack) -> TensorFile:
    require_bytes(path, path.stat().st_size)
    with path.open("rb") as start:
        first = start.read(16)
    if not first:
        raise ValueError(f"{path} is empty: fetch or copy it again.")
    if first[8:9] == b"{":
        return open_safetensors(path)
    if first.startswith(b"PK"):
        with one_sentence(path, "a zip archive"):
            archive = stack.enter_context(zipfile.ZipFile(path))
        names = archive.namelist()
        return open_npz(path, archive) if names and all(name.endswith(".npy") for name in names) else open_torch(path, archive)
    if first.startswith(b"\x80"):
        return open_torch(path, None)
    raise ValueError(
        f"{path} holds no weights: it begins with {first[:8]!r}; needed is a safetensors, npz, pth or pt file. "
        "If it was downloaded, see whether it is a web page or a Git LFS pointer."
    )


def open_safetensors(path: Path) -> TensorFile:
    tensors: dict[str, LazyTensor] = {}
    with one_sentence(path, "safetensors"), safe_open(path, "pt") as file:
        for name in file.keys():  # noqa: SIM118 (no mapping)
            stored = file.get_slice(name)
            kind = stored.get_dtype()
            dtype = str(SAFETENSORS_DTYPES.get(kind, kind))
            tensors[name] = LazyTensor(tuple(stored.get_shape()), dtype, partial(read_safetensors, path, name))
        return TensorFile(path, tensors, file.metadata() or {})


def read_safetensors(path: Path, name: str) -> Tensor:
    # Of a mapping of its own, which ends with the tensor: a page counts as this process's memory as long as it is mapped.
    with one_sentence(path, "safetensors"), safe_open(path, "pt") as file:
        return file.get_tensor(name)


def open_npz(path: Path, archive: zipfile.ZipFile) -> TensorFile:
    tensors: dict[str, LazyTensor] = {}
    with one_sentence(path, "npz"):
        for member in archive.infolist():
            with archive.open(member) as content:
                shape, _, dtype = read_npy_header(content)
                num_bytes = math.prod(shape) * dtype.itemsize
                if content.tell() + num_bytes != member.file_size:
                    raise ValueError(f"{member.filename} should hold {num_bytes} bytes of numbers, and does not")
            name = member.filename.removesuffix(".npy")
            if name in tensors:
                raise ValueError(f"{name!r} is in it twice")
            kind = dtype.str[1:] if dtype.fields is None else "V"
            read = partial(read_npz, path, archive, member)
            tensors[name] = LazyTensor(shape, str(NUMPY_DTYPES.get(kind, kind)), read)
    return TensorFile(path, tensors)


def read_npz(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Tensor:
    with one_sentence(path, "npz"), archive.open(member) as content:
        array = np.lib.format.read_array(content, allow_pickle=False)
        content.read(1)  # only at the end does zipfile compare the checksum
    if array.dtype.str[1:] == "V2":
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))


def open_torch(path: Path, archive: zipfile.ZipFile | None) -> TensorFile:
    if archive is not None and any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
        # A few bytes could then stand for gigabytes, before any shape is known.
        raise ValueError(f"{path} is a compressed archive, which torch never writes: save the state_dict anew.")
    # An open file, because torch goes by the ending of a name.
    with one_sentence(path, "weights of torch (nothing but tensors is read from such files)"), path.open("rb") as file:
        content = torch.load(file, map_location="cpu", weights_only=True)
    state = unwrap(content)
    wrong = [str(name)[:80] for name, value in state.items() if not (isinstance(name, str) and is_plain(value))]
    if not state or wrong:
        found = f"{join_names(wrong)} besides" if wrong else "none"
        raise ValueError(f"{path} must hold named tensors, and holds {found}: save the model's state_dict alone.")
    tensors = {
        name: LazyTensor(
            tuple(value.shape),
            str(value.dtype) if value.dtype in SAFETENSORS_DTYPES.values() else str(value.dtype).removeprefix("torch."),
            lambda value=value: value.detach().contiguous(),
        )
        for name, value in state.items()
    }
    return TensorFile(path, tensors)


def unwrap(content: object) -> dict[Any, Any]:
    """The state dict, alone or among what a training program keeps."""
    if not isinstance(content, dict):
        return {}
    for name in WRAPPERS:
        if isinstance(content.get(name), dict):
            return content[name]
    return content


def is_plain(value: object) -> bool:
    """Numbers in memory, and no view of them under a sign."""
    if not isinstance(value, Tensor) or value.layout != torch.strided or value.device.type != "cpu":
        return False
    return not (value.is_nested or value.is_quantized or value.is_neg() or value.is_conj())


def open_shards(path: Path, stack: ExitStack) -> TensorFile:
    places = read_json(path).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise ValueError(f"{path} has no weight_map, which says in which file each tensor is: fetch or copy it again.")
    tensors: dict[str, LazyTensor] = {}
    for shard in sorted(set(map(str, places.values()))):
        if Path(shard).name != shard:
            raise ValueError(f"{path} points to {shard!r}; shards must lie beside their index.")
        if not (path.parent / shard).is_file():
            raise FileNotFoundError(f"{path} names the shard {shard!r}, which is not beside it: fetch or copy it too.")
        held = open_one(path.parent / shard, stack).tensors
        expected = {name for name, place in places.items() if place == shard}
        if held.keys() != expected:
            wrong = sorted(held.keys() ^ expected)
            raise ValueError(f"{path.parent / shard} and its index {path.name} disagree on {join_names(wrong)}.")
        tensors.update(held)
    return TensorFile(path, tensors)


def require_memory(file: TensorFile) -> None:
    """What a few bytes can claim (a compressed archive, a sparse file) is refused before it is allocated."""
    require_bytes(file.path, sum(4 * math.prod(stored.shape) for stored in file.tensors.values()))


def require_bytes(path: Path, num_bytes: int) -> None:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if num_bytes > memory:
        raise ValueError(f"{path} holds {format_bytes(num_bytes)} of weights, more than this machine's {format_bytes(memory)}.")


@contextmanager
def one_sentence(path: Path, kind: str) -> Iterator[None]:
    """Whatever a library says of a bad file, in one sentence that names it."""
    try:
        yield
    except (FileNotFoundError, PermissionError, KeyboardInterrupt):
        raise
    except Exception as error:  # parsers of foreign bytes raise anything, from KeyError to RuntimeError
        raise ValueError(f"{path} cannot be read as {kind}: {summarise(error)}. Fetch or copy it again.") from None
