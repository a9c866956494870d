"""The caches in the user's cache folder: where each kind is, how large it is, and clearing it."""

import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from vitrine.core.files import find_cache_folder

CacheKind = Literal["features", "glyphs", "image-stats", "verified"]

FOLDERS: dict[CacheKind, str] = {"features": "features", "glyphs": "glyphs", "image-stats": "surveys", "verified": "verified"}
# Names of our files: $VITRINE_CACHE may be a folder that holds other things too.
NAMES: dict[CacheKind, str] = {
    "features": r"[0-9a-f]{32}(-[0-9a-f]{32}\.safetensors|\.images)",
    "glyphs": r"[0-9a-f]{32}-\d{4}\.npz",
    "image-stats": r"[0-9a-f]{32}-\d+/\d{6,}\.npz",
    "verified": r"[0-9a-f]{32}",
}
PARTIAL = re.compile(r"\.([^/]+)\.vitrine-partial(-\d+)?$")  # left by a process that was killed while writing


@dataclass(frozen=True)
class CacheInfo:
    """Location and size of one kind of cache."""

    kind: CacheKind
    path: Path
    num_files: int
    num_bytes: int


def cache_folder(kind: CacheKind) -> Path:
    return find_cache_folder() / FOLDERS[kind]


def list_caches(kinds: Collection[CacheKind] = ()) -> list[CacheInfo]:
    """Return location, number of files and size of each kind of cache (default: all kinds): what `vitrine cache` shows."""
    infos = []
    for kind in resolve_kinds(kinds):
        sizes = [size for _, size in find_cache_files(kind)]
        infos.append(CacheInfo(kind, cache_folder(kind), len(sizes), sum(sizes)))
    return infos


def clear_caches(kinds: Collection[CacheKind] = ()) -> list[CacheInfo]:
    """Delete the files of these kinds of caches (default: all kinds), and return what was deleted of each.

    Everything is computed again when it is needed. A process that is running may go on: it only finds less in the cache.
    """
    infos = []
    for kind in resolve_kinds(kinds):
        num_files = num_bytes = 0
        for path, size in list(find_cache_files(kind)):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise OSError(f"Cannot delete {path} ({error.strerror}): check the permissions of {path.parent}.") from None
            num_files, num_bytes = num_files + 1, num_bytes + size
            with suppress(OSError):
                if path.parent != cache_folder(kind):
                    path.parent.rmdir()  # once it is empty
        infos.append(CacheInfo(kind, cache_folder(kind), num_files, num_bytes))
    return infos


def resolve_kinds(kinds: Collection[CacheKind]) -> list[CacheKind]:
    """Return the given kinds in the order of the table, all if none is given; raise ValueError for an unknown one."""
    unknown = sorted(set(kinds) - set(FOLDERS))
    if unknown:
        raise ValueError(f"There is no cache {unknown[0]!r}; expected {', '.join(get_args(CacheKind))}.")
    return [kind for kind in FOLDERS if kind in kinds or not kinds]


def find_cache_files(kind: CacheKind) -> Iterator[tuple[Path, int]]:
    """Yield the files of a cache with their sizes."""
    folder, pattern = cache_folder(kind), re.compile(NAMES[kind])
    for path in folder.rglob("*"):
        name = PARTIAL.sub(r"\1", path.relative_to(folder).as_posix())
        if pattern.fullmatch(name):
            with suppress(FileNotFoundError):  # another process may have deleted it
                yield path, path.stat().st_size
