"""The MNIST family as it is downloaded: IDX files, plain or gzipped, in one folder.

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

# As train-images-idx3-ubyte.gz, t10k-labels.idx1-ubyte, or emnist-letters-test-images-idx3-ubyte.gz.
FILE_NAME = re.compile(
    r"(?P<prefix>(?:.*-)?)(?P<part>train|t10k|test)-(?P<content>images|labels)[-.]idx\d-ubyte(?:\.gz)?", re.ASCII
)
SPLIT_OF_PART = {"train": "train", "t10k": "test", "test": "test"}

BYTES_TYPE = 0x08
MAX_BYTES = 2**40
CHUNK_BYTES = 2**20

# In the order of their numbers, as in the table of the data's README.
FASHION_NAMES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)

Family = dict[str, dict[str, Path]]
"""The files with one prefix: by part (train, t10k, test), then by content (images, labels)."""


def is_idx(path: Path) -> bool:
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
    """A split of the folder, or exactly the images of one file, with the labels beside it."""
    if split is not None:
        family, part = find_splits(path)[split]
        return open_part(family, part, family[part]["images"])
    match = FILE_NAME.fullmatch(path.name)
    assert match is not None  # by `is_idx`
    return open_part(find_families(path.parent)[match["prefix"]], match["part"], path)


def open_part(family: Family, part: str, images_path: Path) -> ArraySource:
    labels_path = family[part].get("labels")
    if labels_path is None:
        raise FileNotFoundError(
            f"{images_path} has no file of labels beside it, with labels for images in its name, and one was needed: fetch it."
        )
    images, labels = read_images(images_path), read_labels(labels_path)
    if len(images) != len(labels):
        raise ValueError(
            f"{images_path} holds {len(images)} images and {labels_path} {len(labels)} labels, and as many were needed: "
            "fetch both again."
        )
    # Of all parts: what is trained on one of them is tested on another, and has to count the same classes.
    paths = [files["labels"] for files in family.values() if "labels" in files]
    num_classes = 1 + max(int(read_labels(path).max()) for path in paths)
    class_names = load_class_names(num_classes, images_path)
    return ArraySource(images, Labels.one_each(labels), class_names, images_path.name, [images_path, labels_path])


def load_class_names(num_classes: int, images_path: Path) -> tuple[str, ...]:
    """Nothing in the files says of what they are: Fashion-MNIST has the file names of MNIST, and a folder of its own."""
    folder = Path(os.path.abspath(images_path)).parent
    # The parent as well, because torchvision keeps them in FashionMNIST/raw.
    is_fashion = any("fashion" in name.lower() for name in (images_path.name, folder.name, folder.parent.name))
    if is_fashion and num_classes <= len(FASHION_NAMES):
        return FASHION_NAMES
    return numbered_class_names(num_classes)


def find_splits(folder: Path) -> dict[str, tuple[Family, str]]:
    """By split, in order, the files of the folder and which part of them it is."""
    families = find_families(folder)
    if len(families) > 1:
        found = f"{len(families)} data sets ({join_names([f'{prefix}*' for prefix in sorted(families)])})"
        raise ValueError(f"{folder} holds {found}, and one data set was needed: give a folder with one, or a file of images.")
    [family] = families.values()
    splits: dict[str, tuple[Family, str]] = {}
    for part in (part for part in SPLIT_OF_PART if "images" in family.get(part, {})):
        split = SPLIT_OF_PART[part]
        if split in splits:
            raise ValueError(f"{folder} has both t10k and test images, and one of these was needed: take the others out.")
        splits[split] = family, part
    return splits


def find_families(folder: Path) -> dict[str, Family]:
    """By prefix, those that have images."""
    with readable_errors(folder, "a folder of IDX files was needed", "give another"), os.scandir(folder) as entries:
        names = [entry.name for entry in entries if FILE_NAME.fullmatch(entry.name) and entry.is_file()]
    families: dict[str, Family] = {}
    # A file that was unpacked often lies beside its archive: it comes first and is taken, because it can be mapped.
    for name in sorted(names, key=lambda name: (name.endswith(".gz"), name)):
        match = FILE_NAME.fullmatch(name)
        assert match is not None
        family = families.setdefault(match["prefix"], {})
        family.setdefault(match["part"], {}).setdefault(match["content"], folder / name)
    return {prefix: family for prefix, family in families.items() if any("images" in files for files in family.values())}


def read_images(path: Path) -> np.ndarray:
    """(N, H, W, C)"""
    images = read_idx(path, (3, 4), "images (number, height, width), or with 1 or 3 channels behind")
    if images.ndim == 3:
        return images[..., None]  # (N, H, W, 1)
    if images.shape[3] not in (1, 3):
        raise ValueError(f"{path} has images of {images.shape[3]} channels, and 1 or 3 were needed: convert them.")
    return images


def read_labels(path: Path) -> np.ndarray:
    """(N)"""
    return read_idx(path, (1,), "labels (number)")


def read_idx(path: Path, num_dims: tuple[int, ...], needed: str) -> np.ndarray:
    """Its bytes in the shape that its header says: mapped, or unpacked if they are gzipped, whatever the name says."""
    with readable_errors(path, "an IDX file was needed"), path.open("rb") as file:
        is_gzipped = file.peek(2)[:2] == b"\x1f\x8b"
        with gzip.GzipFile(fileobj=file) if is_gzipped else nullcontext(file) as stream:
            shape = read_header(stream, path)
            if len(shape) not in num_dims or 0 in shape:
                raise ValueError(f"{path} has the shape {shape[:8]}, and {needed} were needed: give another file.")
            return unpack(stream, path, shape) if is_gzipped else map_numbers(path, shape)


def read_header(stream: BufferedIOBase, path: Path) -> tuple[int, ...]:
    """The shape that the file says it has."""
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0":
        raise ValueError(f"{path} begins with {magic!r}, and an IDX file, which begins with 0, 0, was needed: fetch it again.")
    if magic[2] != BYTES_TYPE:
        raise ValueError(f"{path} holds numbers of the type 0x{magic[2]:02x}, and bytes (0x08) were needed: convert it.")
    num_dims = magic[3]
    content = stream.read(4 * num_dims)
    if len(content) < 4 * num_dims:
        raise ValueError(f"{path} is cut short in its header, and a whole IDX file was needed: fetch it again.")
    return struct.unpack(f">{num_dims}I", content)


def map_numbers(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    start = 4 + 4 * len(shape)
    require_equal(path, shape, path.stat().st_size - start)
    return np.memmap(path, np.uint8, "r", start, shape)


def unpack(stream: BufferedIOBase, path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """As much as the header says and one byte more, so that an archive cannot unpack to whatever it likes."""
    num_bytes = math.prod(shape)
    capacity = min(path.stat().st_size * DEFLATE_RATIO, MAX_BYTES)
    if num_bytes > capacity:
        require_equal(path, shape, capacity)
    content = np.empty(num_bytes, np.uint8)
    num_read = 0
    while num_read < num_bytes and (count := stream.readinto(content.data[num_read : num_read + CHUNK_BYTES])):
        num_read += count
    num_read += len(stream.read(1))  # at the end, gzip also compares the checksum
    require_equal(path, shape, num_read)
    return content.reshape(shape)


def require_equal(path: Path, shape: tuple[int, ...], num_bytes: int) -> None:
    """What the header says and what there is, or can be at most."""
    if num_bytes != math.prod(shape):
        found = "less" if num_bytes < math.prod(shape) else "more"
        raise ValueError(
            f"{path} says that it has the shape {shape}, and holds {found}; a whole IDX file was needed: fetch it again."
        )


KIND = DatasetFormat("idx", is_idx, list_splits, open_idx)
