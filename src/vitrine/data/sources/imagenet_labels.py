"""What ImageNet's images show: the four label files of its validation images, ReaL labels, and the words of its classes.

A class is a synset of WordNet, known by its "wnid" such as n01440764. Labels count the wnids in sorted order; the devkit's
own numbers (ILSVRC2012_ID) are in another order, and only its meta.mat says in which.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from os.path import isfile
from pathlib import Path

import numpy as np

from vitrine.core.checks import is_whole
from vitrine.data.source import Labels
from vitrine.data.sources.annotations import load_json, quote, read_lines
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
        number, children = (to_whole(synset.get(field)) for field in ("ILSVRC2012_ID", "num_children"))
        wnid, words = synset.get("WNID"), synset.get("words")
        if number is None or children is None or not is_wnid(wnid) or not isinstance(words, str):
            raise ValueError(f"{path} has no ILSVRC2012_ID, WNID, words and num_children in synset {position}: fetch it again.")
        if children == 0:
            found.append((number, wnid, words))
    if not found or len({number for number, _, _ in found}) < len(found) or len({wnid for _, wnid, _ in found}) < len(found):
        raise ValueError(f"{path} has no classes, or two with one ILSVRC2012_ID or WNID: fetch it again.")
    return found


def to_whole(value: Value | None) -> int | None:
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
