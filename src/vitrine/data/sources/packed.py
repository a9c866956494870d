"""The packed format of `vitrine data pack`: resized images as plain pixels in one memory-mapped file, with an index.

images.bin    pixels of all images in sequence, (H, W, C) bytes each
index.npz     offset, height and width of each image, labels and names
pack.json     format, splits, class names, stamps of the original files, and checksums of all three files

The first use of a pack reads images.bin through and compares its checksum; after that its size and time are compared. Packs of
format 1 have no checksums.
"""

import io
import json
import math
import os
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from vitrine.core.checksums import compute_crc, hash_bytes, verify_once
from vitrine.core.config_checks import is_whole
from vitrine.core.console import join_names, summarise_error, warn_user
from vitrine.data.dataset_format import DatasetFormat
from vitrine.data.image import MAX_PIXELS
from vitrine.data.source import MAX_BLOCK_SIDE, Labels, PackedStrings, Source
from vitrine.data.sources.shards import read_stamp

IMAGES, INDEX, DESCRIPTION = OWN_FILES = "images.bin", "index.npz", "pack.json"
FORMAT_VERSION = 2
MAX_STAMPS = 10_000
GONE = [-1, -1]  # the stamp of a missing file

INTEGER_ARRAYS = ("offsets", "heights", "widths", "name_starts", "labels", "label_starts")
ARRAYS = dict.fromkeys(INTEGER_ARRAYS, np.int64) | {"name_bytes": np.uint8}


@dataclass(frozen=True)
class PackDescription:
    """The content of `pack.json`."""

    format: int
    num_images: int
    num_bytes: int
    """Size of `images.bin`."""
    num_channels: int
    size: int
    """Largest short side."""
    class_names: list[str]
    splits: dict[str, list[int]]
    """Index range (start, stop) of each split; empty if the data has no splits."""
    data: str
    """Where the original data was."""
    stamps: dict[str, list[int]]
    """Size and modification time of the original folders and of up to 10,000 of the files."""
    checksums: dict[str, str] = field(default_factory=dict)
    """Of `images.bin` and `index.npz`, and of all other fields here; empty in format 1."""

    def with_checksums(self, images: str, index: str) -> "PackDescription":
        """Add the checksums of both files and of this description."""
        complete = replace(self, checksums={IMAGES: images, INDEX: index})
        return replace(complete, checksums={**complete.checksums, DESCRIPTION: complete.compute_checksum()})

    def compute_checksum(self) -> str:
        """Hash all fields but this checksum itself."""
        others = {name: value for name, value in self.checksums.items() if name != DESCRIPTION}
        return hash_bytes(json.dumps({**vars(self), "checksums": others}, sort_keys=True).encode())


class PackedSource(Source):
    """Images of a packed set, read from the memory map: a crop reads only the pixels that it needs."""

    def __init__(self, path: Path, description: PackDescription, index: dict[str, np.ndarray], start: int, stop: int) -> None:
        self.path = path
        self.num_channels = description.num_channels
        self.class_names = tuple(description.class_names)
        self.offsets, self.heights, self.widths = (index[name][start:stop] for name in ("offsets", "heights", "widths"))
        self.names = PackedStrings(index["name_starts"], index["name_bytes"]).slice(start, stop)
        self.labels = Labels(index["labels"], index.get("label_starts")).take(np.arange(start, stop))
        self.pixels: np.ndarray | None = None  # see `map`
        side = max(self.heights.max(initial=0), self.widths.max(initial=0))
        self.is_block = side <= MAX_BLOCK_SIDE and (self.heights == side).all() and (self.widths == side).all()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "pixels": None}

    def map(self) -> np.ndarray:
        """Return the memory map of images.bin, opened on first use in each process."""
        if self.pixels is None:
            self.pixels = np.memmap(self.path / IMAGES, dtype=np.uint8, mode="r")
        return self.pixels

    def fetch(self, index: int) -> np.ndarray:
        """Return the pixels of one image from the memory map, for `Source.read`."""
        offset, height, width = (int(values[index]) for values in (self.offsets, self.heights, self.widths))
        pixels = self.map()[offset : offset + height * width * self.num_channels]
        return pixels.reshape(height, width, self.num_channels)

    def name(self, index: int) -> str:
        return self.names[index]

    def files(self) -> list[Path]:
        return [self.path / name for name in OWN_FILES]

    def read_block(self, indices: np.ndarray) -> np.ndarray | None:
        """Read many images at once; only where all are small squares of one size, which lie one after another."""
        if not self.is_block:
            return None
        shape = int(self.heights[0]), int(self.widths[0]), self.num_channels
        start, num_bytes = int(self.offsets[0]), len(self) * math.prod(shape)
        return self.map()[start : start + num_bytes].reshape(-1, *shape)[indices]


