"""Image folders: class folders, split folders with class folders inside, or images without classes.

The first level decides: `cat/1.jpg`, `train/cat/1.jpg` or `1.jpg`. Images may be deeper, e.g. `cat/night/1.jpg`. A file
`classes.txt` in the root may give the order of the classes and their names.
"""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from vitrine.core.console import join_names, warn_user
from vitrine.data.dataset_format import SPLITS, DatasetFormat, normalise_split
from vitrine.data.source import Labels
from vitrine.data.sources.annotations import CLASS_LIST, load_class_list
from vitrine.data.sources.image_files import FileSource, Level, find_image, list_images, read_level, warn_left_out

# Limits of the search for an image in `is_image_folder`.
SHALLOW_FOLDERS, SHALLOW_ENTRIES = 300, 1000


@dataclass(frozen=True)
class Layout:
    """What the first level of an image folder contains."""

    content: Literal["splits", "classes", "images"]
    splits: dict[str, str] = field(default_factory=dict[str, str])
    """{train, val or test: folder}; empty unless the content is splits."""


def is_image_folder(path: Path) -> bool:
    """Return whether a path is a folder with an image near the top, at any depth; ValueError if a folder cannot be listed."""
    try:
        return os.path.isdir(path) and find_image(str(path), set(), SHALLOW_FOLDERS, SHALLOW_ENTRIES) is not None
    except FileNotFoundError:  # removed meanwhile
        return False


def list_splits(path: Path) -> tuple[str, ...]:
    """Return the splits of an image folder."""
    root = os.path.abspath(path)
    return tuple(detect_layout(root, read_level(root), load_class_list(Path(root))).splits)


def open_folder(path: Path, split: str | None) -> FileSource:
    """Open an image folder, or one of its splits."""
    root = os.path.abspath(path)  # stays valid if the process changes its working directory
    top, class_list = read_level(root), load_class_list(Path(root))
    splits = detect_layout(root, top, class_list).splits
    levels = {folder: read_level(root, folder) for folder in splits.values()} or {"": top}
    contents = {part: detect_content(root, part, level) for part, level in levels.items()}
    classes = resolve_classes(root, levels, class_list)
    part = "" if split is None else splits[split]
    others = [*top.others]
    names = list_images(root, part, levels[part], others)
    warn_left_out(root, others)
    if contents[part] == "images":
        return FileSource(Path(root), names, Labels.none_each(len(names)), ())
    if class_list is None:
        check_class_depth(root, part, names)
    side_files = [] if class_list is None else [Path(root, CLASS_LIST)]
    source = FileSource(Path(root), names, label_by_folder(names, part, classes), tuple(classes.values()), side_files)
    source.empty_folders = list_empty_classes(levels, classes)
    if source.empty_folders:
        empty = join_names(source.empty_folders)
        warn_user(f"{root} has folders without images ({empty}), which do not become classes: add images, or remove them.")
    return source


FORMAT = DatasetFormat("folder", is_image_folder, list_splits, open_folder)


def detect_layout(root: str, top: Level, class_list: Collection[str] | None) -> Layout:
    """Decide from the first level whether a folder contains splits, classes or images; raise ValueError if it is unclear.

    A class may be named "train": folders are splits only if all of them are named like splits, and one of them is train or
    there are several. A class list with all of them makes them classes, and so does a single one that contains images.
    """
    named = [folder for folder in top.full if normalise_split(folder)]
    splits = {normalise_split(folder) for folder in named}
    if not named or (class_list is not None and set(top.full) <= set(class_list)):
        return Layout(detect_content(root, "", top))
    if len(named) < len(top.full) or not ("train" in splits or len(splits) > 1):
        if len(named) == 1 and named[0] in top.direct:
            return Layout(detect_content(root, "", top))
        rest = [folder for folder in top.full if folder not in named]
        beside = f"beside {join_names(rest)}" if rest else "but no train"
        raise ValueError(
            f"{root} has folders named like splits ({join_names(named)}) {beside}; expected either splits or classes: move "
            f"some of them away, or list all in a file {CLASS_LIST} there if they are classes."
        )
    if top.images:
        raise ValueError(f"{root} has images ({join_names(top.images, 1)}) beside the splits {join_names(named)}: move them.")
    if len(splits) < len(named):
        raise ValueError(f"{root} has several folders for the same split ({join_names(named)}): merge them.")
    return Layout("splits", {split: folder for split in SPLITS for folder in named if normalise_split(folder) == split})


def detect_content(root: str, part: str, level: Level) -> Literal["classes", "images"]:
    """Decide whether a folder without splits contains class folders or images; raise ValueError if it has both."""
    if level.images and level.full:
        raise ValueError(
            f"{Path(root, part)} has both images (e.g. {join_names(level.images, 1)}) and folders with images (e.g. "
            f"{join_names(level.full, 1)}); expected all images in class folders, or none: move one or the other."
        )
    return "images" if level.images else "classes"


def resolve_classes(root: str, levels: Mapping[str, Level], class_list: dict[str, str] | None) -> dict[str, str]:
    """Return {class folder: name} in class order, the same for all splits: from the class list, else sorted folders."""
    folders = {folder for level in levels.values() for folder in level.full}
    if class_list is not None:
        unlisted = sorted(folders - set(class_list))
        if unlisted:
            raise ValueError(f"{Path(root, CLASS_LIST)} lacks the class folders {join_names(unlisted)}: add a line for each.")
        return class_list
    classes = sorted(folders)
    if all(folder.isdecimal() for folder in classes) and classes != sorted(classes, key=int):
        warn_user(f"{root}: class names are numbers sorted as text, 10 before 2; a file {CLASS_LIST} there can order them.")
    return {folder: folder for folder in classes}


def list_empty_classes(levels: Mapping[str, Level], classes: Mapping[str, str]) -> tuple[str, ...]:
    """Return folders beside class folders that have no image in any split, and are not in the class list either."""
    empty = {folder for level in levels.values() if level.full for folder in level.empty}
    return tuple(sorted(empty - classes.keys()))


def check_class_depth(root: str, part: str, names: list[str]) -> None:
    """Raise or warn if splits or classes seem to be one folder deeper than expected."""
    start = len(part) + 1 if part else 0
    subfolders: dict[str, set[str]] = {}  # of each class folder; "" for images in the class folder itself
    for name in names:
        folder, _, rest = name[start:].partition("/")
        subfolders.setdefault(folder, set()).add(rest.partition("/")[0] if "/" in rest else "")
    for folder, inner in subfolders.items():
        splits = sorted(each for each in inner if normalise_split(each))
        if len({normalise_split(each) for each in splits}) > 1:
            raise ValueError(f"{Path(root, part, folder)} has the splits {join_names(splits)} in a class: move them up.")
    if len(subfolders) == 1 and len(inner := next(iter(subfolders.values()))) > 1 and "" not in inner:
        only = Path(root, part, next(iter(subfolders)))
        warn_user(f"{only} is the only class folder; its subfolders ({join_names(sorted(inner), 3)}) may be the classes.")


def label_by_folder(names: list[str], part: str, classes: Mapping[str, str]) -> Labels:
    """Return the class index of each image, from the first folder of its path below `part`."""
    index_of = {folder: index for index, folder in enumerate(classes)}
    start = len(part) + 1 if part else 0
    labels = (index_of[name[start:].partition("/")[0]] for name in names)
    return Labels.one_each(np.fromiter(labels, dtype=np.int64, count=len(names)))
