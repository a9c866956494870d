""".npz and .npy arrays, never unpickled.

What NumPy's files say of their arrays before any of it is read.
NumPy's own files, .npy and .npz, whose headers may lie: an array is found, its length checked, then mapped or unpacked.

Nothing is unpickled.
Images in NumPy's own files: a .npz with images, labels and perhaps splits, as Keras and MedMNIST have, or a .npy of images.

Nothing is unpickled. Shapes: N images of H x W pixels of C channels; K classes.
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

from vitrine.core.console import join_names
from vitrine.data.dataset_format import SPLITS, DatasetFormat
from vitrine.data.source import ArraySource, Labels
from vitrine.data.sources.annotations import DEFLATE_RATIO, MAX_CLASSES, numbered_class_names, readable_errors


def read_npy_header(content: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether columns come first (Fortran's order), and type; the numbers follow in `content`."""
    version = np.lib.format.read_magic(content)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(content)
    return np.lib.format.read_array_header_2_0(content)


@dataclass(frozen=True)
class StoredArray:
    """An array that is still in its file, of a length that has been checked."""

    path: Path
    name: str
    """Empty in a .npy file, which has only one."""
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_fortran: bool
    start: int | None
    """Where its numbers begin in the file; None if they are compressed."""

    def __str__(self) -> str:
        return f"{self.name} in {self.path}" if self.name else str(self.path)


def list_arrays(path: Path, archive: zipfile.ZipFile) -> set[str]:
    names = archive.namelist()
    others = [name for name in names if not name.endswith(".npy")]
    if others:
        raise ValueError(f"{path} holds {join_names(others)}, and nothing but arrays was needed: save them with np.savez.")
    return {name.removesuffix(".npy") for name in names}


def open_archive(path: Path) -> zipfile.ZipFile:
    with explain_parsing(path, "a .npz file"):
        return zipfile.ZipFile(path)


def locate_npy(path: Path) -> StoredArray:
    with explain_parsing(path, "a .npy file"), path.open("rb") as file:
        shape, is_fortran, dtype = read_npy_header(file)
        start, file_size = file.tell(), os.fstat(file.fileno()).st_size
    stored = StoredArray(path, "", shape, dtype, is_fortran, start)
    require_length(stored, file_size - start)
    return stored


def locate(path: Path, archive: zipfile.ZipFile, name: str) -> StoredArray:
    member = archive.getinfo(f"{name}.npy")
    with explain_parsing(path, f"the array {name}"):
        with archive.open(member) as content:
            shape, is_fortran, dtype = read_npy_header(content)
            header_size = content.tell()
        start = find_start(path, member) + header_size if member.compress_type == zipfile.ZIP_STORED else None
        # The archive's table may lie, and of the length of the file nobody can.
        file_size = path.stat().st_size
    capacity = file_size * DEFLATE_RATIO if start is None else min(file_size - start, member.compress_size - header_size)
    stored = StoredArray(path, name, shape, dtype, is_fortran, start)
    require_length(stored, min(member.file_size - header_size, capacity))
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{stored} is compressed in a way that NumPy does not have: save it with np.savez_compressed.")
    return stored


def find_start(path: Path, member: zipfile.ZipInfo) -> int:
    """Where what a zip archive keeps uncompressed begins, behind its name and notes, whose lengths stand there once more."""
    with path.open("rb") as file:
        file.seek(member.header_offset)
        name_size, notes_size = struct.unpack("<26xHH", file.read(30))
    return member.header_offset + 30 + name_size + notes_size


def require_length(stored: StoredArray, num_bytes: int) -> None:
    if stored.dtype.hasobject:
        raise ValueError(
            f"{stored} holds Python objects, which could run anything when read; numbers or strings were needed: save it with "
            "a dtype such as np.uint8."
        )
    if min(stored.shape, default=0) < 0 or math.prod(stored.shape) * stored.dtype.itemsize != num_bytes:
        raise ValueError(
            f"{stored} says that it is {stored.dtype} of shape {stored.shape}, and is not as long; a whole array was needed: "
            "fetch or save it again."
        )


