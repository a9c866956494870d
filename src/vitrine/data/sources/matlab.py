"""MATLAB files of level 5 (versions 5 to 7): numbers, text, and structures of these.

Terms are those of "MAT-File Format" by The MathWorks. SciPy's reader is not used because a damaged file can crash the process:
it takes any type number of the file as an index into a table of pointers (seen with scipy 1.17).
"""

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from vitrine.core.console import join_names, summarise_error
from vitrine.data.sources.annotations import read_bytes

Value = np.ndarray | str | list[dict[str, "Value"]] | None
"""None: a kind that is not read here, such as cells and functions."""

# Limit for a file and for a decompressed variable, far above the largest known one (ImageNet's meta.mat).
MAX_BYTES = 32_000_000

# Data types (table 1-1) and array classes (table 1-3).
MI_INT8, MI_INT32, MI_UINT32, MI_MATRIX, MI_COMPRESSED = 1, 5, 6, 14, 15
NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
TEXT = {1: "ascii", 2: "ascii", 4: "utf-16", 16: "utf-8", 17: "utf-16", 18: "utf-32"}
MX_STRUCT, MX_CHAR, MX_NUMBERS = 2, 4, range(6, 16)
COMPLEX = 0x0800


def load_mat(path: Path, *names: str) -> dict[str, Value]:
    """Read the variables of these names. Arrays have the shape that MATLAB shows, also for a single number."""
    content = read_bytes(path, MAX_BYTES + 1)
    if content.startswith((b"MATLAB 7.3", b"\x89HDF")):
        raise ValueError(f"{path} is a MATLAB 7.3 file (HDF5), which is not supported: save it with -v7 in MATLAB.")
    try:
        found = read_variables(content, names)
    except (ValueError, struct.error, zlib.error, OverflowError, MemoryError) as error:
        raise ValueError(f"{path} is not a complete MATLAB file ({summarise_error(error)}): download it again.") from None
    missing = [name for name in names if name not in found]
    if missing:
        raise ValueError(f"{path} has no variable {join_names(missing)}: download the right file.")
    return found


def read_variables(content: bytes, names: tuple[str, ...]) -> dict[str, Value]:
    """Parse a file's content into the variables of these names."""
    if len(content) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES} bytes")
    order = {b"IM": "<", b"MI": ">"}.get(content[126:128])
    if order is None:
        raise ValueError("its header is not that of versions 5 to 7")
    found: dict[str, Value] = {}
    for kind, data in read_elements(memoryview(content)[128:], order):
        if kind == MI_COMPRESSED:
            kind, data = next(read_elements(decompress(data), order), (0, data))
        if kind != MI_MATRIX:
            raise ValueError(f"it has data of type {kind} where an array is expected")
        name, value = read_array(data, order, names)
        if name in found:
            raise ValueError(f"it has two variables {name}")
        if name in names:
            found[name] = value
    return found


def decompress(data: memoryview) -> memoryview:
    """Decompress one variable, up to MAX_BYTES."""
    unpacker = zlib.decompressobj()
    unpacked = unpacker.decompress(data, MAX_BYTES)
    if not unpacker.eof:
        raise ValueError(f"a variable is truncated, or has more than {MAX_BYTES} bytes")
    return memoryview(unpacked)


def read_elements(data: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """Yield the type and data of each element."""
    start = 0
    while start < len(data):
        kind, size = struct.unpack_from(f"{order}II", data, start)
        inside, end = start + 8, start + 8 + size
        if kind >> 16:  # the small format: the size shares four bytes with the type, the data has the other four
            kind, size = kind & 0xFFFF, kind >> 16
            inside, end = start + 4, start + 8
        elif kind != MI_COMPRESSED:
            end += -size % 8
        if inside + size > min(end, len(data)):
            raise ValueError("an element is longer than what holds it")
        yield kind, data[inside : inside + size]
        start = end


def read_array(data: memoryview, order: str, names: tuple[str, ...] | None = None) -> tuple[str, Value]:
    """Return name and value of an array; None for a variable not in `names`. Within a structure `names` is None."""
    parts = read_elements(data, order)
    flags = take_numbers(parts, order, MI_UINT32)
    shape = tuple(take_numbers(parts, order, MI_INT32).tolist())
    name = take_numbers(parts, order, MI_INT8).tobytes().decode("ascii")
    if len(flags) != 2 or not shape or min(shape) < 0:
        raise ValueError(f"an array has {len(flags)} flags and the shape {shape}")
    array_class = int(flags[0]) & 0xFF
    if names is not None and name not in names:
        return name, None
    if array_class == MX_CHAR:
        return name, read_characters(parts, order, shape)
    if array_class in MX_NUMBERS and not flags[0] & COMPLEX:
        return name, take_numbers(parts, order).reshape(shape, order="F")
    if array_class == MX_STRUCT and names is not None:  # no nested structures, so recursion is bounded
        return name, read_structures(parts, order, shape)
    return name, None


def take_numbers(parts: Iterator[tuple[int, memoryview]], order: str, expected: int | None = None) -> np.ndarray:
    """Read the next element as numbers, which may be stored with fewer bits than the array's class says."""
    kind, data = next(parts, (0, memoryview(b"")))
    if kind not in NUMBERS or expected not in (None, kind):
        raise ValueError(f"it has data of type {kind} where {expected or 'a number'} is expected")
    return np.frombuffer(data, dtype=order + NUMBERS[kind])


def read_characters(parts: Iterator[tuple[int, memoryview]], order: str, shape: tuple[int, ...]) -> str | None:
    """Read the next element as one line of text; None for several lines."""
    kind, data = next(parts, (0, memoryview(b"")))
    if kind not in TEXT:
        raise ValueError(f"it has data of type {kind} where text is expected")
    if shape[0] > 1:  # several lines, which are stored column by column
        return None
    endian = {"<": "-le", ">": "-be"}[order] if kind in (4, 17, 18) else ""
    return bytes(data).decode(TEXT[kind] + endian)


def read_structures(parts: Iterator[tuple[int, memoryview]], order: str, shape: tuple[int, ...]) -> list[dict[str, Value]]:
    """Return a dictionary of fields for each structure of an array, in MATLAB's column-major order."""
    lengths = take_numbers(parts, order, MI_INT32)
    text = take_numbers(parts, order, MI_INT8).tobytes().decode("ascii")
    length = int(lengths[0]) if len(lengths) == 1 else 0
    if length < 1 or len(text) % length:
        raise ValueError("its field names are damaged")
    fields = [text[start : start + length].split("\0")[0] for start in range(0, len(text), length)]
    values = []
    for kind, data in parts:
        if kind != MI_MATRIX:
            raise ValueError(f"it has data of type {kind} where an array is expected")
        values.append(read_array(data, order)[1] if len(data) > 0 else np.zeros((0, 0)))
    if len(set(fields)) < len(fields) or len(values) != len(fields) * int(np.prod(shape, dtype=object)):
        raise ValueError(f"it has {len(values)} values for structures of {len(fields)} fields in the shape {shape}")
    step = max(1, len(fields))
    return [dict(zip(fields, values[start : start + step], strict=True)) for start in range(0, len(values), step)]
