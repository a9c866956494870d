"""ImageNet (ILSVRC 2012) as unpacked: train in folders named by wnid, val flat with a label file or in such folders.

The splits are train, val, and "real" if real.json with the ReaL labels of the validation images is there (arXiv 2006.07159).

A class is a WordNet synset, identified by its "wnid", e.g. n01440764. Labels are positions in the sorted list of wnids. The
devkit numbers classes in another order (ILSVRC2012_ID), which only its meta.mat explains.
"""

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from os.path import isdir, isfile
from pathlib import Path

import numpy as np

from vitrine.core.config_checks import is_whole
from vitrine.data.dataset_format import DatasetFormat
from vitrine.data.source import Labels, Source
from vitrine.data.sources.annotations import load_json, quote, read_lines
from vitrine.data.sources.image_files import FileSource, list_folder
from vitrine.data.sources.matlab import Value, load_mat

WNID = r"n[0-9]{8}"
META, REAL = "meta.mat", "real.json"
BY_INDEX, BY_ID = "val.txt", "ILSVRC2012_validation_ground_truth.txt"

# Label files of the validation images, and what their lines look like. Lines without an image name are in image order. Files
# with wnids come first, since they need nothing else; "val.txt" comes last, since any file may be called so.
LABEL_FILES = {
    "LOC_val_solution.csv": rf"ILSVRC2012_val_(?P<image>[0-9]{{8}}),\s*(?P<label>{WNID})(\s.*)?",  # Kaggle's
    "imagenet_2012_validation_synset_labels.txt": rf"(?P<label>{WNID})",  # TensorFlow's
    BY_ID: r"(?P<label>[0-9]{1,9})",
    BY_INDEX: r"(\S*/)?ILSVRC2012_val_(?P<image>[0-9]{8})(\.\w+)?\s+(?P<label>[0-9]{1,9})",  # Caffe's
}
WORDS_FILES = ("synset_words.txt", "LOC_synset_mapping.txt")


@dataclass(frozen=True)
class ValidationLabels:
    """Labels of validation images 1 to N from a label file: wnids, or class indices."""

    path: Path
    lines: list[int]
    labels: list[str] | list[int]

    def to_classes(self, wnids: Sequence[str]) -> np.ndarray:
        """Return class indices, int64 (N)."""
        numbers: dict[str | int, int] = {wnid: number for number, wnid in enumerate(wnids)}
        numbers.update({number: number for number in range(len(wnids))})
        for line, label in zip(self.lines, self.labels, strict=True):
            if label not in numbers:
                found = f"{self.path}, line {line} has class {label}, which is not among the {len(wnids)} classes"
                raise ValueError(f"{found}: complete the images or class names, or use the label file that belongs to them.")
        return np.array([numbers[label] for label in self.labels], dtype=np.int64)


def find_file(folders: Sequence[Path], names: Sequence[str]) -> Path | None:
    """Return the first of the names that exists in one of the folders."""
    return next((folder / name for name in names for folder in folders if isfile(folder / name)), None)


def list_label_files(folders: Sequence[Path], split: str) -> list[Path]:
    """List the files that labels and class names of a split may come from, for fingerprints of the data."""
    names = {"train": (), "val": tuple(LABEL_FILES), "real": (*LABEL_FILES, REAL)}[split]
    found = (find_file(folders, [name]) for name in (*WORDS_FILES, META, *names))
    return [path for path in found if path is not None]


def load_validation_labels(folders: Sequence[Path]) -> ValidationLabels:
    """Read the first label file that is there."""
    names, meta = list(LABEL_FILES), find_file(folders, [META])
    if meta is None:
        names.sort(key=BY_ID.__eq__)  # last, since it needs meta.mat
    path = find_file(folders, names)
    if path is None:
        raise FileNotFoundError(f"{folders[0]} has no labels for its validation images: add one of {', '.join(names)}.")
    lines, labels = read_labels(path)
    if path.name == BY_INDEX:
        return ValidationLabels(path, lines, [int(label) for label in labels])
    return ValidationLabels(path, lines, to_wnids(path, meta, lines, labels) if path.name == BY_ID else labels)


