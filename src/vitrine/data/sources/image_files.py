"""Image files on disk, walking folders.

Images that are files below one folder, each known by its path within it.
What lies in a folder: plain names, or the images in it and below, told from other files by their names.

Links are followed, and each folder counts once, however many links lead to it.
Image files wherever they lie, called as they were given; without labels.
"""

import errno
import os
import stat
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from vitrine.data.source import Labels, PackedStrings, Source


class FileSource(Source):
    """One image a file; its name is its path below `root`, with forward slashes."""

    def __init__(
        self,
        root: Path,
        paths: Sequence[str],
        labels: Labels,
        class_names: tuple[str, ...],
        side_files: Sequence[Path] = (),
    ) -> None:
        """`side_files` are those that say what the images show: a change of them is one of the data."""
        assert len(paths) == len(labels)
        self.names = PackedStrings.pack(paths)
        self.root = root.absolute()
        self.labels = labels
        self.class_names = class_names
        self.side_files = [path.absolute() for path in side_files]

    def fetch(self, index: int) -> bytes:
        # Joined as text, because a Path for each image would cost more than the check in `open_regular`.
        with open(os.path.join(self.root, self.name(index)), "rb", buffering=0, opener=open_regular) as file:
            return file.read()

    def name(self, index: int) -> str:
        return self.names[index]

    def files(self) -> list[Path]:
        """Those of the images, in their order, and then the side files."""
        return [*(self.root / self.name(index) for index in range(len(self))), *self.side_files]


def open_regular(path: str, flags: int) -> int:
    """Opens for `open`, but no pipe, which would be waited for, and no device, which may never end."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)  # otherwise a pipe is waited for here already
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return descriptor


IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".avif", ".jp2"}

# Files that lie beside images for good reasons: nobody takes them for images that were forgotten.
SIDE_FILES = {"thumbs.db", "desktop.ini", "license"}
SIDE_SUFFIXES = {".txt", ".json", ".csv", ".md"}


@dataclass(frozen=True)
class Level:
    """What lies directly in a folder where images, classes or splits are expected; names, sorted."""

    images: list[str]
    full: list[str]
    """Folders that hold an image at some depth."""
    empty: list[str]
    others: list[str]


def look_into(root: str, part: str = "") -> Level:
    folder = join(root, part)
    images, folders, others = list_kinds(folder)
    above = {identify(root), identify(folder)}
    folders = [inner for inner in folders if identify(join(folder, inner)) not in above]  # links that lead up again
    full = [inner for inner in folders if holds_image(join(folder, inner), above)]
    return Level(images, full, sorted(set(folders) - set(full)), [join(part, other) for other in others])


def list_images(root: str, part: str, level: Level, others: list[str]) -> list[str]:
    """The paths of all images in the part from the root, sorted; what is no image is added to `others`."""
    if part:
        others.extend(level.others)
    names = [join(part, image) for image in level.images]
    for folder in level.full:
        names.extend(walk(root, join(part, folder), {identify(root), identify(join(root, part))}, others))
    return sorted(names)


def walk(root: str, folder: str, seen: set[tuple[int, int]], others: list[str]) -> Iterator[str]:
    """The images at any depth in the folder, but for folders that were seen."""
    waiting = [folder]
    while waiting:
        folder = waiting.pop()
        if not is_new(join(root, folder), seen):
            continue
        images, folders, unknown = list_kinds(join(root, folder))
        yield from (join(folder, image) for image in images)
        others.extend(join(folder, other) for other in unknown)
        waiting.extend(join(folder, inner) for inner in reversed(folders))


def holds_image(
    folder: str, seen: Collection[tuple[int, int]], max_folders: int | None = None, max_entries: int | None = None
) -> bool:
    """Whether there is an image at any depth, near ones first, within so many folders and so many entries of each."""
    seen = set(seen)
    waiting = deque([folder])
    while waiting and (max_folders is None or len(seen) < max_folders):
        folder = waiting.popleft()
        if not is_new(folder, seen):
            continue
        for entry in islice(scan(folder), max_entries):
            kind = entry_kind(entry)
            if kind == "image":
                return True
            if kind == "folder":
                waiting.append(join(folder, entry.name))
    return False


def list_folder(folder: Path) -> list[str]:
    """Names of what the folder holds, sorted, without hidden ones; nothing is asked of the files themselves."""
    return sorted(entry.name for entry in scan(str(folder)) if not entry.name.startswith("."))


def list_kinds(folder: str) -> tuple[list[str], list[str], list[str]]:
    """The names of the images, of the folders and of the files that nobody would expect, each sorted."""
    names: dict[str, list[str]] = {"image": [], "folder": [], "other": [], "side file": []}
    for entry in scan(folder):
        names[entry_kind(entry)].append(entry.name)
    return sorted(names["image"]), sorted(names["folder"]), sorted(names["other"])


def entry_kind(entry: os.DirEntry[str]) -> str:
    """image, folder, side file or other, by the name."""
    lower = entry.name.lower()
    if lower.startswith(".") or lower == "__macosx":
        return "side file"
    try:
        if entry.is_dir():
            return "folder"
        # A link that leads nowhere is an image that reading will not find, and will say so.
        is_file = entry.is_file() or entry.is_symlink()
    except OSError:  # a link to itself
        is_file = True
    suffix = os.path.splitext(lower)[1]
    if is_file and suffix in IMAGE_SUFFIXES:
        return "image"
    return "side file" if lower in SIDE_FILES or suffix in SIDE_SUFFIXES else "other"


def is_new(folder: str, seen: set[tuple[int, int]]) -> bool:
    """Whether the folder has not been seen; now it has."""
    known = len(seen)
    seen.add(identify(folder))
    return len(seen) > known


def identify(folder: str) -> tuple[int, int]:
    """What is the same for a folder and all links to it."""
    with explain_listing(folder):
        found = os.stat(folder)
    return found.st_dev, found.st_ino


def scan(folder: str) -> Iterator[os.DirEntry[str]]:
    with explain_listing(folder), os.scandir(folder) as entries:
        yield from entries


@contextmanager
def explain_listing(folder: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(f"{folder} does not exist, and a folder of images was needed: check the path.") from None
    except OSError as error:
        raise ValueError(
            f"{folder} cannot be listed ({error.strerror}), and images were looked for in it: make it readable, or move it "
            "away."
        ) from None


def join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder and name else folder or name


class PathsSource(Source):
    def __init__(self, paths: Sequence[str]) -> None:
        self.names = PackedStrings.pack(paths)
        self.labels = Labels.none_each(len(paths))
        self.class_names = ()

    def fetch(self, index: int) -> bytes:
        with open(self.name(index), "rb", buffering=0, opener=open_regular) as file:
            return file.read()

    def name(self, index: int) -> str:
        return self.names[index]

    def files(self) -> list[Path]:
        return [Path(self.name(index)) for index in range(len(self))]


def open_paths(paths: Sequence[Path]) -> PathsSource:
    """Files as they are, of folders the images at any depth, each once. What is no image is found out when it is read."""
    found: dict[str, None] = {}
    for path in paths:
        inside = [str(path / name) for name in sorted(walk(str(path), "", set(), []))] if path.is_dir() else [str(path)]
        if not inside:
            raise ValueError(f"{path} has no image in it, at whatever depth: give another folder, or files.")
        found.update(dict.fromkeys(inside))
    return PathsSource(list(found))
