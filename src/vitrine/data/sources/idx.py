"""The MNIST family as downloaded: IDX files, plain or gzipped, in one folder.

An IDX file is two zero bytes, the type of its numbers, the number of dimensions, each dimension as four bytes with the
highest first, and then the numbers, the last dimension running fastest.
Shapes: N images of H x W pixels of C channels.
"""

import gzip
import math
import os
import re
import struct
from contextlib import nullcontext, suppress
from io import BufferedIOBase
from pathlib import Path

import numpy as np

from vitrine.core.console import join_names
from vitrine.data.dataset_format import DatasetFormat
from vitrine.data.source import ArraySource, Labels
from vitrine.data.sources.annotations import DEFLATE_RATIO, numbered_class_names, readable_errors

# E.g. train-images-idx3-ubyte.gz, t10k-labels.idx1-ubyte, or emnist-letters-test-images-idx3-ubyte.gz.
FILE_NAME = re.compile(
    r"(?P<prefix>(?:.*-)?)(?P<part>train|t10k|test)-(?P<content>images|labels)[-.]idx\d-ubyte(?:\.gz)?", re.ASCII
)
SPLIT_OF_PART = {"train": "train", "t10k": "test", "test": "test"}

BYTES_TYPE = 0x08
MAX_BYTES = 2**40
CHUNK_BYTES = 2**20

# In label order, from the dataset's README.
FASHION_NAMES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")

Family = dict[str, dict[str, Path]]
"""Files that share a prefix: by part (train, t10k, test), then by content (images, labels)."""


def is_idx(path: Path) -> bool:
    """Whether a path is an IDX file of images, or a folder that holds one."""
    if os.path.isfile(path):
        return is_images_name(path.name)
    with suppress(OSError), os.scandir(path) as entries:
        return any(is_images_name(entry.name) and entry.is_file() for entry in entries)
    return False


def is_images_name(name: str) -> bool:
    match = FILE_NAME.fullmatch(name)
    return match is not None and match["content"] == "images"


def list_splits(path: Path) -> tuple[str, ...]:
    return () if os.path.isfile(path) else tuple(find_splits(path))


def open_idx(path: Path, split: str | None) -> ArraySource:
    """Open a split of a folder, or one file of images with the labels beside it."""
    if split is not None:
        family, part = find_splits(path)[split]
        return open_part(family, part, family[part]["images"])
    match = FILE_NAME.fullmatch(path.name)
    assert match is not None  # guaranteed by `is_idx`
    return open_part(find_families(path.parent)[match["prefix"]], match["part"], path)


def open_part(family: Family, part: str, images_path: Path) -> ArraySource:
    """Open the images of one part with their labels."""
    labels_path = family[part].get("labels")
    if labels_path is None:
        raise FileNotFoundError(f"{images_path} has no label file (the name with labels instead of images): download it.")
    images, labels = read_images(images_path), read_labels(labels_path)
    if len(images) != len(labels):
        raise ValueError(f"{images_path} has {len(images)} images and {labels_path} {len(labels)} labels: download both again.")
    # Over all parts: a model trained on one part is tested on another and needs the same classes.
    paths = [files["labels"] for files in family.values() if "labels" in files]
    num_classes = 1 + max(int(read_labels(path).max()) for path in paths)
    class_names = load_class_names(num_classes, images_path)
    return ArraySource(images, Labels.one_each(labels), class_names, images_path.name, [images_path, labels_path])


def load_class_names(num_classes: int, images_path: Path) -> tuple[str, ...]:
    """Return Fashion-MNIST's names where a file or folder is called so, else numbers: the files themselves hold no names."""
    folder = Path(os.path.abspath(images_path)).parent
    # The parent too: torchvision keeps the files in FashionMNIST/raw.
    is_fashion = any("fashion" in name.lower() for name in (images_path.name, folder.name, folder.parent.name))
    if is_fashion and num_classes <= len(FASHION_NAMES):
        return FASHION_NAMES
    return numbered_class_names(num_classes)


def find_splits(folder: Path) -> dict[str, tuple[Family, str]]:
    """Return for each split of a folder its files and its part (train, t10k or test)."""
    families = find_families(folder)
    if len(families) > 1:
        prefixes = join_names([f"{prefix}*" for prefix in sorted(families)])
        raise ValueError(f"{folder} holds {len(families)} datasets ({prefixes}): give one of their image files instead.")
    [family] = families.values()
    splits: dict[str, tuple[Family, str]] = {}
    for part, split in SPLIT_OF_PART.items():
        if "images" in family.get(part, {}):
            if split in splits:
                raise ValueError(f"{folder} has both t10k and test images: remove one of them.")
            splits[split] = family, part
    return splits


