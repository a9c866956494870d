"""Images in NumPy files: .npz with images, labels and maybe splits, as from Keras and MedMNIST, or .npy with images.

Nothing is unpickled, and headers are not trusted: the length of an array is checked before it is mapped or decompressed.
The checksums (CRC) of a .npz file are compared on first use.
Shapes: N images of H x W pixels with C channels; K classes.
"""

import math
import os
import struct
import zipfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from vitrine.core.checksums import check_members, open_zip, verify_once
from vitrine.core.console import join_names
from vitrine.data.dataset_format import SPLITS, DatasetFormat
from vitrine.data.source import ArraySource, Labels
from vitrine.data.sources.annotations import DEFLATE_RATIO, MAX_CLASSES, numbered_class_names, readable_errors

IMAGES = ("images", "x", "data", "image")
LABELS = ("labels", "y", "label", "targets")
CLASS_NAMES = "class_names"


@dataclass(frozen=True)
class SplitArrays:
    """Names of the arrays of a split."""

    images: str
    labels: str | None


@dataclass(frozen=True)
class StoredArray:
    """An array in a file, not read yet, whose length has been checked."""

    path: Path
    name: str
    """Empty in a .npy file, which has only one array."""
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_fortran: bool
    start: int | None
    """Offset of its values in the file; None if they are compressed."""

    def __str__(self) -> str:
        return f"{self.name} in {self.path}" if self.name else str(self.path)


def is_npz(path: Path) -> bool:
    """Return whether a path is a file with the ending of NumPy's formats."""
    return path.suffix.lower() in (".npz", ".npy") and os.path.isfile(path)


def list_splits(path: Path) -> tuple[str, ...]:
    """Return the splits of a NumPy file."""
    if path.suffix.lower() == ".npy":
        return ()
    with open_archive(path) as archive:
        return tuple(split for split in find_split_arrays(path, list_arrays(path, archive)) if split is not None)


def open_npz(path: Path, split: str | None) -> ArraySource:
    """Open a NumPy file, or a split of a .npz file."""
    if path.suffix.lower() == ".npz":
        with open_archive(path) as archive:
            return open_split(path, archive, split)
    pixels = read_images(locate_npy(path), None)
    return ArraySource(pixels, Labels.none_each(len(pixels)), (), path.name, [path])


FORMAT = DatasetFormat("arrays", is_npz, list_splits, open_npz)


def open_split(path: Path, archive: zipfile.ZipFile, split: str | None) -> ArraySource:
    """Open a split of a .npz file; class names are checked against the labels of all splits."""
    names = list_arrays(path, archive)
    splits = find_split_arrays(path, names)
    images, labels_name = locate_member(path, archive, splits[split].images), splits[split].labels
    pixels = read_images(images, archive)
    label_names = [each.labels for each in splits.values() if each.labels is not None]
    tables = {name: read_labels(locate_member(path, archive, name), archive) for name in label_names}
    class_names = read_class_names(locate_member(path, archive, CLASS_NAMES), archive) if CLASS_NAMES in names else None
    class_names = resolve_class_names(path, tables, class_names)
    labels = Labels.none_each(len(pixels)) if labels_name is None else build_labels(tables[labels_name])
    if len(pixels) != len(labels):
        raise ValueError(f"{path} has {len(pixels)} {images.name} but {len(labels)} {labels_name}: save both again.")
    return ArraySource(pixels, labels, class_names, f"{path.name}/{images.name}", [path])


# Names of arrays.


def find_split_arrays(path: Path, names: Collection[str]) -> dict[str | None, SplitArrays]:
    """Return {split: its arrays}, in the order train, val, test; the only key is None if the data is not divided."""
    splits: dict[str | None, SplitArrays] = {}
    if images := choose_name(path, names, IMAGES):
        splits[None] = SplitArrays(images, choose_name(path, names, LABELS))
    for split in SPLITS:
        if images := choose_name(path, names, (f"x_{split}", f"{split}_images")):
            splits[split] = SplitArrays(images, choose_name(path, names, (f"y_{split}", f"{split}_labels")))
    expected = "expected images and labels, or x_train, y_train, x_test and y_test: save them under these names"
    if not splits or (None in splits and len(splits) > 1):
        problem = "images both with and without splits" if splits else "no images"
        raise ValueError(f"{path} has {problem} among the arrays {join_names(sorted(names))}; {expected}.")
    # Labels under an unknown name must not be overlooked.
    others = sorted(set(names) - {CLASS_NAMES} - {name for each in splits.values() for name in (each.images, each.labels)})
    unlabelled = [each.images for each in splits.values() if each.labels is None]
    if unlabelled and others:
        raise ValueError(f"{path} has no labels for {join_names(unlabelled)}, but the arrays {join_names(others)}; {expected}.")
    return splits


