"""Source: images by index with labels and class names. Also Labels, ArraySource for images in memory, and PackedStrings.

Order, sharding and augmentation are not part of a source, so that a new dataset format is one small file.
"""

import mmap
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitrine.data.image import BadImage, LazyImage

# Images in memory are augmented as whole batches up to this side; larger ones would gain nothing.
MAX_BLOCK_SIDE = 64

Label = int | tuple[int, ...]


class Labels:
    """Labels of all N images: one class each, or a set of classes each, which may be empty."""

    def __init__(self, values: np.ndarray, starts: np.ndarray | None = None) -> None:
        """Take one label per image as `values` (N), or sets: those of image i are values[starts[i] : starts[i + 1]]."""
        self.values = values
        self.starts = starts

    @classmethod
    def one_each(cls, labels: Sequence[int] | np.ndarray) -> "Labels":
        """Make labels of exactly one class per image."""
        return cls(np.asarray(labels, dtype=np.int64).reshape(-1))

    @classmethod
    def several_each(cls, labels: Iterable[Sequence[int] | np.ndarray]) -> "Labels":
        """Make labels of any number of classes per image, from one list per image."""
        lists = [np.asarray(each, dtype=np.int64).reshape(-1) for each in labels]
        return cls.from_counts(np.concatenate([np.zeros(0, np.int64), *lists]), [len(each) for each in lists])

    @classmethod
    def from_counts(cls, values: np.ndarray, counts: Sequence[int] | np.ndarray) -> "Labels":
        """Make labels of any number of classes per image, from all labels in a row and the count of each image."""
        return cls(values, np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)]))

    @classmethod
    def none_each(cls, num_images: int) -> "Labels":
        """Make labels of unlabelled images."""
        return cls.from_counts(np.zeros(0, np.int64), np.zeros(num_images, np.int64))

    @classmethod
    def concatenate(cls, parts: Sequence["Labels"]) -> "Labels":
        """Join labels of several sources, which must all have one label per image or all sets of labels."""
        values = np.concatenate([part.values for part in parts])
        counts = [np.diff(part.starts) for part in parts if part.starts is not None]
        return cls.from_counts(values, np.concatenate(counts)) if counts else cls(values)

    @property
    def has_several(self) -> bool:
        """Return whether images have sets of labels, which are empty in unlabelled data, instead of exactly one each."""
        return self.starts is not None

    def __len__(self) -> int:
        return len(self.values) if self.starts is None else len(self.starts) - 1

    def __getitem__(self, index: int) -> Label:
        if self.starts is None:
            return int(self.values[index])
        return tuple(self.values[self.starts[index] : self.starts[index + 1]].tolist())

    def as_tuple(self, index: int) -> tuple[int, ...]:
        """Return all labels of an image as a tuple, also where images have exactly one."""
        label = self[index]
        return label if isinstance(label, tuple) else (label,)

    def take(self, indices: np.ndarray) -> "Labels":
        """Return the labels of some images."""
        if self.starts is None:
            return Labels(self.values[indices])
        counts = np.diff(self.starts)[indices]
        shifts = np.repeat(self.starts[:-1][indices] - (np.cumsum(counts) - counts), counts)
        return Labels.from_counts(self.values[shifts + np.arange(len(shifts))], counts)

    def to_targets(self, indices: np.ndarray, num_classes: int) -> np.ndarray:
        """Return the targets of a batch: classes int64 (B), or for sets of labels float32 (B, K) of 0 and 1."""
        taken = self.take(indices)
        if taken.starts is None:
            return taken.values
        targets = np.zeros((len(indices), num_classes), dtype=np.float32)
        targets[np.repeat(np.arange(len(indices)), np.diff(taken.starts)), taken.values] = 1.0
        return targets