def find_families(folder: Path) -> dict[str, Family]:
    """Return the IDX files of a folder by prefix, for prefixes that have images."""
    with readable_errors(folder, "expected a folder of IDX files", "check the path"), os.scandir(folder) as entries:
        names = [entry.name for entry in entries if FILE_NAME.fullmatch(entry.name) and entry.is_file()]
    families: dict[str, Family] = {}
    # An unpacked file often lies beside its archive: it is preferred, because it can be memory-mapped.
    for name in sorted(names, key=lambda name: (name.endswith(".gz"), name)):
        match = FILE_NAME.fullmatch(name)
        assert match is not None
        family = families.setdefault(match["prefix"], {})
        family.setdefault(match["part"], {}).setdefault(match["content"], folder / name)
    return {prefix: family for prefix, family in families.items() if any("images" in files for files in family.values())}


def read_images(path: Path) -> np.ndarray:
    """Read images (N, H, W, C)."""
    images = read_idx(path, (3, 4), "images (number, height, width) or (number, height, width, channels)")
    if images.ndim == 3:
        return images[..., None]  # (N, H, W, 1)
    if images.shape[3] not in (1, 3):
        raise ValueError(f"{path} has images of {images.shape[3]} channels; expected 1 or 3: convert them.")
    return images


def read_labels(path: Path) -> np.ndarray:
    """Read labels (N)."""
    return read_idx(path, (1,), "labels (number)")


def read_idx(path: Path, num_dims: tuple[int, ...], expected: str) -> np.ndarray:
    """Read the array of an IDX file: memory-mapped, or decompressed if it is gzipped, whatever its name."""
    with readable_errors(path, "expected an IDX file"), path.open("rb") as file:
        is_gzipped = file.peek(2)[:2] == b"\x1f\x8b"
        with gzip.GzipFile(fileobj=file) if is_gzipped else nullcontext(file) as stream:
            shape = read_header(stream, path)
            if len(shape) not in num_dims or 0 in shape:
                raise ValueError(f"{path} has shape {shape[:8]}; expected {expected}: give another file.")
            if is_gzipped:
                return decompress(stream, path, shape)
            start = 4 + 4 * len(shape)
            require_size(path, shape, path.stat().st_size - start)
            return np.memmap(path, np.uint8, "r", start, shape)


def read_header(stream: BufferedIOBase, path: Path) -> tuple[int, ...]:
    """Read the shape from the header."""
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0":
        raise ValueError(f"{path} begins with {magic!r}; an IDX file begins with two zero bytes: download it again.")
    if magic[2] != BYTES_TYPE:
        raise ValueError(f"{path} holds numbers of type 0x{magic[2]:02x}; expected bytes (0x08): convert it.")
    num_dims = magic[3]
    content = stream.read(4 * num_dims)
    if len(content) < 4 * num_dims:
        raise ValueError(f"{path} is truncated in its header: download it again.")
    return struct.unpack(f">{num_dims}I", content)


def decompress(stream: BufferedIOBase, path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """Decompress as many bytes as the header says and one more, so that a hostile archive cannot fill the memory."""
    num_bytes = math.prod(shape)
    capacity = min(path.stat().st_size * DEFLATE_RATIO, MAX_BYTES)
    if num_bytes > capacity:
        require_size(path, shape, capacity)
    content = np.empty(num_bytes, np.uint8)
    num_read = 0
    while num_read < num_bytes and (count := stream.readinto(content.data[num_read : num_read + CHUNK_BYTES])):
        num_read += count
    num_read += len(stream.read(1))  # reading to the end also verifies gzip's checksum
    require_size(path, shape, num_read)
    return content.reshape(shape)


def require_size(path: Path, shape: tuple[int, ...], num_bytes: int) -> None:
    """Raise ValueError if a file does not hold as many bytes as its header says."""
    if num_bytes != math.prod(shape):
        found = "less" if num_bytes < math.prod(shape) else "more"
        raise ValueError(f"{path} has {found} data than its header says (shape {shape}): download it again.")


FORMAT = DatasetFormat("idx", is_idx, list_splits, open_idx)
