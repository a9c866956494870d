"""Read weights files lazily: safetensors, npz, torch's zip and pickle, shards with an index.

The kind of a file is detected from its first bytes. Nothing is unpickled. Any broken or hostile file ends as a ValueError
of one sentence.
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

from vitrine.core.checksums import check_members, open_zip
from vitrine.core.console import format_bytes, join_names, summarise_error
from vitrine.core.files import read_json
from vitrine.data.sources.npz import read_npy_header

# Floating-point dtypes by their safetensors names.
SAFETENSORS_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# The same by NumPy's names. NumPy has no bfloat16, so JAX programs store it as two untyped bytes.
NUMPY_DTYPES = {"f8": torch.float64, "f4": torch.float32, "f2": torch.float16, "V2": torch.bfloat16}
# Keys under which training programs store the state dict; the first that is present is used.
WRAPPERS = ("state_dict", "model", "teacher")


@dataclass(frozen=True)
class LazyTensor:
    """A tensor that is still in its file. `read` may return a memory map of the file: copy it and release it."""

    shape: tuple[int, ...]
    dtype: str
    """torch's name (e.g. `torch.float32`) of a floating-point dtype, the file's own name of any other."""
    read: Callable[[], Tensor]

    @property
    def is_floating_point(self) -> bool:
        return self.dtype.startswith("torch.")


Tensors = Mapping[str, LazyTensor]


@dataclass(frozen=True)
class TensorFile:
    """The tensors of an open weights file, or of all shards of an index."""

    path: Path
    tensors: Tensors
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Metadata of a safetensors file; empty for other kinds."""


@contextmanager
def open_tensors(path: Path) -> Iterator[TensorFile]:
    """Open a weights file of any known kind, or all shards of an index."""
    with ExitStack() as stack:
        file = open_shards(path, stack) if path.name.endswith(".index.json") else open_file(path, stack)
        # A compressed archive or a sparse file can claim far more than its size: check before anything is allocated.
        check_memory(path, sum(4 * math.prod(tensor.shape) for tensor in file.tensors.values()))
        yield file


def open_file(path: Path, stack: ExitStack) -> TensorFile:
    """Open one weights file; archives stay open as long as `stack`."""
    check_memory(path, path.stat().st_size)
    with path.open("rb") as file:
        first = file.read(16)
    if not first:
        raise ValueError(f"{path} is empty: download or copy it again.")
    if first[8:9] == b"{":
        return open_safetensors(path)
    if first.startswith(b"PK"):
        with readable_errors(path, "a zip archive"):
            archive = stack.enter_context(open_zip(path))
        names = archive.namelist()
        return open_npz(path, archive) if names and all(name.endswith(".npy") for name in names) else open_torch(path, archive)
    if first.startswith(b"\x80"):
        return open_torch(path, None)
    found = f"{path} is not a weights file: it begins with {first[:8]!r}; expected safetensors, npz, pth or pt"
    raise ValueError(f"{found}. If it was downloaded, check that it is not a web page or a Git LFS pointer.")


def open_safetensors(path: Path) -> TensorFile:
    """List the tensors of a safetensors file."""
    tensors: dict[str, LazyTensor] = {}
    with readable_errors(path, "safetensors"), safe_open(path, "pt") as file:
        for name in file.keys():  # noqa: SIM118 (not a mapping)
            header = file.get_slice(name)
            kind = header.get_dtype()
            dtype = str(SAFETENSORS_DTYPES.get(kind, kind))
            tensors[name] = LazyTensor(tuple(header.get_shape()), dtype, partial(read_safetensors, path, name))
        return TensorFile(path, tensors, file.metadata() or {})


def read_safetensors(path: Path, name: str) -> Tensor:
    """Read one tensor of a safetensors file."""
    # Open the file anew, so that its memory map ends with the tensor: mapped pages count as memory of this process.
    with readable_errors(path, "safetensors"), safe_open(path, "pt") as file:
        return file.get_tensor(name)