def read_labels(path: Path) -> tuple[list[int], list[str]]:
    """Read line numbers and labels, in the order of the images."""
    pattern, found = re.compile(LABEL_FILES[path.name]), {}
    for position, (line, text) in enumerate(read_lines(path)):
        if position == 0 and text == "ImageId,PredictionString":
            continue
        match = pattern.fullmatch(text)
        if match is None:
            raise ValueError(f"{path}, line {line} is {quote(text)}, which is not a label of this format: download it again.")
        image = int(match.groupdict().get("image", len(found) + 1))
        if image in found:
            raise ValueError(f"{path}, line {line} has a second label for image {image}: download it again.")
        found[image] = line, match["label"]
    absent = next((image for image in range(1, len(found) + 1) if image not in found), None)
    if absent is not None or not found:
        raise ValueError(f"{path} has no label for validation image {absent or 1}: download it again.")
    ordered = [found[image] for image in range(1, len(found) + 1)]
    return [line for line, _ in ordered], [label for _, label in ordered]


def to_wnids(path: Path, meta: Path | None, lines: list[int], ids: list[str]) -> list[str]:
    """Translate ILSVRC2012_IDs to wnids with meta.mat."""
    if meta is None:
        raise FileNotFoundError(f"{path} has class numbers of the devkit; its {META}, which explains them, is missing: add it.")
    wnids = {number: wnid for number, wnid, _ in load_synsets(meta)}
    for line, number in zip(lines, ids, strict=True):
        if int(number) not in wnids:
            raise ValueError(f"{path}, line {line} has class {number}, which {meta} does not have: download both again.")
    return [wnids[int(number)] for number in ids]


def load_synsets(path: Path) -> list[tuple[int, str, str]]:
    """Read ILSVRC2012_ID, wnid and words of each class from meta.mat; synsets with children are not classes."""
    synsets = load_mat(path, "synsets")["synsets"]
    if not isinstance(synsets, list):
        raise ValueError(f"{path} has no structures in synsets, unlike the devkit's file: download it again.")
    found = []
    for position, synset in enumerate(synsets, start=1):
        number, children = (to_integer(synset.get(field)) for field in ("ILSVRC2012_ID", "num_children"))
        wnid, words = synset.get("WNID"), synset.get("words")
        if number is None or children is None or not is_wnid(wnid) or not isinstance(words, str):
            raise ValueError(f"{path} has no ILSVRC2012_ID, WNID, words and num_children in synset {position}: download it.")
        if children == 0:
            found.append((number, wnid, words))
    if not found or len({number for number, _, _ in found}) < len(found) or len({wnid for _, wnid, _ in found}) < len(found):
        raise ValueError(f"{path} has no classes, or two with the same ILSVRC2012_ID or WNID: download it again.")
    return found


def to_integer(value: Value | None) -> int | None:
    """Return a MATLAB number as an integer; None if it is not a whole number."""
    if not isinstance(value, np.ndarray) or value.size != 1 or not np.isfinite(value).all():
        return None
    number = value.item()
    return int(number) if number == int(number) else None


def is_wnid(text: object) -> bool:
    return isinstance(text, str) and re.fullmatch(WNID, text) is not None


def load_words(folders: Sequence[Path]) -> dict[str, str] | None:
    """Read {wnid: words} from the first file that has them; None if there is no such file."""
    path = find_file(folders, (*WORDS_FILES, META))
    if path is None:
        return None
    if path.name == META:
        return {wnid: words for _, wnid, words in load_synsets(path)}
    found: dict[str, str] = {}
    for line, text in read_lines(path):
        wnid, _, words = text.partition(" ")
        if not is_wnid(wnid) or not words or wnid in found:
            expected = "each wnid once with its words, e.g. 'n01440764 tench, Tinca tinca'"
            raise ValueError(f"{path}, line {line} is {quote(text)}; expected {expected}: download it again.")
        found[wnid] = words.strip()
    return found