def is_packed(path: Path) -> bool:
    """Whether a folder is a packed set. Two of its three files are enough; the error then names the missing one."""
    return sum(os.path.isfile(path / name) for name in OWN_FILES) >= 2


def list_packed_splits(path: Path) -> tuple[str, ...]:
    return tuple(read_description(path).splits)


def open_packed(path: Path, split: str | None) -> PackedSource:
    """Open one split, or all images where there are no splits."""
    description = read_description(path)
    actual = (path / IMAGES).stat().st_size if (path / IMAGES).is_file() else 0
    if actual != description.num_bytes:
        raise ValueError(f"{path / IMAGES} has {actual} bytes; expected {description.num_bytes}: pack the data again.")
    index = read_index(path, description)
    if description.checksums:
        expected = description.checksums[IMAGES]
        verify_once(path / IMAGES, expected, lambda: check_images(path / IMAGES, expected))
    warn_if_changed(path, description)
    start, stop = (0, description.num_images) if split is None else description.splits[split]
    return PackedSource(path, description, index, start, stop)


def read_description(path: Path) -> PackDescription:
    """Read and check pack.json."""
    try:
        content = json.loads((path / DESCRIPTION).read_text(encoding="utf-8"))
        description = PackDescription(**content)
        check_description(description)
    except (OSError, ValueError, TypeError, RecursionError) as error:
        problem = f"{path / DESCRIPTION} is not by `vitrine data pack` ({summarise_error(error)})"
        raise ValueError(f"{problem}: pack the data again.") from None
    return description


def check_description(description: PackDescription) -> None:
    """Raise ValueError if a field has a wrong type or range: the file may have been edited, or come from a stranger."""
    if description.format not in (1, FORMAT_VERSION):
        raise ValueError(f"format {description.format!r}; expected {FORMAT_VERSION}, or 1 of former versions")
    if set(description.checksums) != (set() if description.format == 1 else set(OWN_FILES)):
        raise ValueError("checksums must be those of its files, or empty in format 1")
    numbers = (description.num_images, description.num_bytes, description.size, description.num_channels)
    if not all(is_whole(number) and number >= 0 for number in numbers) or description.num_channels not in (1, 3):
        raise ValueError("num_images, num_bytes, size and num_channels must be whole numbers, the last 1 or 3")
    names = description.class_names
    if not isinstance(names, list) or not all(isinstance(name, str) for name in [*names, description.data]):
        raise ValueError("class_names must be a list of texts, and data a text")
    if not isinstance(description.splits, dict) or not isinstance(description.stamps, dict):
        raise ValueError("splits and stamps must be objects")
    for start, stop in description.splits.values():
        if not (is_whole(start) and is_whole(stop) and 0 <= start <= stop <= description.num_images):
            raise ValueError("splits must lie within the images")
    ordered = sorted(description.splits.values())
    if any(start < stop for (_, stop), (start, _) in pairwise(ordered)):
        raise ValueError("splits must not overlap: an image would be trained and tested on")
    for size, time in description.stamps.values():
        if not (is_whole(size) and is_whole(time)):
            raise ValueError("stamps must be pairs of whole numbers")
    if description.checksums and description.checksums.get(DESCRIPTION) != description.compute_checksum():
        raise ValueError("it was changed: it does not match its checksum")


