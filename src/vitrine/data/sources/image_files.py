"""Image files on disk: FileSource, and walking of folders.

Images are recognised by their file names. Links are followed, and each folder is read once, however many links lead to it.
Paths below a root are strings with forward slashes: a Path for each of millions of files would be slow.
"""

import errno
import glob
import os
import stat
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TextIO

from vitrine.core.console import join_names, progress_bar, warn_user
from vitrine.data.image import HEIF_ADVICE, HEIF_SUFFIXES, IMAGE_SUFFIXES, register_heif
from vitrine.data.source import Labels, PackedStrings, Source

# Files that are expected beside images: no warning is given that they are left out.
SIDE_FILES = {"thumbs.db", "desktop.ini", "license"}
SIDE_SUFFIXES = {".txt", ".json", ".csv", ".md"}

FolderId = tuple[int, int]
"""Device and inode: the same for a folder and all links to it."""


class FileSource(Source):
    """One image per file, named by its path below `root`."""

    def __init__(
        self, root: Path, paths: Sequence[str], labels: Labels, class_names: tuple[str, ...], side_files: Sequence[Path] = ()
    ) -> None:
        """Take paths below `root` or absolute ones; `side_files` are the files that labels and class names come from."""
        assert len(paths) == len(labels)
        self.names = PackedStrings.pack(paths)
        self.root = root.absolute()
        self.labels = labels
        self.class_names = class_names
        self.side_files = [path.absolute() for path in side_files]

    def fetch(self, index: int) -> bytes:
        with open(os.path.join(self.root, self.name(index)), "rb", buffering=0, opener=open_regular) as file:
            return file.read()

    def name(self, index: int) -> str:
        return self.names[index]

    def image_path(self, index: int) -> Path | None:
        return self.root / self.name(index)

    def files(self) -> list[Path]:
        """Return the image files, in order, and then the side files."""
        return [*(self.root / self.name(index) for index in range(len(self))), *self.side_files]