def load_real(path: Path, num_classes: int) -> list[list[int]]:
    """Read the ReaL labels of validation images 1 to N (arXiv 2006.07159); some images have none."""
    labels = load_json(path)
    if not isinstance(labels, list):
        raise ValueError(f"{path} is not a list of lists of classes: download it again.")
    for image, each in enumerate(labels, start=1):
        if not isinstance(each, list) or not all(is_whole(label) and 0 <= label < num_classes for label in each):
            found = f"{path} has {quote(str(each))} for image {image}; expected classes from 0 to {num_classes - 1}"
            raise ValueError(f"{found}: download it again, or complete the classes.")
    return labels


def order_real(labels: list[list[int]], images: np.ndarray) -> Labels:
    """Return ReaL labels in the order of these image numbers (N), counted from 1."""
    return Labels.several_each([sorted(set(labels[image - 1])) for image in images])


# Where train and val may be below the given folder: at the top, or as in Kaggle's archive.
INNER = ("", "ILSVRC/Data/CLS-LOC", "Data/CLS-LOC", "CLS-LOC")
DEVKIT = "ILSVRC2012_devkit_t12/data"
SUFFIXES = (".jpeg", ".jpg", ".png", ".webp")  # the last three occur in resized or converted copies
VALIDATION = re.compile(r"ILSVRC2012_val_([0-9]{8})\.\w+")


@dataclass(frozen=True)
class Layout:
    """Where the parts of an unpacked ImageNet are."""

    images: Path
    """The folder of train and val."""
    label_folders: tuple[Path, ...]
    """Folders where label files and class names may be."""
    train: tuple[str, ...]
    """Class folders in train, sorted."""
    val: tuple[str, ...]
    """Class folders in val; none if its images are flat."""
    is_flat: bool
    """Whether val has images outside of class folders."""


def find_layout(data: Path) -> Layout | None:
    """Return where train, val and label files are; None if the folder is not ImageNet."""
    for inner in INNER:
        images = data / inner
        roots = list(dict.fromkeys((data, images)))
        label_folders = (*roots, *(root / DEVKIT for root in roots))
        train, val = list_classes(images / "train"), list_classes(images / "val")
        if train is None or val is None:
            continue
        is_flat = has_validation(images / "val")
        if train or val or (is_flat and find_file(label_folders, list(LABEL_FILES)) is not None):
            return Layout(images, label_folders, train, val, is_flat)
    return None