def choose_name(path: Path, names: Collection[str], candidates: Sequence[str]) -> str | None:
    """Return the candidate that is among the names, None if there is none; raise ValueError if there are several."""
    matches = [name for name in candidates if name in names]
    if len(matches) > 1:
        raise ValueError(f"{path} has the arrays {join_names(matches)}; expected only one of them: remove the others.")
    return matches[0] if matches else None


# Contents of arrays.


def read_images(stored: StoredArray, archive: zipfile.ZipFile | None) -> np.ndarray:
    """Return images (N, H, W, C), memory-mapped if they are not compressed."""
    if stored.dtype != np.uint8:
        raise ValueError(f"{stored} is {stored.dtype}; expected uint8: e.g. np.rint(images * 255).astype(np.uint8).")
    shape = stored.shape
    # If both could be the channels, as in (N, 3, H, 3), the last axis is. A last axis of 1 or 3 in three numbers is not a
    # width: it is rather one image with its channels.
    is_last, is_first = shape[3:] in ((1,), (3,)), len(shape) == 4 and shape[1] in (1, 3)
    is_plain = len(shape) == 3 and shape[2] not in (1, 3)
    if not (is_last or is_first or is_plain) or 0 in shape:
        raise ValueError(f"{stored} has the shape {shape}; expected images (N, H, W), with 1 or 3 channels last or second.")
    images = map_array(stored) if archive is None or stored.start is not None else read_array(stored, archive)
    if is_plain:
        return images[..., None]  # (N, H, W, 1)
    return images if is_last else np.moveaxis(images, 1, 3)  # (N, H, W, C)


def read_labels(stored: StoredArray, archive: zipfile.ZipFile) -> np.ndarray:
    """Return class indices (N), or for each class whether an image has it (N, K), as int64."""
    if stored.dtype.kind not in "iub" or len(stored.shape) not in (1, 2) or 0 in stored.shape:
        raise ValueError(f"{stored} has type {stored.dtype} and shape {stored.shape}; expected indices, or rows of 0 and 1.")
    labels = read_array(stored, archive)
    if stored.shape[1:] == (1,):
        labels = labels[:, 0]
    low, high = int(labels.min()), int(labels.max())
    limit = MAX_CLASSES if labels.ndim == 1 else 2
    if low < 0 or high >= limit:
        raise ValueError(f"{stored} has labels from {low} to {high}; expected 0 to {limit - 1}: number the classes again.")
    return labels.astype(np.int64)


def build_labels(table: np.ndarray) -> Labels:
    """Make labels of class indices (N), or of rows of 0 and 1 (N, K)."""
    if table.ndim == 1:
        return Labels.one_each(table)
    return Labels.from_counts(np.nonzero(table)[1], table.sum(axis=1))


