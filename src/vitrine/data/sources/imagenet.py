"""ImageNet (ILSVRC 2012) as it is unpacked: train in folders named by wnid, val flat with a label file or in such folders.

The splits are train, val, and "real" where real.json has the ReaL labels of the validation images (arXiv 2006.07159).
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from os.path import isdir
from pathlib import Path

import numpy as np

from vitrine.data.kind import Kind
from vitrine.data.source import Labels, Source
from vitrine.data.sources.files import FileSource
from vitrine.data.sources.imagenet_labels import (
    LABEL_FILES,
    REAL,
    find_file,
    is_wnid,
    list_label_files,
    load_real,
    load_truth,
    load_words,
    order_real,
)
from vitrine.data.sources.listing import list_folder

# Where train and val are below what people give: at the top, or as Kaggle packs them.
INNER = ("", "ILSVRC/Data/CLS-LOC", "Data/CLS-LOC", "CLS-LOC")
DEVKIT = "ILSVRC2012_devkit_t12/data"
SUFFIXES = (".jpeg", ".jpg", ".png", ".webp")  # the last three for those who have shrunk or converted theirs
VALIDATION = re.compile(r"ILSVRC2012_val_([0-9]{8})\.\w+")


@dataclass(frozen=True)
class Layout:
    images: Path
    """The folder of train and val."""
    places: tuple[Path, ...]
    """Where the files of labels and names may lie."""
    train: tuple[str, ...]
    """Folders of classes in train, sorted."""
    val: tuple[str, ...]
    """The same in val; none where its images lie flat."""
    is_flat: bool


def find_layout(data: Path) -> Layout | None:
    for inner in INNER:
        images = data / inner
        roots = list(dict.fromkeys((data, images)))
        places = (*roots, *(root / DEVKIT for root in roots))
        train, val = list_classes(images / "train"), list_classes(images / "val")
        if train is None or val is None:
            continue
        is_flat = has_validation(images / "val")
        if train or val or (is_flat and find_file(places, list(LABEL_FILES)) is not None):
            return Layout(images, places, train, val, is_flat)
    return None


def list_classes(folder: Path) -> tuple[str, ...] | None:
    """Its folders, all of which have wnids for names; none where it does not exist; None where it is something else."""
    try:
        with os.scandir(folder) as entries:
            folders = sorted(entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError:
        return None
    # Tiny ImageNet has wnids too, but its images lie one folder deeper.
    if not all(map(is_wnid, folders)) or (folders and isdir(folder / folders[0] / "images")):
        return None
    return tuple(folders)


def has_validation(folder: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            return any(VALIDATION.fullmatch(entry.name) for entry in entries)
    except OSError:
        return False


def is_mine(data: Path) -> bool:
    return find_layout(data) is not None


def list_splits(data: Path) -> tuple[str, ...]:
    layout = find_layout(data)
    assert layout is not None  # by `is_mine`
    has_val = layout.is_flat or bool(layout.val)
    is_there = {"train": bool(layout.train), "val": has_val, "real": has_val and find_file(layout.places, [REAL]) is not None}
    return tuple(split for split, there in is_there.items() if there)


def open_split(data: Path, split: str | None) -> Source:
    layout = find_layout(data)
    assert layout is not None  # by `is_mine`
    words = load_words(layout.places)
    wnids = settle_wnids(layout, words)
    if split == "train":
        paths, labels = list_sorted(layout.images, "train", layout.train, wnids)
    elif split == "val":
        paths, labels = list_validation(layout, wnids)
    else:
        paths, labels = list_real(layout, wnids)
    side_files = list_label_files(layout.places, split or "")
    return FileSource(layout.images, paths, labels, name_classes(layout, wnids, words), side_files)


def settle_wnids(layout: Layout, words: dict[str, str] | None) -> tuple[str, ...]:
    """The classes, the same for every split: those of train, or else those that have names, or else those that val has."""
    if layout.train or words is not None:
        return layout.train or tuple(sorted(words or ()))
    if not layout.is_flat:
        return layout.val
    truth = load_truth(layout.places)
    wnids = sorted({label for label in truth.labels if isinstance(label, str)})
    if not wnids:
        raise FileNotFoundError(f"{truth.path} counts classes, and nothing says which they are: put synset_words.txt beside.")
    return tuple(wnids)


def name_classes(layout: Layout, wnids: Sequence[str], words: dict[str, str] | None) -> tuple[str, ...]:
    if words is None:
        return tuple(wnids)
    unnamed = next((wnid for wnid in wnids if wnid not in words), None)
    if unnamed is not None:
        raise ValueError(f"{layout.places[0]} has no words for {unnamed} in its list of names: add a line, or remove the list.")
    return tuple(words[wnid] for wnid in wnids)


def list_sorted(images: Path, split: str, folders: Sequence[str], wnids: Sequence[str]) -> tuple[list[str], Labels]:
    """Images in folders of their classes."""
    numbers = {wnid: number for number, wnid in enumerate(wnids)}
    paths, counts = [], []
    for folder in folders:
        if folder not in numbers:
            raise ValueError(f"{images / split / folder} is not among the {len(wnids)} classes of train or the names: add it.")
        names = [name for name in list_folder(images / split / folder) if name.lower().endswith(SUFFIXES)]
        if not names:
            raise ValueError(f"{images / split / folder} has no image ({', '.join(SUFFIXES)}): unpack it again, or remove it.")
        paths.extend(f"{split}/{folder}/{name}" for name in names)
        counts.append(len(names))
    return paths, Labels.one_each(np.repeat([numbers[folder] for folder in folders], counts))


def list_flat(layout: Layout) -> list[str]:
    if layout.val:
        raise ValueError(f"{layout.images / 'val'} has images both flat and in folders: move all of them into one form.")
    names = [name for name in list_folder(layout.images / "val") if name.lower().endswith(SUFFIXES)]
    return [f"val/{name}" for name in names]


def list_validation(layout: Layout, wnids: Sequence[str]) -> tuple[list[str], Labels]:
    if not layout.is_flat:
        return list_sorted(layout.images, "val", layout.val, wnids)
    paths, truth = list_flat(layout), load_truth(layout.places)
    numbers = number_images(layout, paths, len(truth.labels), truth.path)
    return paths, Labels.one_each(truth.to_classes(wnids)[numbers - 1])


def list_real(layout: Layout, wnids: Sequence[str]) -> tuple[list[str], Labels]:
    """The images of val in the same order, each with any number of labels."""
    path = find_file(layout.places, [REAL])
    assert path is not None
    paths = list_flat(layout) if layout.is_flat else list_sorted(layout.images, "val", layout.val, wnids)[0]
    labels = load_real(path, len(wnids))
    return paths, order_real(labels, number_images(layout, paths, len(labels), path))


def number_images(layout: Layout, paths: list[str], num_labels: int, labels: Path) -> np.ndarray:
    """The numbers in the names of validation images, which must be 1 to N, (N)."""
    numbers = []
    for path in paths:
        match = VALIDATION.fullmatch(path.rpartition("/")[2])
        if match is None:
            raise ValueError(f"{layout.images / path} must be named as in ILSVRC2012_val_00000001.JPEG: rename or move it.")
        numbers.append(int(match[1]))
    if len(numbers) != num_labels:
        raise ValueError(
            f"{labels} has {num_labels} labels for {len(numbers)} images in val, and one each was needed: mend it."
        )
    absent = set(range(1, num_labels + 1)).difference(numbers)
    if absent:
        lost = f"ILSVRC2012_val_{min(absent):08d}"
        raise FileNotFoundError(f"{layout.images / 'val'} has no {lost}, and all were needed: unpack it again.")
    return np.array(numbers, dtype=np.int64)


KIND = Kind("imagenet", is_mine, list_splits, open_split)
