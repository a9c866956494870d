"""A folder of images: class folders, split folders with class folders inside, or images without classes.

What the root holds decides: `cat/1.jpg`, `train/cat/1.jpg`, or `1.jpg`. Images may lie deeper, as `cat/seen_at_night/1.jpg`,
and a file `classes.txt` in the root may fix the order of the classes and the names to show.
"""

import os
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np

from vitrine.core.console import join_names, warn_user
from vitrine.data.dataset_format import SPLITS, DatasetFormat, normalise_split
from vitrine.data.source import Labels
from vitrine.data.sources.annotations import CLASS_LIST, load_class_list
from vitrine.data.sources.image_files import FileSource, Level, holds_image, list_images, look_into

# How far `is_folder` looks for an image before it says no.
SHALLOW_FOLDERS, SHALLOW_ENTRIES = 300, 1000


def is_folder(path: Path) -> bool:
    try:
        return os.path.isdir(path) and holds_image(str(path), set(), SHALLOW_FOLDERS, SHALLOW_ENTRIES)
    except (ValueError, FileNotFoundError):  # what it cannot look into is not its own
        return False


def list_folder_splits(path: Path) -> tuple[str, ...]:
    root = os.path.abspath(path)
    return tuple(find_splits(root, look_into(root), load_class_list(Path(root))))


def open_folder(path: Path, split: str | None) -> FileSource:
    root = os.path.abspath(path)  # which stays right when the process moves to another folder
    top, listed = look_into(root), load_class_list(Path(root))
    splits = find_splits(root, top, listed)
    levels = {folder: look_into(root, folder) for folder in splits.values()} or {"": top}
    classes = resolve_classes(root, levels, listed)
    part = "" if split is None else splits[split]
    others = [*top.others]
    names = list_images(root, part, levels[part], others)
    tell_left_out(root, others)
    if levels[part].images:
        return FileSource(Path(root), names, Labels.none_each(len(names)), ())
    if listed is None:
        require_plain_classes(root, part, names)
    side_files = [] if listed is None else [Path(root, CLASS_LIST)]
    return FileSource(Path(root), names, number_images(names, part, classes), tuple(classes.values()), side_files)


FORMAT = DatasetFormat("folder", is_folder, list_folder_splits, open_folder)


def find_splits(root: str, top: Level, listed: Collection[str] | None) -> dict[str, str]:
    """The folder of each split, as train, val, test; none where the folders are classes.

    A class may be called "train": folders are splits only where all of them are called so, and a class list that has them
    all makes them classes.
    """
    named = [folder for folder in top.full if normalise_split(folder)]
    found = {normalise_split(folder) for folder in named}
    if not named or (listed is not None and set(top.full) <= set(listed)):
        return {}
    if len(named) < len(top.full) or not ("train" in found or len(found) > 1):
        reject_ambiguous(root, top, named)
        return {}
    if top.images:
        raise ValueError(
            f"{root} has images, such as {join_names(top.images, 1)}, beside the splits {join_names(named)}, and they would "
            "belong to none: move them into one, or away."
        )
    if len(found) < len(named):
        raise ValueError(
            f"{root} has the folders {join_names(named)}, and some of them are names of the same split: merge these, so that "
            "there is at most one each for train, val and test."
        )
    return {split: folder for split in SPLITS for folder in named if normalise_split(folder) == split}


def reject_ambiguous(root: str, top: Level, named: list[str]) -> None:
    """One folder of images called like a split is a class; several, or one with folders of its own, could be either."""
    if len(named) == 1 and look_into(root, named[0]).images:
        return
    rest = [folder for folder in top.full if folder not in named]
    beside = f"beside {join_names(rest)}" if rest else "and no train"
    raise ValueError(
        f"{root} has {join_names(named)}, called like splits, {beside}, and either splits or classes were needed: move the "
        f"one or the other away, or, if all are classes, list them in a file {CLASS_LIST} there."
    )


def resolve_classes(root: str, levels: Mapping[str, Level], listed: dict[str, str] | None) -> dict[str, str]:
    """The folders of the classes in their order, with the names to show: the same for all splits."""
    for part, level in levels.items():
        if level.images and level.full:
            raise ValueError(
                f"{Path(root, part)} has images, such as {join_names(level.images, 1)}, beside folders with images, such as "
                f"{join_names(level.full, 1)}, and either all or none should lie in class folders: move the ones or the others."
            )
    full = {folder for level in levels.values() for folder in level.full}
    if listed is not None:
        strangers = sorted(full - set(listed))
        if strangers:
            raise ValueError(
                f"{Path(root, CLASS_LIST)} does not list the class folder {join_names(strangers)}, and all were needed: add "
                "a line for each, or move the folder away."
            )
        return listed
    require_images(root, levels, full)
    classes = sorted(full)
    # isdecimal is true of other scripts' digits too, which int reads as well.
    if all(folder.isdecimal() for folder in classes) and classes != sorted(classes, key=int):
        warn_user(f"{root}: its classes are numbers but sorted as text, 10 before 2; a file {CLASS_LIST} there can order them.")
    return {folder: folder for folder in classes}


def require_images(root: str, levels: Mapping[str, Level], full: set[str]) -> None:
    """An empty folder beside classes: was it to be one, with images that never arrived? In one split of several it is fine."""
    for part, level in levels.items():
        empty = [folder for folder in level.empty if level.full and folder not in full]
        if empty:
            raise ValueError(
                f"{Path(root, part)} has class folders without any image ({join_names(empty)}), and each needs one: fill "
                f"them, remove them, or list all classes in a file {CLASS_LIST} in {root}."
            )


def require_plain_classes(root: str, part: str, names: list[str]) -> None:
    """Nothing in the class folders looks as if the splits, or the classes, were one folder deeper."""
    start = len(part) + 1 if part else 0
    inner: dict[str, set[str]] = {}
    for name in names:
        folder, _, rest = name[start:].partition("/")
        inner.setdefault(folder, set()).add(rest.partition("/")[0] if "/" in rest else "")
    for folder, folders in inner.items():
        splits = sorted(each for each in folders if normalise_split(each))
        if len({normalise_split(each) for each in splits}) > 1:
            raise ValueError(
                f"{Path(root, part, folder)} would be a class folder but has the splits {join_names(splits)}, and splits "
                "come above classes: give that folder itself if it is the data, or move the splits up."
            )
    if len(inner) == 1 and len(folders := next(iter(inner.values()))) > 1 and "" not in folders:
        only = Path(root, part, next(iter(inner)))
        warn_user(
            f"{only} is the only class folder, with folders in it ({join_names(sorted(folders), 3)}): are these the classes?"
        )


def number_images(names: list[str], part: str, classes: Mapping[str, str]) -> Labels:
    numbers = {folder: index for index, folder in enumerate(classes)}
    start = len(part) + 1 if part else 0
    labels = (numbers[name[start:].partition("/")[0]] for name in names)
    return Labels.one_each(np.fromiter(labels, dtype=np.int64, count=len(names)))


def tell_left_out(root: str, others: list[str]) -> None:
    if others:
        shown = join_names(sorted(others), 3)
        warn_user(f"{root}: {len(others)} of its files were left out, which are no image files ({shown}).")