def resolve_class_names(path: Path, tables: Mapping[str, np.ndarray], given: tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the given class names if they fit the labels of all splits, else numbers; empty for unlabelled data."""
    if not tables:
        return ()
    widths = {table.shape[1:] for table in tables.values()}
    if len(widths) > 1:
        raise ValueError(f"{path} has {join_names(list(tables))} of different widths; expected the same: save them again.")
    [width] = widths
    num_classes = width[0] if width else 1 + max(int(table.max()) for table in tables.values())
    if given is None:
        return numbered_class_names(num_classes)
    if len(given) < num_classes or (width and len(given) != num_classes):
        raise ValueError(f"{path} has {len(given)} {CLASS_NAMES} for {num_classes} classes: name each class of the labels.")
    return given


def read_class_names(stored: StoredArray, archive: zipfile.ZipFile) -> tuple[str, ...]:
    """Return the class names in an array of strings."""
    if stored.dtype.kind != "U" or len(stored.shape) != 1 or stored.shape[0] > MAX_CLASSES:
        raise ValueError(f"{stored} has type {stored.dtype} and shape {stored.shape}; expected strings: save np.array(names).")
    names = read_array(stored, archive)
    with parsing_errors(stored.path, stored.name):
        listed = tuple(names.tolist())
        "".join(listed).encode()  # raises here, not when printed, if a surrogate pair is incomplete
    return listed


# Files.


def list_arrays(path: Path, archive: zipfile.ZipFile) -> set[str]:
    """Return the names of the arrays in a .npz file, which must contain nothing else."""
    names = archive.namelist()
    others = [name for name in names if not name.endswith(".npy")]
    if others:
        raise ValueError(f"{path} contains {join_names(others)}; expected only arrays: save them with np.savez.")
    return {name.removesuffix(".npy") for name in names}


def open_archive(path: Path) -> zipfile.ZipFile:
    """Open a .npz file; on first use its checksums are compared, which nothing does for a memory-mapped array."""
    with parsing_errors(path, "a .npz file"):
        archive = open_zip(path)
        try:
            verify_once(path, "zip", lambda: check_members(archive))
        except BaseException:
            archive.close()
            raise
        return archive


def locate_npy(path: Path) -> StoredArray:
    """Find the array of a .npy file and check its length."""
    with parsing_errors(path, "a .npy file"), path.open("rb") as file:
        shape, is_fortran, dtype = read_npy_header(file)
        start, file_size = file.tell(), os.fstat(file.fileno()).st_size
    stored = StoredArray(path, "", shape, dtype, is_fortran, start)
    check_length(stored, file_size - start)
    return stored


def locate_member(path: Path, archive: zipfile.ZipFile, name: str) -> StoredArray:
    """Find an array in a .npz file and check its length."""
    member = archive.getinfo(f"{name}.npy")
    with parsing_errors(path, f"the array {name}"):
        with archive.open(member) as content:
            shape, is_fortran, dtype = read_npy_header(content)
            header_size = content.tell()
        start = find_start(path, member) + header_size if member.compress_type == zipfile.ZIP_STORED else None
        file_size = path.stat().st_size  # a limit that holds even if the sizes in the archive are wrong
    capacity = file_size * DEFLATE_RATIO if start is None else min(file_size - start, member.compress_size - header_size)
    stored = StoredArray(path, name, shape, dtype, is_fortran, start)
    check_length(stored, min(member.file_size - header_size, capacity))
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{stored} has a compression that NumPy does not write: save it with np.savez_compressed.")
    return stored


def read_npy_header(content: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read shape, whether the order is Fortran's, and type; the values follow in `content`."""
    version = np.lib.format.read_magic(content)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(content)
    return np.lib.format.read_array_header_2_0(content)


def find_start(path: Path, member: zipfile.ZipInfo) -> int:
    """Return the offset of an uncompressed member's content, after its local header of variable length."""
    with path.open("rb") as file:
        file.seek(member.header_offset)
        name_size, extra_size = struct.unpack("<26xHH", file.read(30))
    return member.header_offset + 30 + name_size + extra_size


def check_length(stored: StoredArray, num_bytes: int) -> None:
    """Raise ValueError if an array has Python objects, or if its header does not fit the bytes in the file."""
    if stored.dtype.hasobject:
        raise ValueError(f"{stored} contains Python objects, which could run code when read: save it with a dtype.")
    if min(stored.shape, default=0) < 0 or math.prod(stored.shape) * stored.dtype.itemsize != num_bytes:
        raise ValueError(f"{stored} is {stored.dtype} of shape {stored.shape} by its header but {num_bytes} bytes: save again.")


def map_array(stored: StoredArray) -> np.ndarray:
    """Memory-map an uncompressed array."""
    order = "F" if stored.is_fortran else "C"
    with parsing_errors(stored.path, "an array"):
        return np.memmap(stored.path, stored.dtype, "r", stored.start or 0, stored.shape, order)


def read_array(stored: StoredArray, archive: zipfile.ZipFile) -> np.ndarray:
    """Read an array of a .npz file into memory."""
    with parsing_errors(stored.path, f"the array {stored.name}"), archive.open(f"{stored.name}.npy") as content:
        array = np.lib.format.read_array(content, allow_pickle=False)
        content.read(1)  # zipfile compares the checksum only at the end
    return array


def parsing_errors(path: Path, expected: str) -> AbstractContextManager[None]:
    """Turn any error into one sentence: zipfile and NumPy raise anything for damaged files, even RuntimeError."""
    return readable_errors(path, f"expected {expected}", "download or save it again", Exception)
