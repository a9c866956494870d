"""Random damage to a file's bytes, a safetensors header, a zip archive, or JSON."""

import io
import json
import math
import struct
import sys
import warnings
import zipfile
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

Corruption = Callable[[Random, bytes], bytes]


def choose_place(random: Random, content: bytes) -> int:
    """Choose an offset; half of them near an end, where headers and directories are."""
    size = len(content)
    if size > 4000 and random.random() < 0.5:
        return random.choice((random.randrange(2000), size - 1 - random.randrange(2000)))
    return random.randrange(size)


def overwrite(content: bytes, place: int, new: bytes) -> bytes:
    return (content[:place] + new + content[place + len(new) :])[: len(content)]


def truncate(random: Random, content: bytes) -> bytes:
    return content[: choose_place(random, content)]


def flip_bit(random: Random, content: bytes) -> bytes:
    place = choose_place(random, content)
    return overwrite(content, place, bytes([content[place] ^ 1 << random.randrange(8)]))


def overwrite_run(random: Random, content: bytes) -> bytes:
    return overwrite(content, choose_place(random, content), random.randbytes(random.randint(1, 64)))


def zero_block(random: Random, content: bytes) -> bytes:
    return overwrite(content, choose_place(random, content), bytes(random.choice((16, 512, 4096))))


def delete_run(random: Random, content: bytes) -> bytes:
    place = choose_place(random, content)
    return content[:place] + content[place + random.choice((1, 8, 64, 4096)) :]


def insert_run(random: Random, content: bytes) -> bytes:
    place = choose_place(random, content)
    return content[:place] + random.randbytes(random.choice((1, 8, 64, 4096))) + content[place:]


