"""Source contract, Labels, ArraySource, packed strings.

The contract of a source: images by number, each with its label, and the names of the classes.

Order, sharding and augmentation are outside it, so that a new kind of data is one small file.
Many names as one block of bytes instead of a string each.

It takes less memory, is quickly sent to another process, and stays shared after a fork, where counting references to
strings would copy page after page.
"""

import mmap
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitrine.data.image import BadImage, LazyImage

# Up to this side, images in memory are augmented as whole batches; larger ones gain nothing by it.
MAX_BLOCK_SIDE = 64

Label = int | tuple[int, ...]


class Labels:
    """The labels of all images: one class each, or any number of classes each, none included."""

    def __init__(self, values: np.ndarray, starts: np.ndarray | None = None) -> None:
        """`values` (N), or, with `starts` (N + 1), those of image i from starts[i] to starts[i + 1]."""
        self.values = values
        self.starts = starts

    @classmethod
    def one_each(cls, labels: Sequence[int] | np.ndarray) -> "Labels":
        return cls(np.asarray(labels, dtype=np.int64).reshape(-1))

    @classmethod
    def several_each(cls, labels: Iterable[Sequence[int] | np.ndarray]) -> "Labels":
        lists = [np.asarray(each, dtype=np.int64).reshape(-1) for each in labels]
        return cls.from_counts(np.concatenate([np.zeros(0, np.int64), *lists]), [len(each) for each in lists])

    @classmethod
    def from_counts(cls, values: np.ndarray, counts: Sequence[int] | np.ndarray) -> "Labels":
        """Several each: the labels of all images one after another, and how many each image has."""
        return cls(values, np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)]))

    @classmethod
    def none_each(cls, num_images: int) -> "Labels":
        return cls.from_counts(np.zeros(0, np.int64), np.zeros(num_images, np.int64))

    @classmethod
    def concatenate(cls, parts: Sequence["Labels"]) -> "Labels":
        """Of parts that all have one label each, or all several."""
        values = np.concatenate([part.values for part in parts])
        counts = [np.diff(part.starts) for part in parts if part.starts is not None]
        return cls.from_counts(values, np.concatenate(counts)) if counts else cls(values)

    @property
    def has_several(self) -> bool:
        """Whether images have sets of labels, which may be empty as in data without labels; False: exactly one each."""
        return self.starts is not None

    def __len__(self) -> int:
        return len(self.values) if self.starts is None else len(self.starts) - 1

    def __getitem__(self, index: int) -> Label:
        if self.starts is None:
            return int(self.values[index])
        return tuple(self.values[self.starts[index] : self.starts[index + 1]].tolist())

    def as_tuple(self, index: int) -> tuple[int, ...]:
        """All labels of an image, be it one."""
        label = self[index]
        return label if isinstance(label, tuple) else (label,)

    def take(self, indices: np.ndarray) -> "Labels":
        if self.starts is None:
            return Labels(self.values[indices])
        counts = np.diff(self.starts)[indices]
        shifts = np.repeat(self.starts[:-1][indices] - (np.cumsum(counts) - counts), counts)
        return Labels.from_counts(self.values[shifts + np.arange(len(shifts))], counts)

    def to_targets(self, indices: np.ndarray, num_classes: int) -> np.ndarray:
        """int64 (B), or float32 (B, K) with ones at the labels."""
        taken = self.take(indices)
        if taken.starts is None:
            return taken.values
        batch = np.zeros((len(indices), num_classes), dtype=np.float32)
        batch[np.repeat(np.arange(len(indices)), np.diff(taken.starts)), taken.values] = 1.0
        return batch


