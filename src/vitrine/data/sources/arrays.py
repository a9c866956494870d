"""Images in NumPy's own files: a .npz with images, labels and perhaps splits, as Keras and MedMNIST have, or a .npy of images.

Nothing is unpickled. Shapes: N images of H x W pixels of C channels; K classes.
"""

import os
import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitrine.core.sentences import list_names
from vitrine.data.kind import SPLITS, Kind
from vitrine.data.source import ArraySource, Labels
from vitrine.data.sources.labelling import MAX_CLASSES, number_classes
from vitrine.data.sources.numpy_files import (
    StoredArray,
    explain_parsing,
    list_arrays,
    locate,
    locate_npy,
    map_numbers,
    open_archive,
    read_numbers,
)

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
    class_names = settle_class_names(path, tables, class_names)
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
        raise ValueError(f"{path} has the arrays {list_names(sorted(names))}, which are {found}; {needed}.")
    # Labels under a name that we do not know must not be taken for none.
    others = set(names) - {CLASS_NAMES} - {name for role in roles.values() for name in (role.images, role.labels)}
    unlabelled = [role.images for role in roles.values() if role.labels is None]
    if unlabelled and others:
        raise ValueError(f"{path} has {list_names(sorted(others))} and no labels for {list_names(unlabelled)}; {needed}.")
    return roles


def choose(path: Path, names: Collection[str], wanted: Sequence[str]) -> str | None:
    """The one of the wanted names that is there."""
    found = [name for name in wanted if name in names]
    if len(found) > 1:
        raise ValueError(f"{path} has the arrays {list_names(found)}, and only one of these was needed: take the others out.")
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


def settle_class_names(path: Path, tables: Mapping[str, np.ndarray], given: tuple[str, ...] | None) -> tuple[str, ...]:
    """The given ones if they fit the labels of all splits, or numbers; none if nothing is labelled."""
    if not tables:
        return ()
    widths = {table.shape[1:] for table in tables.values()}
    if len(widths) > 1:
        raise ValueError(f"{path} has {list_names(list(tables))} of different widths, and the same was needed: save them anew.")
    [width] = widths
    num_classes = width[0] if width else 1 + max(int(table.max()) for table in tables.values())
    if given is None:
        return number_classes(num_classes)
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


KIND = Kind("arrays", is_arrays, list_splits, open_arrays)