def map_numbers(stored: StoredArray) -> np.ndarray:
    order = "F" if stored.is_fortran else "C"
    with explain_parsing(stored.path, "an array"):
        return np.memmap(stored.path, stored.dtype, "r", stored.start or 0, stored.shape, order)


def read_numbers(stored: StoredArray, archive: zipfile.ZipFile) -> np.ndarray:
    with explain_parsing(stored.path, f"the array {stored.name}"), archive.open(f"{stored.name}.npy") as content:
        array = np.lib.format.read_array(content, allow_pickle=False)
        content.read(1)  # only at the end does zipfile compare the checksum
    return array


def explain_parsing(path: Path, needed: str) -> AbstractContextManager[None]:
    """Of all exceptions: zipfile and NumPy let out whatever they trip over, from BadZipFile to RuntimeError."""
    return readable_errors(path, f"{needed} was needed", "fetch or save it again", Exception)


IMAGES = ("images", "x", "data", "image")
LABELS = ("labels", "y", "label", "targets")
CLASS_NAMES = "class_names"


@dataclass(frozen=True)
class Roles:
    """The names of the arrays that make up a split."""

    images: str
    labels: str | None


def is_arrays(path: Path) -> bool:
    return path.suffix.lower() in (".npz", ".npy") and os.path.isfile(path)


def list_splits(path: Path) -> tuple[str, ...]:
    if path.suffix.lower() == ".npy":
        return ()
    with open_archive(path) as archive:
        return tuple(split for split in find_roles(path, list_arrays(path, archive)) if split is not None)


def open_arrays(path: Path, split: str | None) -> ArraySource:
    if path.suffix.lower() == ".npz":
        with open_archive(path) as archive:
            return open_split(path, archive, split)
    pixels = read_images(locate_npy(path), None)
    return ArraySource(pixels, Labels.none_each(len(pixels)), (), path.name, [path])


def open_split(path: Path, archive: zipfile.ZipFile, split: str | None) -> ArraySource:
    names = list_arrays(path, archive)
    roles = find_roles(path, names)
    images, labels_name = locate(path, archive, roles[split].images), roles[split].labels
    pixels = read_images(images, archive)
    # Of all splits: what is trained on one of them is tested on another, and has to count the same classes.
    label_names = [role.labels for role in roles.values() if role.labels is not None]
    tables = {name: read_labels(locate(path, archive, name), archive) for name in label_names}
    class_names = read_class_names(locate(path, archive, CLASS_NAMES), archive) if CLASS_NAMES in names else None
    class_names = resolve_class_names(path, tables, class_names)
    labels = Labels.none_each(len(pixels)) if labels_name is None else build_labels(tables[labels_name])
    if len(pixels) != len(labels):
        raise ValueError(
            f"{path} has {len(pixels)} {images.name} and {len(labels)} {labels_name}, and as many were needed: save both anew."
        )
    return ArraySource(pixels, labels, class_names, f"{path.name}/{images.name}", [path])


def find_roles(path: Path, names: Collection[str]) -> dict[str | None, Roles]:
    """The arrays of each split, in order; of None if there are no splits."""
    roles: dict[str | None, Roles] = {}
    if images := choose(path, names, IMAGES):
        roles[None] = Roles(images, choose(path, names, LABELS))
    for split in SPLITS:
        if images := choose(path, names, (f"x_{split}", f"{split}_images")):
            roles[split] = Roles(images, choose(path, names, (f"y_{split}", f"{split}_labels")))
    needed = "images and labels, or x_train, y_train, x_test and y_test, were needed: save them under these names"
    if not roles or (None in roles and len(roles) > 1):
        found = "images with and without splits" if roles else "no images"
        raise ValueError(f"{path} has the arrays {join_names(sorted(names))}, which are {found}; {needed}.")
    # Labels under a name that we do not know must not be taken for none.
    others = set(names) - {CLASS_NAMES} - {name for role in roles.values() for name in (role.images, role.labels)}
    unlabelled = [role.images for role in roles.values() if role.labels is None]
    if unlabelled and others:
        raise ValueError(f"{path} has {join_names(sorted(others))} and no labels for {join_names(unlabelled)}; {needed}.")
    return roles