def list_classes(folder: Path) -> tuple[str, ...] | None:
    """List class folders named by wnid; () if the folder does not exist, None if it holds anything else."""
    try:
        with os.scandir(folder) as entries:
            folders = sorted(entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError:
        return None
    # Tiny ImageNet has wnids too, but its images are one folder deeper.
    if not all(map(is_wnid, folders)) or (folders and isdir(folder / folders[0] / "images")):
        return None
    return tuple(folders)


def has_validation(folder: Path) -> bool:
    """Return whether a folder has validation images directly in it."""
    with suppress(OSError), os.scandir(folder) as entries:
        return any(VALIDATION.fullmatch(entry.name) for entry in entries)
    return False


def list_splits(data: Path) -> tuple[str, ...]:
    """List those of train, val and real that are there."""
    layout = find_layout(data)
    assert layout is not None  # otherwise the format does not match
    has_val = layout.is_flat or bool(layout.val)
    has_real = has_val and find_file(layout.label_folders, [REAL]) is not None
    return tuple(split for split, there in (("train", layout.train), ("val", has_val), ("real", has_real)) if there)


def open_split(data: Path, split: str | None) -> Source:
    """Open train, val, or val with ReaL labels."""
    layout = find_layout(data)
    assert layout is not None  # otherwise the format does not match
    words = load_words(layout.label_folders)
    wnids = resolve_wnids(layout, words)
    if split == "train":
        paths, labels = list_sorted(layout.images, "train", layout.train, wnids)
    elif split == "val":
        paths, labels = list_validation(layout, wnids)
    else:
        paths, labels = list_real(layout, wnids)
    side_files = list_label_files(layout.label_folders, split or "")
    return FileSource(layout.images, paths, labels, load_class_names(layout, wnids, words), side_files)


def resolve_wnids(layout: Layout, words: dict[str, str] | None) -> tuple[str, ...]:
    """Return the classes, the same for every split: those of train, else those with names, else those of val."""
    if layout.train or words is not None:
        return layout.train or tuple(sorted(words or ()))
    if not layout.is_flat:
        return layout.val
    labels = load_validation_labels(layout.label_folders)
    wnids = sorted({label for label in labels.labels if isinstance(label, str)})
    if not wnids:
        raise FileNotFoundError(f"{labels.path} numbers the classes without naming them: put synset_words.txt beside it.")
    return tuple(wnids)


def load_class_names(layout: Layout, wnids: Sequence[str], words: dict[str, str] | None) -> tuple[str, ...]:
    """Return the words of each class, or the wnids where there are none."""
    if words is None:
        return tuple(wnids)
    unnamed = next((wnid for wnid in wnids if wnid not in words), None)
    if unnamed is not None:
        raise ValueError(f"{layout.label_folders[0]} has no name for {unnamed} in its list: add a line, or remove the list.")
    return tuple(words[wnid] for wnid in wnids)


def list_sorted(images: Path, split: str, folders: Sequence[str], wnids: Sequence[str]) -> tuple[list[str], Labels]:
    """List the images in class folders, with their labels."""
    numbers = {wnid: number for number, wnid in enumerate(wnids)}
    paths, counts = [], []
    for folder in folders:
        if folder not in numbers:
            raise ValueError(f"{images / split / folder} is not among the {len(wnids)} classes of train or the names: add it.")
        names = [name for name in list_folder(images / split / folder) if name.lower().endswith(SUFFIXES)]
        if not names:
            raise ValueError(f"{images / split / folder} contains no images ({', '.join(SUFFIXES)}): unpack or remove it.")
        paths.extend(f"{split}/{folder}/{name}" for name in names)
        counts.append(len(names))
    return paths, Labels.one_each(np.repeat([numbers[folder] for folder in folders], counts))


def list_flat(layout: Layout) -> list[str]:
    """List the validation images that are not in class folders."""
    if layout.val:
        raise ValueError(f"{layout.images / 'val'} has images both in class folders and outside of them: use one layout.")
    return [f"val/{name}" for name in list_folder(layout.images / "val") if name.lower().endswith(SUFFIXES)]


def list_validation(layout: Layout, wnids: Sequence[str]) -> tuple[list[str], Labels]:
    """List the validation images with their labels."""
    if not layout.is_flat:
        return list_sorted(layout.images, "val", layout.val, wnids)
    paths, labels = list_flat(layout), load_validation_labels(layout.label_folders)
    numbers = parse_image_numbers(layout, paths, len(labels.labels), labels.path)
    return paths, Labels.one_each(labels.to_classes(wnids)[numbers - 1])


def list_real(layout: Layout, wnids: Sequence[str]) -> tuple[list[str], Labels]:
    """List the validation images, in the order of `list_validation`, each with any number of ReaL labels."""
    path = find_file(layout.label_folders, [REAL])
    assert path is not None
    paths = list_flat(layout) if layout.is_flat else list_sorted(layout.images, "val", layout.val, wnids)[0]
    labels = load_real(path, len(wnids))
    return paths, order_real(labels, parse_image_numbers(layout, paths, len(labels), path))


def parse_image_numbers(layout: Layout, paths: list[str], num_labels: int, labels: Path) -> np.ndarray:
    """Return the numbers (N) in the names of validation images, which must be 1 to N."""
    numbers = []
    for path in paths:
        match = VALIDATION.fullmatch(path.rpartition("/")[2])
        if match is None:
            raise ValueError(f"{layout.images / path} must have a name like ILSVRC2012_val_00000001.JPEG: rename or move it.")
        numbers.append(int(match[1]))
    if len(numbers) != num_labels:
        raise ValueError(
            f"{labels} has {num_labels} labels for {len(numbers)} images in val; expected equal numbers: correct it."
        )
    absent = set(range(1, num_labels + 1)).difference(numbers)
    if absent:
        raise FileNotFoundError(f"{layout.images / 'val'} has no ILSVRC2012_val_{min(absent):08d}: unpack the images again.")
    return np.array(numbers, dtype=np.int64)


FORMAT = DatasetFormat("imagenet", lambda data: find_layout(data) is not None, list_splits, open_split)