class Source(ABC):
    """Images by index, with labels. Sources can be pickled; files held open are opened again in the other process."""

    labels: Labels
    class_names: tuple[str, ...]
    """Names of the classes that labels refer to; empty for unlabelled data."""
    empty_folders: tuple[str, ...] = ()
    """Folders without images beside class folders, which did not become classes."""

    @abstractmethod
    def fetch(self, index: int) -> bytes | np.ndarray:
        """Return an image as stored: the bytes of an image file, or uint8 pixels (H, W) or (H, W, C)."""

    @abstractmethod
    def name(self, index: int) -> str:
        """Return the name of an image for errors and lists of files; it is unique within the source."""

    @abstractmethod
    def files(self) -> list[Path]:
        """Return the files that the source reads, so that changes can be detected; empty for generated images."""

    def image_path(self, index: int) -> Path | None:
        """Return the file that holds this image and nothing else; None if there is none, e.g. for images in an archive."""
        return None

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, index: int) -> tuple[LazyImage, Label]:
        """Return an image, decoded on demand, and its label."""
        if not 0 <= index < len(self):
            raise IndexError(f"index={index} must be at least 0 and below {len(self)}, the number of images.")
        name = self.name(index)
        try:
            content = self.fetch(index)
        except OSError as error:
            raise BadImage(f"{name} cannot be read ({error.strerror or error}): restore or remove it.") from None
        return LazyImage(content, name), self.labels[index]

    def read_block(self, indices: np.ndarray) -> np.ndarray | None:
        """Return a copy of pixels (B, H, W, C) if the images are in memory with one size; None: read them one by one."""
        return None


@dataclass(frozen=True)
class MappedFile:
    """Position of an array in a memory-mapped file, from which another process maps it again."""

    path: Path
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of_array(cls, array: np.ndarray) -> "MappedFile | None":
        """Return where a memory-mapped array is stored; None for an ordinary or an empty array."""
        if not isinstance(array, np.memmap) or array.filename is None or array.size == 0:
            return None
        base = np.frombuffer(array._mmap, np.uint8)  # pyright: ignore[reportAttributeAccessIssue]  (starts at a page boundary)
        start = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
        return cls(Path(array.filename), start + array.ctypes.data - base.ctypes.data, array.shape, array.strides)

    def open(self) -> np.ndarray:
        """Map the array read-only."""
        num_bytes = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True)) + 1
        flat = np.memmap(self.path, np.uint8, "r", self.offset, num_bytes)
        return np.ndarray(self.shape, np.uint8, flat, 0, self.strides)


class ArraySource(Source):
    """Images of one size in a uint8 array (N, H, W, C), which may be a memory map."""

    def __init__(
        self, pixels: np.ndarray, labels: Labels, class_names: tuple[str, ...], title: str, files: Sequence[Path] = ()
    ) -> None:
        """Name image i `title[i]`."""
        assert pixels.ndim == 4
        assert pixels.dtype == np.uint8
        assert len(pixels) == len(labels)
        self.pixels = pixels
        self.labels = labels
        self.class_names = class_names
        self.title = title
        self.own_files = list(files)
        self.mapped_file = MappedFile.of_array(pixels)

    def __getstate__(self) -> dict[str, Any]:
        """Leave memory-mapped pixels out of the pickle: the other process maps them again."""
        return vars(self) if self.mapped_file is None else {**vars(self), "pixels": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if self.mapped_file is not None:
            self.pixels = self.mapped_file.open()

    def fetch(self, index: int) -> np.ndarray:
        return self.pixels[index]

    def name(self, index: int) -> str:
        return f"{self.title}[{index}]"

    def files(self) -> list[Path]:
        return self.own_files

    def read_block(self, indices: np.ndarray) -> np.ndarray | None:
        return self.pixels[indices]


class PackedStrings:
    """Read-only sequence of strings in one array of bytes, for the names of millions of files.

    It takes less memory than a list, is pickled quickly, and stays shared after a fork, where reference counts of separate
    strings would copy page after page. Names that are not valid UTF-8 are kept unchanged.
    """

    def __init__(self, starts: np.ndarray, text: np.ndarray) -> None:
        """Take string i from text[starts[i] : starts[i + 1]], in UTF-8."""
        self.starts = starts
        self.text = text

    @classmethod
    def pack(cls, strings: Iterable[str]) -> "PackedStrings":
        """Encode strings into one array."""
        encoded = [string.encode("utf-8", "surrogateescape") for string in strings]
        starts = np.cumsum([0, *map(len, encoded)], dtype=np.int64)  # (N + 1)
        return cls(starts, np.frombuffer(b"".join(encoded), dtype=np.uint8))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, index: int) -> str:
        return self.text[self.starts[index] : self.starts[index + 1]].tobytes().decode("utf-8", "surrogateescape")

    def slice(self, start: int, stop: int) -> "PackedStrings":
        """Return strings start to stop (exclusive) without copying their bytes."""
        return PackedStrings(self.starts[start : stop + 1], self.text)
