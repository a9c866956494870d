"""Samples of one tar file in WebDataset layout, found by `tarfile` with additional checks.

Neighbouring members with the same key are one sample. The key is the path up to the first dot of the file name, the extension
is the rest (`a/b.seg.png` is `seg.png` of `a/b`). A sample is an image with its label as a decimal number in `cls` or, if there
is no `cls`, in the field "label", "labels" or "cls" of `json`; other members are ignored.
"""

import io
import json
import os
import re
import tarfile
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from vitrine.core.config_checks import is_whole
from vitrine.core.console import summarise_error
from vitrine.data.image import IMAGE_SUFFIXES
from vitrine.data.sources.annotations import MAX_CLASSES, readable_errors

# WebDataset ignores members without an extension, hidden files, and notes such as __this__.
KEY = re.compile(r"(?!__[^/]*__(?:/|$))(?P<key>(?:.*/)?[^/.]+)(?P<extension>\.[^/]*)")
LABEL_FIELDS = ("label", "labels", "cls")
EXPECTED, REMEDY = "expected a plain tar file", "decompress it, or download or write it again"

# Limits of what is read into memory, against absurd sizes in damaged files.
MAX_HEADER_BYTES = 2**18
MAX_LABEL_BYTES = 16 * 2**20


class Sample(NamedTuple):
    """An image member of a tar file and its label."""

    image: tarfile.TarInfo
    label: int | list[int] | None


class BoundedFile(io.BufferedReader):
    """File for `tarfile` that limits reads: it would load an extended header of any claimed size into memory."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Read bytes for `tarfile`; raise ReadError for more than a header may have."""
        if size is None or not 0 <= size <= MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {size} bytes at byte {self.tell()}")
        return super().read(size)


def list_members(path: Path) -> list[tarfile.TarInfo]:
    """Return the members of a tar file except folders, with printable names; raise ValueError if the file is damaged."""
    members: list[tarfile.TarInfo] = []
    with (
        readable_errors(path, EXPECTED, REMEDY, failures=Exception),
        BoundedFile(io.FileIO(path)) as file,
        tarfile.open(fileobj=file, mode="r:", encoding="utf-8", errors="backslashreplace") as tar,
    ):
        while (member := tar.next()) is not None:
            # Some versions of `tarfile` never end if a size is negative.
            if member.size < 0 or member.offset_data + (member.size if is_stored(member) else 0) > tar.offset:
                raise tarfile.ReadError(f"a wrong size at byte {member.offset}")
            if not member.isdir():
                member.name = normalise_name(member.name)
                members.append(member)
        check_end(file, tar.offset)
    return members


def is_stored(member: tarfile.TarInfo) -> bool:
    """Return whether a member's bytes are stored in one piece, which those of links and sparse files are not."""
    return member.isreg() and not member.issparse()


def normalise_name(name: str) -> str:
    """Remove the "./" that `tar` writes for the folder ".", and escape line breaks and the like."""
    name = re.sub(r"^(\.?/+)+", "", name)
    return name if name.isprintable() else repr(name)[1:-1]


def check_end(file: BoundedFile, position: int) -> None:
    """Raise ReadError unless two blocks of zeros, and nothing else, follow the last member.

    `tarfile` stops without an error at a damaged header, and at the end of the first of several concatenated tar files.
    """
    file.seek(position)
    num_zeros = 0
    while content := file.read(MAX_HEADER_BYTES):
        if content.strip(b"\0"):
            raise tarfile.ReadError(f"damaged, or tar files concatenated, from byte {position}")
        num_zeros += len(content)
    if num_zeros < 2 * tarfile.BLOCKSIZE:
        raise tarfile.ReadError(f"truncated at byte {position + num_zeros}")


def read_samples(path: Path, members: Iterable[tarfile.TarInfo]) -> Iterator[Sample | None]:
    """Yield the samples of a tar file, None for one without an image."""
    seen: set[str] = set()
    keyed = [(match, member) for member in members if (match := KEY.fullmatch(member.name)) is not None]
    with open(path, "rb") as file:
        for key, group in groupby(keyed, key=lambda pair: pair[0]["key"]):
            if key in seen:
                raise ValueError(f"{path} has the key {key!r} in two places; expected its members together: write it again.")
            seen.add(key)
            fields = collect_fields(path, ((match["extension"].lower(), member) for match, member in group))
            image = fields.pop("image", None)
            yield None if image is None else Sample(image, read_label(file.fileno(), path, fields))


def collect_fields(path: Path, members: Iterable[tuple[str, tarfile.TarInfo]]) -> dict[str, tarfile.TarInfo]:
    """Return the members of a sample that are used, under the keys "image", ".cls" and ".json"."""
    fields: dict[str, tarfile.TarInfo] = {}
    for extension, member in members:
        field = "image" if extension in IMAGE_SUFFIXES else extension
        if field not in ("image", ".cls", ".json"):
            continue
        if field in fields:
            raise ValueError(f"{path} has both {fields[field].name} and {member.name} in one sample: use a key for each.")
        if not is_stored(member):
            raise ValueError(f"{path} has {member.name} as a link or a sparse file; expected a regular file: write it again.")
        fields[field] = member
    return fields


def read_label(descriptor: int, path: Path, fields: dict[str, tarfile.TarInfo]) -> int | list[int] | None:
    """Read the label of a sample from its .cls or .json member; None if it has no label."""
    field = next((field for field in (".cls", ".json") if field in fields), None)
    if field is None:
        return None
    member = fields[field]
    try:
        if member.size > MAX_LABEL_BYTES:
            raise ValueError(f"{member.size} bytes")
        content = os.pread(descriptor, member.size, member.offset_data)
        if field == ".cls":
            value = int(content)
        else:
            notes = json.loads(content)
            value = next((notes[name] for name in LABEL_FIELDS if isinstance(notes, dict) and name in notes), None)
        numbers = [] if value is None else value if isinstance(value, list) else [value]
        if not all(is_whole(each) and 0 <= each < MAX_CLASSES for each in numbers):
            raise ValueError(str(value)[:40])
    except (ValueError, RecursionError) as error:
        reason = f"({summarise_error(error)}); expected a class index below {MAX_CLASSES}"
        raise ValueError(f"{path}: {member.name} is not a label {reason}: write the shard again.") from None
    return value