def read_index(path: Path, description: PackDescription) -> dict[str, np.ndarray]:
    """Read and check index.npz."""
    try:
        stored = (path / INDEX).read_bytes()
        if description.checksums and hash_bytes(stored) != description.checksums[INDEX]:
            raise ValueError("it does not match its checksum")
        with np.load(io.BytesIO(stored), allow_pickle=False) as content:
            index = {name: content[name] for name in ARRAYS if name in content.files}
        check_index(index, description)
    except Exception as error:  # zipfile and NumPy raise all kinds of errors on damaged files
        problem = f"{path / INDEX} does not fit the packed images ({summarise_error(error)})"
        raise ValueError(f"{problem}: pack the data again.") from None
    return index


def check_images(path: Path, expected: str) -> None:
    """Raise ValueError if images.bin has another checksum than it was written with."""
    if compute_crc(path) != expected:
        raise ValueError(f"{path} was damaged or changed: it does not match its checksum; pack the data again.")


def check_index(index: dict[str, np.ndarray], description: PackDescription) -> None:
    """Raise ValueError if the index does not fit the images, or points outside of them."""
    for name, dtype in ARRAYS.items():
        if name in index and (index[name].dtype != dtype or index[name].ndim != 1):
            raise ValueError(f"{name} has a wrong type")
    count = description.num_images
    heights, widths, offsets = index["heights"], index["widths"], index["offsets"]
    if any(len(array) != count for array in (heights, widths, offsets)):
        raise ValueError("the number of offsets or sizes is wrong")
    sides = np.concatenate([heights, widths])
    if sides.min(initial=1) < 1 or sides.max(initial=1) > MAX_PIXELS:
        raise ValueError("image sizes are out of range")
    lengths = heights * widths * description.num_channels
    if (offsets != np.cumsum(lengths) - lengths).any() or lengths.sum() != description.num_bytes:
        raise ValueError("offsets do not follow one another")
    require_runs(index["name_starts"], count, len(index["name_bytes"]))
    labels = index["labels"]
    if "label_starts" in index:
        require_runs(index["label_starts"], count, len(labels))
    elif len(labels) != count:
        raise ValueError("the number of labels is wrong")
    if len(labels) and not 0 <= labels.min() <= labels.max() < len(description.class_names):
        raise ValueError("labels are out of range")


def require_runs(starts: np.ndarray, count: int, end: int) -> None:
    """Raise ValueError unless `starts` divides 0..end into `count` consecutive runs."""
    is_run = len(starts) == count + 1 and starts[0] == 0 and starts[-1] == end
    if not is_run or (np.diff(starts) < 0).any():
        raise ValueError("names or labels do not follow one another")


def take_stamps(data: str, files: list[Path]) -> dict[str, list[int]]:
    """Return size and modification time of the files, evenly sampled if there are many, and of their folders.

    Adding, removing or renaming a file changes its folder's time: of many files, only one overwritten in place goes unnoticed.
    """
    names = {os.path.abspath(file) for file in (files[:: -(-len(files) // MAX_STAMPS)] if files else ())}
    if os.path.isdir(data):  # the folder of a single file may hold anything
        root = Path(os.path.abspath(data))
        parents = {Path(os.path.abspath(file)).parent for file in files}
        # Parents too: a new class or split changes the folder that it is in.
        folders = {folder for parent in parents for folder in (parent, *parent.parents)}
        names |= {str(folder) for folder in folders if folder.is_relative_to(root)}
    return {name: stamp_entry(name) for name in sorted(names)}


def warn_if_changed(path: Path, description: PackDescription) -> None:
    """Warn if the original data has changed since it was packed; not if none of it is here, e.g. on another machine."""
    stamps = {name: stamp_entry(name) for name in description.stamps}
    changed = [name for name, stamp in description.stamps.items() if stamps[name] != stamp]
    if changed and any(stamp != GONE for stamp in stamps.values()):
        change = f"{description.data} has changed since it was packed into {path} ({join_names(changed, 3)})"
        warn_user(f"{change}: pack it again, unless the images are still the same.")


def stamp_entry(name: str) -> list[int]:
    """Return size (-1 for a folder) and modification time in ns; GONE for a missing file."""
    try:
        size, modified_ns = read_stamp(name)
    except (OSError, ValueError):  # ValueError: the name contains a null byte
        return GONE
    return [-1 if os.path.isdir(name) else size, modified_ns]


FORMAT = DatasetFormat("packed", is_packed, list_packed_splits, open_packed)
