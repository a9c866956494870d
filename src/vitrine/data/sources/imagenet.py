"""ILSVRC 2012, its label files, ReaL labels.

What ImageNet's images show: the four label files of its validation images, ReaL labels, and the words of its classes.

A class is a synset of WordNet, known by its "wnid" such as n01440764. Labels count the wnids in sorted order; the devkit's
own numbers (ILSVRC2012_ID) are in another order, and only its meta.mat says in which.
ImageNet (ILSVRC 2012) as it is unpacked: train in folders named by wnid, val flat with a label file or in such folders.

The splits are train, val, and "real" where real.json has the ReaL labels of the validation images (arXiv 2006.07159).
"""

import os
import re
from collections.abc import Sequence
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

# What a line looks like. Where it does not name its image, lines are in the order of the images. Those that name wnids come
# first: they need nothing else; "val.txt" comes last: it may be a file of anybody's.
LABEL_FILES = {
    "LOC_val_solution.csv": rf"ILSVRC2012_val_(?P<image>[0-9]{{8}}),\s*(?P<label>{WNID})(\s.*)?",  # Kaggle's
    "imagenet_2012_validation_synset_labels.txt": rf"(?P<label>{WNID})",  # TensorFlow's
    BY_ID: r"(?P<label>[0-9]{1,9})",
    BY_INDEX: r"(\S*/)?ILSVRC2012_val_(?P<image>[0-9]{8})(\.\w+)?\s+(?P<label>[0-9]{1,9})",  # Caffe's
}
WORDS_FILES = ("synset_words.txt", "LOC_synset_mapping.txt")


@dataclass(frozen=True)
class Truth:
    """What a label file says of images 1 to N: wnids, or indices of classes."""

    path: Path
    lines: list[int]
    labels: list[str] | list[int]

    def to_classes(self, wnids: Sequence[str]) -> np.ndarray:
        """Indices of classes, int64 (N)."""
        numbers: dict[str | int, int] = {wnid: number for number, wnid in enumerate(wnids)}
        numbers.update({number: number for number in range(len(wnids))})
        for line, label in zip(self.lines, self.labels, strict=True):
            if label not in numbers:
                raise ValueError(
                    f"{self.path}, line {line} has the class {label}, which is not among the {len(wnids)} of this data: "
                    "complete the images or their names, or give the label file that belongs to them."
                )
        return np.array([numbers[label] for label in self.labels], dtype=np.int64)


def find_file(places: Sequence[Path], names: Sequence[str]) -> Path | None:
    """The first of the names that lies in one of the places."""
    return next((place / name for name in names for place in places if isfile(place / name)), None)


def list_label_files(places: Sequence[Path], split: str) -> list[Path]:
    """Those that labels and names of the split's images may come from: a change of any of them may be one of the labels."""
    names = {"train": (), "val": tuple(LABEL_FILES), "real": (*LABEL_FILES, REAL)}[split]
    found = (find_file(places, [name]) for name in (*WORDS_FILES, META, *names))
    return [path for path in found if path is not None]


def load_truth(places: Sequence[Path]) -> Truth:
    names, meta = list(LABEL_FILES), find_file(places, [META])
    if meta is None:
        names.sort(key=BY_ID.__eq__)  # any other is better then
    path = find_file(places, names)
    if path is None:
        raise FileNotFoundError(f"{places[0]} has no labels for its validation images: add one of {', '.join(names)}.")
    lines, labels = read_labels(path)
    if path.name == BY_INDEX:
        return Truth(path, lines, [int(label) for label in labels])
    return Truth(path, lines, to_wnids(path, meta, lines, labels) if path.name == BY_ID else labels)


def read_labels(path: Path) -> tuple[list[int], list[str]]:
    """Numbers of lines and labels, in the order of the images that they are about."""
    pattern, found = re.compile(LABEL_FILES[path.name]), {}
    for position, (line, text) in enumerate(read_lines(path)):
        if position == 0 and text == "ImageId,PredictionString":
            continue
        match = pattern.fullmatch(text)
        if match is None:
            raise ValueError(f"{path}, line {line} is {quote(text)}, which is no label as this file has them: fetch it again.")
        image = int(match.groupdict().get("image", len(found) + 1))
        if image in found:
            raise ValueError(f"{path}, line {line} has a second label for image {image}, and one was needed: fetch it again.")
        found[image] = line, match["label"]
    absent = next((image for image in range(1, len(found) + 1) if image not in found), None)
    if absent is not None or not found:
        raise ValueError(f"{path} has no label for validation image {absent or 1}, which was needed: fetch it again.")
    ordered = [found[image] for image in range(1, len(found) + 1)]
    return [line for line, _ in ordered], [label for _, label in ordered]