def swap_blocks(random: Random, content: bytes) -> bytes:
    size = min(random.choice((4, 64, 512)), len(content) // 2)
    a, b = (number * size for number in sorted(random.sample(range(len(content) // size), 2)))
    return overwrite(overwrite(content, a, content[b : b + size]), b, content[a : a + size])


ANY_FILE = (truncate, flip_bit, overwrite_run, delete_run, insert_run, zero_block, swap_blocks)


# Safetensors: eight bytes of length, a header in JSON, the numbers.


def find_numbers(content: bytes) -> int:
    return 8 + int.from_bytes(content[:8], "little")


def split_safetensors(content: bytes) -> tuple[dict[str, Any], bytes]:
    start = find_numbers(content)
    return json.loads(content[8:start]), content[start:]


def join_safetensors(header: dict[str, Any], numbers: bytes) -> bytes:
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + numbers


def list_tensors(header: dict[str, Any]) -> list[str]:
    return [name for name in header if name != "__metadata__"]


def tamper_header_length(random: Random, content: bytes) -> bytes:
    length = find_numbers(content) - 8
    near = (length - 8, length - 1, length + 1, length + 8, length + 4096, random.randrange(2 * len(content)))
    wrong = random.choice((*near, 0, 1, 10**8, 2**31, 2**32 + length, 2**63, 2**64 - 8 + length % 8))
    return overwrite(content, 0, wrong.to_bytes(8, "little"))


def tamper_header_field(random: Random, content: bytes) -> bytes:
    header, numbers = split_safetensors(content)
    entry = header[random.choice(list_tensors(header))]
    field = random.choice(("dtype", "shape", "data_offsets"))
    if field == "dtype":
        entry[field] = random.choice(("F64", "F16", "BF16", "I32", "U32", "F8_E4M3", "BOOL", "f32", "", None, 32))
    else:
        entry[field] = random.choice(tamper_numbers(random, entry[field]))
    return join_safetensors(header, numbers)


def tamper_numbers(random: Random, numbers: list[int]) -> list[Any]:
    """Return wrong versions of a shape or a range."""
    place = random.randrange(len(numbers))
    replaced = [[*numbers[:place], wrong, *numbers[place + 1 :]] for wrong in (-1, 0, 4, 2**32, 2**62, 10**30, 0.5, "1", None)]
    shifted = [number + random.choice((-4, 4, 1024)) for number in numbers]
    return [*replaced, shifted, numbers[::-1], [1, *numbers], [*numbers, 2], numbers[1:], [], None, {"0": 1}]


def choose_names(random: Random, names: list[str]) -> tuple[str, str]:
    """Choose a name and its replacement: another tensor's name, or a new one."""
    old, other = random.sample(names, 2)
    strange = ("", "two\nlines", "../../outside", "x" * 100_000, f"module.{old}", f"params/{old}", old.upper(), f"{old}\0")
    return old, random.choice((other, *strange))


def rename_tensor(random: Random, content: bytes, *, is_apart: bool = False) -> bytes:
    header, numbers = split_safetensors(content)
    old, new = choose_names(random, list_tensors(header))
    renamed = {old: f"{new}{old}"} if is_apart else {old: new, new: old}
    return join_safetensors({renamed.get(name, name): value for name, value in header.items()}, numbers)


def rename_apart(random: Random, content: bytes) -> bytes:
    """Rename a tensor, never to another tensor's name."""
    return rename_tensor(random, content, is_apart=True)


def only_header(corruption: Corruption) -> Corruption:
    def corrupt(random: Random, content: bytes) -> bytes:
        start = find_numbers(content)
        return corruption(random, content[:start]) + content[start:]

    corrupt.__name__ = f"{corruption.__name__}_of_header"
    return corrupt


def only_metadata(corruption: Corruption) -> Corruption:
    """Apply a corruption to our metadata within an intact safetensors header."""

    def corrupt(random: Random, content: bytes) -> bytes:
        header, numbers = split_safetensors(content)
        metadata = header["__metadata__"]
        metadata["vitrine"] = corruption(random, metadata["vitrine"].encode()).decode(errors="replace")
        return join_safetensors(header, numbers)

    corrupt.__name__ = f"{corruption.__name__}_of_metadata"
    return corrupt


SAFETENSORS = (*ANY_FILE, tamper_header_length, tamper_header_field, rename_tensor)
# Without a checksum, changed values and swapped names cannot be detected: only damage that can.
SAFETENSORS_WITHOUT_CHECKSUM = (
    truncate,
    *(only_header(corruption) for corruption in ANY_FILE if corruption is not swap_blocks),
    tamper_header_length,
    tamper_header_field,
    rename_apart,
)


# Zip archives: members with small headers, a directory at the end.

# Place and size of the fields of a directory entry, and of the record that ends the file.
ENTRY_FIELDS = [(place, 2) for place in (4, 6, 8, 10, 12, 14, 28, 30, 32, 34, 36)]
ENTRY_FIELDS += [(place, 4) for place in (16, 20, 24, 38, 42)]
ENTRY_FIELDS += [(46, 1)]  # the first letter of its name
END_FIELDS = [(4, 2), (6, 2), (8, 2), (10, 2), (12, 4), (16, 4), (20, 2)]


def read_directory(content: bytes) -> dict[str, int]:
    """Return the members of a zip archive, and the offset of each directory entry."""
    count, _, start = struct.unpack_from("<HII", content, content.rindex(b"PK\5\6") + 10)
    entries = {}
    for _ in range(count):
        sizes = struct.unpack_from("<HHH", content, start + 28)
        entries[content[start + 46 : start + 46 + sizes[0]].decode()] = start
        start += 46 + sum(sizes)
    return entries


def rewrite_zip(content: bytes, change: Callable[[str, bytes], tuple[str, bytes]]) -> bytes:
    """Rewrite an archive with changed members and matching checksums."""
    written = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as archive, zipfile.ZipFile(written, "w") as target:
        for name in archive.namelist():
            target.writestr(*change(name, archive.read(name)))
    return written.getvalue()


def tamper_directory(random: Random, content: bytes) -> bytes:
    entry, end = random.choice(list(read_directory(content).values())), content.rindex(b"PK\5\6")
    fields = [(entry + place, size) for place, size in ENTRY_FIELDS] + [(end + place, size) for place, size in END_FIELDS]
    place, size = random.choice(fields)
    wrong = random.choice((bytes(size), b"\xff" * size, b"\1" + bytes(size - 1), random.randbytes(size)))
    return overwrite(content, place, wrong)


def tamper_member(random: Random, content: bytes) -> bytes:
    """Damage the pickle of a torch archive, the values of any archive, or the header of an array."""
    members = list(read_directory(content))
    pickles = [name for name in members if name.endswith(".pkl")]
    chosen = random.choice(pickles if pickles and random.random() < 0.8 else members)
    corruption = random.choice((truncate, flip_bit, overwrite_run, delete_run, insert_run))
    size = 128 if chosen.endswith(".npy") and random.random() < 0.8 else sys.maxsize

    def change(name: str, member: bytes) -> tuple[str, bytes]:
        return name, corruption(random, member[:size]) + member[size:] if name == chosen else member

    return rewrite_zip(content, change)


def rename_member(random: Random, content: bytes) -> bytes:
    old, new = choose_names(random, list(read_directory(content)))
    swapped = {old: new[:60_000] or "x", new: old}  # zipfile writes no empty name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile warns about a name that occurs twice
        return rewrite_zip(content, lambda name, member: (swapped.get(name, name), member))


ZIP = (*ANY_FILE, tamper_directory, tamper_member, rename_member)
# Without archives that were written again with matching checksums, which only a checksum elsewhere can tell from the original.
DAMAGED_ZIP = (*ANY_FILE, tamper_directory)


# JSON.


class Missing:
    """Marker: remove the field."""


HOSTILE_VALUES: dict[str, Any] = {
    "missing": Missing,
    "null": None,
    "true": True,
    "minus one": -1,
    "zero": 0,
    "five": 5,
    "a half": 0.5,
    "the least": 5e-324,
    "ten million": 10**7,
    "a billion": 10**9,
    "a quintillion": 10**18,
    "400 digits": 10**400,
    "nan": math.nan,
    "infinity": math.inf,
    "minus infinity": -math.inf,
    "text": "gelu_pytorch_tanh",
    "two lines": "two\nlines",
    "half a character": "\ud800",
    "list": [],
    "list of numbers": [3, 4, 4],
    "list of lists": [[1], [2]],
    "object": {},
    "deep list": json.loads("[" * 500 + "]" * 500),
}


def list_fields(content: Any) -> list[tuple[str, ...]]:
    """Return the path to every value; only the first item of a list."""
    if isinstance(content, dict):
        return [(name, *rest) for name, value in content.items() for rest in ((), *list_fields(value))]
    return [("0", *rest) for value in content[:1] for rest in ((), *list_fields(value))] if isinstance(content, list) else []


def replace_field(content: bytes, way: Sequence[str], value: Any) -> bytes:
    parsed = inner = json.loads(content)
    for step in way[:-1]:
        inner = inner[int(step) if isinstance(inner, list) else step]
    last = int(way[-1]) if isinstance(inner, list) else way[-1]
    if value is Missing:
        del inner[last]
    else:
        inner[last] = value
    return json.dumps(parsed).encode()


def tamper_json(random: Random, content: bytes) -> bytes:
    way = random.choice(list_fields(json.loads(content)))
    return replace_field(content, way, random.choice(list(HOSTILE_VALUES.values())))


def rename_field(random: Random, content: bytes) -> bytes:
    fields = list_fields(json.loads(content))
    old, new = (json.dumps(random.choice(fields)[-1]).encode() for _ in range(2))
    return content.replace(old, new)


JSON = (*ANY_FILE, tamper_json, rename_field)
