"""The samples of a tar file in WebDataset's layout, found by `tarfile` and what it does not check.

Neighbouring members of one key are a sample. The key is the path up to the first dot of the base name, the extension is all
that follows (`a/b.seg.png` is `seg.png` of `a/b`). A sample is one image with its label as decimal text in `cls` or, where
there is no `cls`, in the field "label", "labels" or "cls" of `json`; other members are passed over.
"""

import io
import json
import os
import re
import tarfile
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from vitrine.core.config_checks import is_whole
from vitrine.core.console import summarise_error
from vitrine.data.sources.annotations import MAX_CLASSES, readable_errors
from vitrine.data.sources.image_files import IMAGE_SUFFIXES

# WebDataset passes over what has no extension, hidden files, and notes as __this__.
KEY = re.compile(r"(?!__[^/]*__(?:/|$))(?P<key>(?:.*/)?[^/.]+)(?P<extension>\.[^/]*)")
LABEL_FIELDS = ("label", "labels", "cls")
EXPECTED, REMEDY = "a plain tar file was needed", "decompress it, or fetch or write it again"

# Bounds against sizes that cannot be meant, of what is read into memory.
MAX_HEADER_BYTES = 2**18
MAX_LABEL_BYTES = 16 * 2**20


class Sample(NamedTuple):
    image: tarfile.TarInfo
    label: int | list[int] | None


class BoundedFile(io.BufferedReader):
    """A file for `tarfile`, which would read an extended header into memory whatever size it claims to have."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or not 0 <= size <= MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {size} bytes at byte {self.tell()}")
        return super().read(size)


def list_members(path: Path) -> list[tarfile.TarInfo]:
    """All but folders, with names that can be shown."""
    members: list[tarfile.TarInfo] = []
    with (
        readable_errors(path, EXPECTED, REMEDY, failures=Exception),
        BoundedFile(io.FileIO(path)) as file,
        tarfile.open(fileobj=file, mode="r:", encoding="utf-8", errors="backslashreplace") as tar,
    ):
        while (member := tar.next()) is not None:
            # Some versions of `tarfile` go round for ever where a size is negative.
            if member.size < 0 or member.offset_data + (member.size if is_stored(member) else 0) > tar.offset:
                raise tarfile.ReadError(f"a wrong size at byte {member.offset}")
            if not member.isdir():
                member.name = tidy_name(member.name)
                members.append(member)
        require_end(file, tar.offset)
    return members


def is_stored(member: tarfile.TarInfo) -> bool:
    """Whether its bytes lie there in one piece: those of links and of sparse files do not."""
    return member.isreg() and not member.issparse()


def tidy_name(name: str) -> str:
    """As `tar` of a folder "." writes them, without the "./"; line breaks and the like are spelt out."""
    name = re.sub(r"^(\.?/+)+", "", name)
    return name if name.isprintable() else repr(name)[1:-1]


def require_end(file: BoundedFile, position: int) -> None:
    """`tarfile` takes a damaged header for the end, and stops at the first end of tar files that were joined."""
    file.seek(position)
    num_zeros = 0
    while content := file.read(MAX_HEADER_BYTES):
        if content.strip(b"\0"):
            raise tarfile.ReadError(f"damaged, or tar files joined, from byte {position} on")
        num_zeros += len(content)
    if num_zeros < 2 * tarfile.BLOCKSIZE:
        raise tarfile.ReadError(f"cut short at byte {position + num_zeros}")


def read_samples(path: Path, members: Iterable[tarfile.TarInfo]) -> Iterator[Sample | None]:
    """None for one without an image."""
    known: set[str] = set()
    keyed = [(match, member) for member in members if (match := KEY.fullmatch(member.name)) is not None]
    with open(path, "rb") as file:
        for key, group in groupby(keyed, key=lambda pair: pair[0]["key"]):
            if key in known:
                raise ValueError(f"{path} has the key {key!r} in two places; each sample needs its own: write the shard again.")
            known.add(key)
            fields = collect_fields(path, ((match["extension"].lower(), member) for match, member in group))
            image = fields.pop("image", None)
            yield None if image is None else Sample(image, read_label(file.fileno(), path, fields))


def collect_fields(path: Path, members: Iterable[tuple[str, tarfile.TarInfo]]) -> dict[str, tarfile.TarInfo]:
    """Those that matter: image, .cls and .json."""
    fields: dict[str, tarfile.TarInfo] = {}
    for extension, member in members:
        field = "image" if extension in IMAGE_SUFFIXES else extension
        if field not in ("image", ".cls", ".json"):
            continue
        if field in fields:
            raise ValueError(f"{path} has {fields[field].name} and {member.name} for one sample: give each its own key.")
        if not is_stored(member):
            raise ValueError(f"{path} has {member.name} as a link or a sparse file, and its bytes were needed: write it plain.")
        fields[field] = member
    return fields


def read_label(descriptor: int, path: Path, fields: dict[str, tarfile.TarInfo]) -> int | list[int] | None:
    field = next((field for field in (".cls", ".json") if field in fields), None)
    if field is None:
        return None
    member = fields[field]
    try:
        if member.size > MAX_LABEL_BYTES:
            raise ValueError(f"{member.size} bytes")
        content = os.pread(descriptor, member.size, member.offset_data)
        value = int(content) if field == ".cls" else find_label(json.loads(content))
        numbers = [] if value is None else value if isinstance(value, list) else [value]
        if not all(is_whole(each) and 0 <= each < MAX_CLASSES for each in numbers):
            raise ValueError(str(value)[:40])
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path}: {member.name} holds no label that can be meant ({summarise_error(error)}), and a class number from 0 to "
            f"{MAX_CLASSES - 1} was needed: write the shard again."
        ) from None
    return value


def find_label(content: Any) -> Any:
    return next((content[field] for field in LABEL_FIELDS if isinstance(content, dict) and field in content), None)