def to_wnids(path: Path, meta: Path | None, lines: list[int], ids: list[str]) -> list[str]:
    if meta is None:
        raise FileNotFoundError(
            f"{path} has numbers of classes that only {META} of the same devkit explains, and it is not there: put it beside."
        )
    wnids = {number: wnid for number, wnid, _ in load_synsets(meta)}
    for line, number in zip(lines, ids, strict=True):
        if int(number) not in wnids:
            raise ValueError(f"{path}, line {line} has the class {number}, which {meta} does not have: fetch both again.")
    return [wnids[int(number)] for number in ids]


def load_synsets(path: Path) -> list[tuple[int, str, str]]:
    """ILSVRC2012_ID, wnid and words of each class; synsets with children are not classes."""
    synsets = load_mat(path, "synsets")["synsets"]
    if not isinstance(synsets, list):
        raise ValueError(f"{path} has no structures in synsets, as the devkit's file has: fetch it again.")
    found = []
    for position, synset in enumerate(synsets, start=1):
        number, children = (to_integer(synset.get(field)) for field in ("ILSVRC2012_ID", "num_children"))
        wnid, words = synset.get("WNID"), synset.get("words")
        if number is None or children is None or not is_wnid(wnid) or not isinstance(words, str):
            raise ValueError(f"{path} has no ILSVRC2012_ID, WNID, words and num_children in synset {position}: fetch it again.")
        if children == 0:
            found.append((number, wnid, words))
    if not found or len({number for number, _, _ in found}) < len(found) or len({wnid for _, wnid, _ in found}) < len(found):
        raise ValueError(f"{path} has no classes, or two with one ILSVRC2012_ID or WNID: fetch it again.")
    return found


def to_integer(value: Value | None) -> int | None:
    if not isinstance(value, np.ndarray) or value.size != 1 or not np.isfinite(value).all():
        return None
    number = value.item()
    return int(number) if number == int(number) else None


def is_wnid(text: object) -> bool:
    return isinstance(text, str) and re.fullmatch(WNID, text) is not None


def load_words(places: Sequence[Path]) -> dict[str, str] | None:
    """The words of each wnid, or None where no file has them."""
    path = find_file(places, (*WORDS_FILES, META))
    if path is None:
        return None
    if path.name == META:
        return {wnid: words for _, wnid, words in load_synsets(path)}
    found: dict[str, str] = {}
    for line, text in read_lines(path):
        wnid, _, words = text.partition(" ")
        if not is_wnid(wnid) or not words or wnid in found:
            needed = "each wnid once, with its words, as in 'n01440764 tench, Tinca tinca',"
            raise ValueError(f"{path}, line {line} is {quote(text)}, and {needed} was needed: fetch it again.")
        found[wnid] = words.strip()
    return found


def load_real(path: Path, num_classes: int) -> list[list[int]]:
    """The ReaL labels of images 1 to N (arXiv 2006.07159), of some images none."""
    labels = load_json(path)
    if not isinstance(labels, list):
        raise ValueError(f"{path} is not a list of lists of classes, which was needed: fetch it again.")
    for image, each in enumerate(labels, start=1):
        if not isinstance(each, list) or not all(is_whole(label) and 0 <= label < num_classes for label in each):
            raise ValueError(
                f"{path} has {quote(str(each))} for image {image}, and classes from 0 to {num_classes - 1} were "
                "needed: fetch it again, or complete the classes."
            )
    return labels


def order_real(labels: list[list[int]], images: np.ndarray) -> Labels:
    """For images in the order of these numbers from 1 (N)."""
    return Labels.several_each([sorted(set(labels[image - 1])) for image in images])


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


def matches(data: Path) -> bool:
    return find_layout(data) is not None


def list_splits(data: Path) -> tuple[str, ...]:
    layout = find_layout(data)
    assert layout is not None  # by `matches`
    has_val = layout.is_flat or bool(layout.val)
    is_there = {"train": bool(layout.train), "val": has_val, "real": has_val and find_file(layout.places, [REAL]) is not None}
    return tuple(split for split, there in is_there.items() if there)


def open_split(data: Path, split: str | None) -> Source:
    layout = find_layout(data)
    assert layout is not None  # by `matches`
    words = load_words(layout.places)
    wnids = resolve_wnids(layout, words)
    if split == "train":
        paths, labels = list_sorted(layout.images, "train", layout.train, wnids)
    elif split == "val":
        paths, labels = list_validation(layout, wnids)
    else:
        paths, labels = list_real(layout, wnids)
    side_files = list_label_files(layout.places, split or "")
    return FileSource(layout.images, paths, labels, load_class_names(layout, wnids, words), side_files)


def resolve_wnids(layout: Layout, words: dict[str, str] | None) -> tuple[str, ...]:
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


def load_class_names(layout: Layout, wnids: Sequence[str], words: dict[str, str] | None) -> tuple[str, ...]:
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


KIND = DatasetFormat("imagenet", matches, list_splits, open_split)