class Source(ABC):
    """Images by number. A source can be sent to another process: what it holds open, it opens again there."""

    labels: Labels
    class_names: tuple[str, ...]
    """Of the classes that labels count; empty where there are none."""

    @abstractmethod
    def fetch(self, index: int) -> bytes | np.ndarray:
        """The image as it is stored: the bytes of an image file, or pixels (H, W) or (H, W, C) as bytes."""

    @abstractmethod
    def name(self, index: int) -> str:
        """What errors and lists of files call the image; no other image of the source has the name."""

    @abstractmethod
    def files(self) -> list[Path]:
        """The files that it is made of, so that a change can be noticed; none for what is generated."""

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, index: int) -> tuple[LazyImage, Label]:
        """The image, whose pixels are decoded when asked for, and its label."""
        if not 0 <= index < len(self):
            raise IndexError(f"index={index} must be at least 0 and below {len(self)}, the number of images.")
        name = self.name(index)
        try:
            content = self.fetch(index)
        except OSError as error:
            reason = error.strerror or str(error)
            raise BadImage(f"{name} cannot be read ({reason}), and an image was needed: restore it, or remove it.") from None
        return LazyImage(content, name), self.labels[index]

    def read_block(self, indices: np.ndarray) -> np.ndarray | None:
        """Pixels (B, H, W, C), a copy, of images that lie in memory with one size; None: they are to be read one by one."""
        return None


@dataclass(frozen=True)
class FileMap:
    """Where in a file the bytes of an array are."""

    path: Path
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def map(self) -> np.ndarray:
        num_bytes = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True)) + 1
        flat = np.memmap(self.path, np.uint8, "r", self.offset, num_bytes)
        return np.ndarray(self.shape, np.uint8, flat, 0, self.strides)


def find_mapping(array: np.ndarray) -> FileMap | None:
    """None for an array that is not a map of a file, or is empty."""
    if not isinstance(array, np.memmap) or array.filename is None or array.size == 0:
        return None
    base = np.frombuffer(array._mmap, np.uint8)  # pyright: ignore[reportAttributeAccessIssue]  (begins at a page's boundary)
    start = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
    return FileMap(Path(array.filename), start + array.ctypes.data - base.ctypes.data, array.shape, array.strides)


class ArraySource(Source):
    """Images of one size in an array (N, H, W, C) of bytes, which may be a memory map."""

    def __init__(
        self, pixels: np.ndarray, labels: Labels, class_names: tuple[str, ...], title: str, files: Sequence[Path] = ()
    ) -> None:
        """`title` is what the images are called by, with their number behind it."""
        assert pixels.ndim == 4
        assert pixels.dtype == np.uint8
        assert len(pixels) == len(labels)
        self.pixels = pixels
        self.labels = labels
        self.class_names = class_names
        self.title = title
        self.own_files = list(files)
        self.mapping = find_mapping(pixels)

    def __getstate__(self) -> dict[str, Any]:
        """Pixels that are mapped from a file are mapped again elsewhere, not sent."""
        return vars(self) if self.mapping is None else {**vars(self), "pixels": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if self.mapping is not None:
            self.pixels = self.mapping.map()

    def fetch(self, index: int) -> np.ndarray:
        return self.pixels[index]

    def name(self, index: int) -> str:
        return f"{self.title}[{index}]"

    def files(self) -> list[Path]:
        return self.own_files

    def read_block(self, indices: np.ndarray) -> np.ndarray | None:
        return self.pixels[indices]


class PackedStrings:
    """Names by number. Those of files may hold bytes that are no UTF-8, which come back as they were."""

    def __init__(self, starts: np.ndarray, text: np.ndarray) -> None:
        """Name i is `text` (bytes) from starts[i] to starts[i + 1]."""
        self.starts = starts
        self.text = text

    @classmethod
    def pack(cls, names: Iterable[str]) -> "PackedStrings":
        encoded = [name.encode("utf-8", "surrogateescape") for name in names]
        starts = np.cumsum([0, *map(len, encoded)], dtype=np.int64)  # (N + 1)
        return cls(starts, np.frombuffer(b"".join(encoded), dtype=np.uint8))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, index: int) -> str:
        return self.text[self.starts[index] : self.starts[index + 1]].tobytes().decode("utf-8", "surrogateescape")

    def slice(self, start: int, stop: int) -> "PackedStrings":
        """Those from one number to before another, on the same bytes."""
        return PackedStrings(self.starts[start : stop + 1], self.text)