def choose(path: Path, names: Collection[str], wanted: Sequence[str]) -> str | None:
    """The one of the wanted names that is there."""
    found = [name for name in wanted if name in names]
    if len(found) > 1:
        raise ValueError(f"{path} has the arrays {join_names(found)}, and only one of these was needed: take the others out.")
    return found[0] if found else None


def read_images(stored: StoredArray, archive: zipfile.ZipFile | None) -> np.ndarray:
    """(N, H, W, C), mapped if it is not compressed."""
    if stored.dtype != np.uint8:
        raise ValueError(
            f"{stored} has pixels of {stored.dtype}, and bytes from 0 to 255 were needed: convert them, "
            "if they run from 0 to 1 with np.rint(images * 255).astype(np.uint8)."
        )
    shape = stored.shape
    # Where both places could be the channels, as in (N, 3, H, 3), it is the last. Of three numbers the last is the width:
    # if that is 1 or 3, it is rather one image with its channels.
    is_last, is_first = shape[3:] in ((1,), (3,)), len(shape) == 4 and shape[1] in (1, 3)
    is_plain = len(shape) == 3 and shape[2] not in (1, 3)
    if not (is_last or is_first or is_plain) or 0 in shape:
        raise ValueError(
            f"{stored} has the shape {shape}, and images (number, height, width), or with 1 or 3 channels behind or after the "
            "number, were needed: reshape them."
        )
    images = map_numbers(stored) if archive is None or stored.start is not None else read_numbers(stored, archive)
    if is_plain:
        return images[..., None]  # (N, H, W, 1)
    return images if is_last else np.moveaxis(images, 1, 3)  # (N, H, W, C)


def read_labels(stored: StoredArray, archive: zipfile.ZipFile) -> np.ndarray:
    """The number of the class of each (N), or for each class whether it is one of them (N, K)."""
    if stored.dtype.kind not in "iub" or len(stored.shape) not in (1, 2) or 0 in stored.shape:
        raise ValueError(
            f"{stored} is {stored.dtype} of shape {stored.shape}, and whole numbers, one for each image, or a row of 0 and 1 "
            "for each, were needed: convert them."
        )
    labels = read_numbers(stored, archive)
    if stored.shape[1:] == (1,):
        labels = labels[:, 0]
    low, high = int(labels.min()), int(labels.max())
    limit = MAX_CLASSES if labels.ndim == 1 else 2
    if low < 0 or high >= limit:
        raise ValueError(f"{stored} has labels from {low} to {high}, and 0 to {limit - 1} was needed: number the classes anew.")
    return labels.astype(np.int64)


def build_labels(table: np.ndarray) -> Labels:
    if table.ndim == 1:
        return Labels.one_each(table)
    return Labels.from_counts(np.nonzero(table)[1], table.sum(axis=1))


def resolve_class_names(path: Path, tables: Mapping[str, np.ndarray], given: tuple[str, ...] | None) -> tuple[str, ...]:
    """The given ones if they fit the labels of all splits, or numbers; none if nothing is labelled."""
    if not tables:
        return ()
    widths = {table.shape[1:] for table in tables.values()}
    if len(widths) > 1:
        raise ValueError(f"{path} has {join_names(list(tables))} of different widths, and the same was needed: save them anew.")
    [width] = widths
    num_classes = width[0] if width else 1 + max(int(table.max()) for table in tables.values())
    if given is None:
        return numbered_class_names(num_classes)
    if len(given) < num_classes or (width and len(given) != num_classes):
        raise ValueError(
            f"{path} has {len(given)} {CLASS_NAMES}, and {num_classes} were needed: name each class that labels count."
        )
    return given


def read_class_names(stored: StoredArray, archive: zipfile.ZipFile) -> tuple[str, ...]:
    if stored.dtype.kind != "U" or len(stored.shape) != 1 or stored.shape[0] > MAX_CLASSES:
        raise ValueError(
            f"{stored} is {stored.dtype} of shape {stored.shape}, and one row of strings was needed: "
            "save np.array(names) of a list of strings."
        )
    names = read_numbers(stored, archive)
    with explain_parsing(stored.path, stored.name):
        listed = tuple(names.tolist())
        "".join(listed).encode()  # half a surrogate pair is found here rather than where it is printed
    return listed


FORMAT = DatasetFormat("arrays", is_arrays, list_splits, open_arrays)