def open_regular(path: str, flags: int) -> int:
    """Open a regular file for `open`; raise OSError for a pipe or a device, which might never end."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)  # without it, opening a pipe waits for a writer
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return descriptor


def open_paths(paths: Sequence[Path]) -> FileSource:
    """Open files, and all images in folders and subfolders, each once, without labels; names are the paths as given."""
    names: dict[str, None] = {}
    for path in paths:
        inside = list_inside(path) if path.is_dir() else [str(path)]
        names.update(dict.fromkeys(inside))
    return FileSource(Path.cwd(), list(names), Labels.none_each(len(names)), ())


def expand_paths(paths: Sequence[Path], names: TextIO) -> list[Path]:
    """Replace patterns such as photos/*.jpg by the files they match, and `-` by the file names in a text stream.

    The names are one per line, or separated by null characters as `find -print0` writes them.
    """
    expanded: list[Path] = []
    for path in paths:
        if str(path) == "-":
            text = names.read()
            lines = text.split("\0") if "\0" in text else text.splitlines()
            expanded.extend(Path(line) for line in lines if line)
        elif glob.has_magic(str(path)) and not path.exists():
            matches = sorted(glob.glob(str(path), recursive=True))
            if not matches:
                raise FileNotFoundError(f"{path} matches no file: check the pattern.")
            expanded.extend(map(Path, matches))
        else:
            expanded.append(path)
    return expanded


def list_inside(folder: Path) -> list[str]:
    """Return the paths of all images in a folder and its subfolders; other files are left out with a warning."""
    others: list[str] = []
    images = progress_bar(walk(str(folder), "", set(), others), None, f"Counting images in {folder.name}", is_delayed=True)
    inside = [str(folder / name) for name in sorted(images)]
    if not inside:
        found = f" (but {count_kinds(others)})" if others else ""
        raise ValueError(f"{folder} contains no images, including subfolders{found}: use another folder, or files.")
    warn_left_out(str(folder), others)
    return inside


def warn_left_out(root: str, others: Sequence[str]) -> None:
    """Warn about files in an image folder that are not images, with the number of each kind."""
    if others:
        examples = join_names(sorted(others), 3)
        warn_user(f"{root}: left out {len(others)} files that are not images, {count_kinds(others)} ({examples}).")


def count_kinds(names: Sequence[str]) -> str:
    """Return the number of files of each kind, the most frequent first: 3 .heic (advice), 1 .svg, 1 without extension."""
    counts = Counter(os.path.splitext(name)[1].lower() for name in names)
    kinds = []
    for suffix, count in sorted(counts.items(), key=lambda each: (-each[1], each[0])):
        advice = f" (to read them: {HEIF_ADVICE})" if suffix in HEIF_SUFFIXES else ""
        kinds.append(f"{count:,} {suffix or 'without extension'}{advice}")
    return join_names(kinds, 6)


@dataclass(frozen=True)
class Level:
    """Entries of one folder, as sorted names."""

    images: list[str]
    full: list[str]
    """Folders that contain an image at any depth."""
    direct: list[str]
    """Full folders that contain an image themselves, not only in their subfolders."""
    empty: list[str]
    """Folders without an image at any depth."""
    others: list[str]
    """Files that are neither images nor expected beside images, as paths below the root."""


def read_level(root: str, part: str = "") -> Level:
    """List the folder `part` below the root, and find out which of its folders contain images."""
    folder = join_path(root, part)
    images, folders, others = list_entries(folder)
    above = {folder_id(root), folder_id(folder)}
    folders = [inner for inner in folders if folder_id(join_path(folder, inner)) not in above]  # links that lead up again
    tracked = progress_bar(folders, len(folders), f"Looking for images in {os.path.basename(folder)}", is_delayed=True)
    nearest = {inner: find_image(join_path(folder, inner), above) for inner in tracked}
    return Level(
        images=images,
        full=[inner for inner in folders if nearest[inner] is not None],
        direct=[inner for inner in folders if nearest[inner] == join_path(folder, inner)],
        empty=[inner for inner in folders if nearest[inner] is None],
        others=[join_path(part, other) for other in others],
    )


def list_images(root: str, part: str, level: Level, others: list[str]) -> list[str]:
    """Return the sorted paths below the root of all images in `part`; other files are added to `others`."""
    if part:
        others.extend(level.others)
    above = {folder_id(root), folder_id(join_path(root, part))}
    inside = (walk(root, join_path(part, folder), {*above}, others) for folder in level.full)
    title = f"Counting images in {os.path.basename(join_path(root, part))}"
    names = progress_bar(chain.from_iterable(inside), None, title, is_delayed=True)
    return sorted([*(join_path(part, image) for image in level.images), *names])


def walk(root: str, folder: str, seen: set[FolderId], others: list[str]) -> Iterator[str]:
    """Yield the images in a folder and its subfolders, except those already seen; other files are added to `others`."""
    waiting = [folder]
    while waiting:
        folder = waiting.pop()
        if not add_if_new(join_path(root, folder), seen):
            continue
        images, folders, unknown = list_entries(join_path(root, folder))
        yield from (join_path(folder, image) for image in images)
        others.extend(join_path(folder, other) for other in unknown)
        waiting.extend(join_path(folder, inner) for inner in reversed(folders))


def find_image(
    folder: str, seen: Collection[FolderId], max_folders: int | None = None, max_entries: int | None = None
) -> str | None:
    """Return the first folder with an image, the folder itself before its subfolders; None if there is none.

    The search ends after `max_folders` folders, and looks at the first `max_entries` entries of each.
    """
    seen = set(seen)
    waiting = deque([folder])
    while waiting and (max_folders is None or len(seen) < max_folders):
        folder = waiting.popleft()
        if not add_if_new(folder, seen):
            continue
        for entry in islice(scan_folder(folder), max_entries):
            kind = entry_kind(entry)
            if kind == "image":
                return folder
            if kind == "folder":
                waiting.append(join_path(folder, entry.name))
    return None


def list_folder(folder: Path) -> list[str]:
    """Return the sorted names of a folder's entries, without hidden ones."""
    return sorted(entry.name for entry in scan_folder(str(folder)) if not entry.name.startswith("."))


def list_entries(folder: str) -> tuple[list[str], list[str], list[str]]:
    """Return the sorted names of images, folders and unexpected files in a folder."""
    names: dict[str, list[str]] = {"image": [], "folder": [], "other": [], "side file": []}
    for entry in scan_folder(folder):
        names[entry_kind(entry)].append(entry.name)
    return sorted(names["image"]), sorted(names["folder"]), sorted(names["other"])


def entry_kind(entry: os.DirEntry[str]) -> str:
    """Return image, folder, side file or other, by the name of a folder's entry."""
    lower = entry.name.lower()
    if lower.startswith(".") or lower == "__macosx":
        return "side file"
    try:
        if entry.is_dir():
            return "folder"
        is_file = entry.is_file() or entry.is_symlink()  # a broken link is an image that fails when it is read
    except OSError:  # a link to itself
        is_file = True
    suffix = os.path.splitext(lower)[1]
    if is_file and (suffix in IMAGE_SUFFIXES or (suffix in HEIF_SUFFIXES and register_heif())):
        return "image"
    return "side file" if lower in SIDE_FILES or suffix in SIDE_SUFFIXES else "other"


def add_if_new(folder: str, seen: set[FolderId]) -> bool:
    """Add a folder to the seen ones and return whether it was new."""
    num_seen = len(seen)
    seen.add(folder_id(folder))
    return len(seen) > num_seen


def folder_id(folder: str) -> FolderId:
    """Return what identifies a folder, to notice links that lead back to it."""
    with readable_listing_errors(folder):
        status = os.stat(folder)
    return status.st_dev, status.st_ino


def scan_folder(folder: str) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of a folder, unsorted, with errors that name it."""
    with readable_listing_errors(folder), os.scandir(folder) as entries:
        yield from entries


@contextmanager
def readable_listing_errors(folder: str) -> Iterator[None]:
    """Turn errors of listing a folder into one sentence that names it."""
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(f"{folder} does not exist; expected a folder of images: check the path.") from None
    except OSError as error:
        raise ValueError(f"{folder} cannot be listed ({error.strerror}): make it readable, or move it away.") from None


def join_path(folder: str, name: str) -> str:
    """Join paths, either of which may be empty, with a forward slash."""
    return f"{folder}/{name}" if folder and name else folder or name