def open_npz(path: Path, archive: zipfile.ZipFile) -> TensorFile:
    """List the arrays of an npz archive, checking headers against member sizes."""
    tensors: dict[str, LazyTensor] = {}
    with readable_errors(path, "npz"):
        for member in archive.infolist():
            with archive.open(member) as content:
                shape, _, dtype = read_npy_header(content)
                num_bytes = math.prod(shape) * dtype.itemsize
                if content.tell() + num_bytes != member.file_size:
                    raise ValueError(f"{member.filename} does not hold the {num_bytes} bytes that its header states")
            name = member.filename.removesuffix(".npy")
            if name in tensors:
                raise ValueError(f"it contains {name!r} twice")
            kind = dtype.str[1:] if dtype.fields is None else "V"
            read = partial(read_npz, path, archive, member)
            tensors[name] = LazyTensor(shape, str(NUMPY_DTYPES.get(kind, kind)), read)
    return TensorFile(path, tensors)


def read_npz(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Tensor:
    """Read one array of an npz archive, never unpickling."""
    with readable_errors(path, "npz"), archive.open(member) as content:
        array = np.lib.format.read_array(content, allow_pickle=False)
        content.read(1)  # zipfile checks the CRC at the end only
    if array.dtype.str[1:] == "V2":
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))


def open_torch(path: Path, archive: zipfile.ZipFile | None) -> TensorFile:
    """List the tensors of a state dict saved by torch, read with weights_only=True."""
    if archive is not None and any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
        # A few bytes could expand to gigabytes before any shape is known.
        raise ValueError(f"{path} is a compressed archive, which torch never writes: save the state_dict again.")
    # Pass an open file, because torch.load looks at the ending of a name.
    with readable_errors(path, "torch weights (only tensors are read from such files)"), path.open("rb") as file:
        if archive is not None:
            check_members(archive)  # torch does not
        content = torch.load(file, map_location="cpu", weights_only=True)
    state = unwrap(content)
    wrong = [str(name)[:80] for name, value in state.items() if not (isinstance(name, str) and is_plain(value))]
    if not state or wrong:
        found = f"these are not: {join_names(wrong)}" if wrong else "it has none"
        raise ValueError(f"{path} must contain named tensors only ({found}): save the model's state_dict alone.")
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
    """Return the state dict of a file, which may lie beside a training program's other state."""
    if not isinstance(content, dict):
        return {}
    for name in WRAPPERS:
        if isinstance(content.get(name), dict):
            return content[name]
    return content


def is_plain(value: object) -> bool:
    """Return whether a value is a dense CPU tensor, not quantized, nested, or a lazy negation or conjugate."""
    if not isinstance(value, Tensor) or value.layout != torch.strided or value.device.type != "cpu":
        return False
    return not (value.is_nested or value.is_quantized or value.is_neg() or value.is_conj())


def open_shards(path: Path, stack: ExitStack) -> TensorFile:
    """Open all shards of an index, which must name exactly the tensors that they hold."""
    shard_of = read_json(path).get("weight_map")
    if not isinstance(shard_of, dict) or not shard_of:
        raise ValueError(f"{path} has no weight_map (tensor name to file): download or copy it again.")
    tensors: dict[str, LazyTensor] = {}
    for shard in sorted(set(map(str, shard_of.values()))):
        if Path(shard).name != shard:
            raise ValueError(f"{path} points to {shard!r}; shards must be in the same folder as their index.")
        if not (path.parent / shard).is_file():
            raise FileNotFoundError(f"{path} names the shard {shard!r}, which is missing: download or copy it too.")
        found = open_file(path.parent / shard, stack).tensors
        expected = {name for name, file in shard_of.items() if file == shard}
        if found.keys() != expected:
            wrong = sorted(found.keys() ^ expected)
            raise ValueError(f"{path.parent / shard} and its index {path.name} disagree on {join_names(wrong)}.")
        tensors.update(found)
    return TensorFile(path, tensors)


def check_memory(path: Path, num_bytes: int) -> None:
    """Raise a ValueError if weights are larger than this machine's memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if num_bytes > memory:
        raise ValueError(f"{path} holds {format_bytes(num_bytes)} of weights; this machine's memory is {format_bytes(memory)}.")


@contextmanager
def readable_errors(path: Path, kind: str) -> Iterator[None]:
    """Turn whatever a library raises for a bad file into a ValueError of one sentence that names the file."""
    try:
        yield
    except (FileNotFoundError, PermissionError, KeyboardInterrupt):
        raise
    except Exception as error:  # parsers of damaged bytes raise anything, from KeyError to RuntimeError
        raise ValueError(f"{path} cannot be read as {kind}: {summarise_error(error)}. Download or copy it again.") from None
