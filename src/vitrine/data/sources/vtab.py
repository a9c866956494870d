"""VTAB-1k (arXiv:1910.04867): its 19 tasks, their image lists, and `vtab:TASK:DATA`.

Image lists are text files beside the images: `train800.txt`, `val200.txt`, `train800val200.txt` (both) and `test.txt`. A line
is a path relative to the folder, a space and the class, counted from 0. A file `classes.txt` may name the classes.

Data without such lists is divided as in google-research/task_adaptation. "The first 800 images" are the first of a fixed
shuffle, because images in class folders are sorted by class. Which augmentation a task leaves out is from appendix F of BiT
(arXiv:1912.11370).
"""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from vitrine.core.console import join_names
from vitrine.data.dataset_format import DatasetFormat
from vitrine.data.sampling import RngStream
from vitrine.data.source import Labels, Source
from vitrine.data.sources.annotations import (
    CLASS_LIST,
    MAX_CLASSES,
    load_class_list,
    numbered_class_names,
    quote,
    read_lines,
    require_once,
)
from vitrine.data.sources.image_files import FileSource
from vitrine.data.subsets import SubsetSource, draw_order
from vitrine.data.wrappers import ConcatSource

Group = Literal["natural", "specialised", "structured", "generated", "other"]

# The benchmark's groups, in the order of its tables.
GROUPS: tuple[Group, ...] = ("natural", "specialised", "structured")


@dataclass(frozen=True, kw_only=True)
class VtabTask:
    """One task of the benchmark. The fractions apply to data that has no such split of its own."""

    name: str
    group: Group
    num_classes: int | None = None
    """None: any number."""
    folders: tuple[str, ...] = ()
    """Other folder names in common use."""
    label: str = "class"
    """What the class means, in a few words."""
    val_fraction: float = 0.2
    """Fraction of train, or of all images where there are no splits."""
    test_fraction: float = 0.2
    """Fraction of all images where there are no splits."""
    splits_test: bool = False
    """Without a val split, the first half of test is val and the second half test."""
    flip: bool = True
    crop: bool = True


def natural(name: str, num_classes: int, *folders: str, val_fraction: float = 0.2, group: Group = "natural") -> VtabTask:
    """Return a row of the natural or the specialised group."""
    return VtabTask(name=name, group=group, num_classes=num_classes, folders=folders, val_fraction=val_fraction)


specialised = partial(natural, group="specialised")


def structured(name: str, num_classes: int, label: str, *folders: str, **changes: float) -> VtabTask:
    """Return a row of the structured group."""
    return VtabTask(name=name, group="structured", num_classes=num_classes, label=label, folders=folders, **changes)  # type: ignore[arg-type]


DSPRITES = {"val_fraction": 0.1, "test_fraction": 0.1, "flip": False}
TASKS: dict[str, VtabTask] = {
    task.name: task
    for task in (
        natural("caltech101", 102, val_fraction=0.1),
        natural("cifar100", 100, "cifar", "cifar_100", val_fraction=0.1),
        natural("dtd", 47),
        natural("flowers102", 102, "oxford_flowers102", "flowers"),
        natural("pets", 37, "oxford_iiit_pet", "oxford_pet", "oxford_pets"),
        natural("sun397", 397),
        natural("svhn", 10, "svhn_cropped", val_fraction=0.1),
        specialised("patch_camelyon", 2, "pcam", "camelyon"),
        specialised("eurosat", 10),
        specialised("resisc45", 45),
        specialised("diabetic_retinopathy", 5, "retinopathy", "diabetic_retinopathy_detection"),
        structured("clevr_count", 8, "objects - 3", "clevr_count_all", val_fraction=0.1, crop=False),
        structured(
            *("clevr_distance", 6, "nearest object: 8, 8.5, 9, 9.5, 10", "clevr_dist", "clevr_closest_object_distance"),
            val_fraction=0.1,
            crop=False,
        ),
        structured("dmlab", 6, "3 distances x 2 rewards", crop=False),
        structured(
            *("dsprites_location", 16, "x of 32 // 2", "dsprites_loc", "dsprites_label_x_position"), **DSPRITES, crop=False
        ),
        structured("dsprites_orientation", 16, "angle of 40 // 2.5", "dsprites_ori", "dsprites_label_orientation", **DSPRITES),
        structured(
            *("kitti_distance", 4, "nearest vehicle: 8, 20 m, none", "kitti", "kitti_dist", "kitti_closest_vehicle_distance"),
            crop=False,
        ),
        structured(
            *("smallnorb_azimuth", 18, "azimuth of 18", "smallnorb_azi", "smallnorb_label_azimuth"),
            splits_test=True,
            flip=False,
        ),
        structured("smallnorb_elevation", 9, "elevation of 9", "smallnorb_ele", "smallnorb_label_elevation", splits_test=True),
    )
}

# Stand-ins for structured tasks where nothing can be downloaded, augmented like the benchmark's tasks of the same kind.
GENERATED: dict[str, VtabTask] = {
    "shapes:position": VtabTask(name="shapes_position", group="generated", num_classes=9, flip=False, crop=False),
    "shapes:orientation": VtabTask(name="shapes_orientation", group="generated", num_classes=8, flip=False),
    "shapes:count": VtabTask(name="shapes_count", group="generated", num_classes=5, crop=False),
}

TASKS_BY_NAME = {**TASKS, **{task.name: task for task in GENERATED.values()}}
TASK_NAMES = {alias: task.name for task in TASKS.values() for alias in (task.name, *task.folders)}


def find_task(name: str) -> VtabTask:
    """Return the task of that name, else a task of group "other": the user's own data under the same protocol."""
    return TASKS_BY_NAME.get(name) or VtabTask(name=name, group="other")


def resolve_task_name(folder: str) -> str:
    """Return the name of the task usually kept in a folder of this name; the folder's own name where there is none."""
    return TASK_NAMES.get(folder.lower().replace("-", "_"), folder)


# Image lists.

WHOLE = "train800val200"  # the split of the final training; it holds the images of train and val
LISTS = {"train": "train800.txt", "val": "val200.txt", "test": "test.txt", WHOLE: f"{WHOLE}.txt"}
LINE = re.compile(r"(?P<path>\S.*?)\s+(?P<label>[0-9]{1,9})")


class Line(NamedTuple):
    """One image of a list; `where` names file and line for messages."""

    where: str
    path: str
    label: int


def matches(folder: Path) -> bool:
    """Whether a folder holds the image lists of a VTAB-1k task."""
    return any(os.path.isfile(folder / LISTS[split]) for split in ("train", WHOLE))


def list_splits(folder: Path) -> tuple[str, ...]:
    """List the splits that have an image list; train800val200 is made of train and val where it has none."""
    found = {split for split, name in LISTS.items() if os.path.isfile(folder / name)}
    return tuple(split for split in LISTS if split in found or (split == WHOLE and {"train", "val"} <= found))


def open_split(folder: Path, split: str | None) -> Source:
    """Open the images of one list, with the classes of all lists."""
    files = [folder / name for name in LISTS.values() if os.path.isfile(folder / name)]
    lists = {file.name: list(read_list(file)) for file in files}
    assert split is not None
    parts = [split] if LISTS[split] in lists else ["train", "val"]
    lines = [line for part in parts for line in lists[LISTS[part]]]
    require_once((line.where, line.path) for line in lines)
    if lines and not os.path.isfile(folder / lines[0].path):  # the other files are checked when they are read
        raise FileNotFoundError(f"{lines[0].where} lists {lines[0].path}, which is not in {folder}: unpack the images there.")
    class_names = load_class_names(folder, [line for lines in lists.values() for line in lines])
    side_files = [*files, *([folder / CLASS_LIST] if os.path.isfile(folder / CLASS_LIST) else [])]
    labels = Labels.one_each([line.label for line in lines])
    return FileSource(folder, [line.path for line in lines], labels, class_names, side_files)


def read_list(path: Path) -> Iterator[Line]:
    """Yield the images of one list file."""
    for number, text in read_lines(path):
        match = LINE.fullmatch(text)
        if match is None or int(match["label"]) >= MAX_CLASSES:
            expected = "a path and a class, e.g. 'images/0001.png 7'"
            raise ValueError(f"{path} line {number} is {quote(text)}; expected {expected}: correct it.")
        yield Line(f"{path} line {number}", os.path.normpath(match["path"]), int(match["label"]))


def load_class_names(folder: Path, lines: list[Line]) -> tuple[str, ...]:
    """Return the names in classes.txt, or numbers where that file is missing."""
    listed, highest = load_class_list(folder), max(lines, key=lambda line: line.label, default=None)
    num_classes = 0 if highest is None else highest.label + 1
    if listed is None:
        return numbered_class_names(num_classes)
    if highest is not None and len(listed) < num_classes:
        raise ValueError(f"{highest.where} has class {highest.label}, but {CLASS_LIST} lists only {len(listed)}: correct one.")
    return tuple(listed.values())


FORMAT = DatasetFormat("vtab", matches, list_splits, open_split)


# `vtab:TASK:DATA`: the 800, 200, 1000 and test images of a task, from data in any format.

SPLITS = tuple(LISTS)
SIZES = {"train": 800, "val": 200}
SHUFFLE_SEED = 0

OpenSplit = Callable[[str | None], Source]


@dataclass(frozen=True)
class Part:
    """A part of one split of the data: after a fixed shuffle, the images from fraction `start` to fraction `stop`."""

    split: str | None
    start: float = 0.0
    stop: float = 1.0


def open_task_split(
    task: VtabTask, splits: tuple[str, ...], open_split: OpenSplit, split: str | None, test_images: int | None = None
) -> Source:
    """Open one of SPLITS of a task, from data with its own `splits`; `test_images` limits the test images (None: all)."""
    assert split is not None
    limit = test_images if split == "test" else SIZES.get(split)
    if WHOLE in splits:
        return draw_images(open_split(split), Part(split), limit if split == "test" else None)
    if split == WHOLE:
        return ConcatSource([open_task_split(task, splits, open_split, part) for part in SIZES])
    part = assign_parts(task, splits)[split]
    return draw_images(open_split(part.split), part, limit)


def assign_parts(task: VtabTask, splits: tuple[str, ...]) -> dict[str, Part]:
    """Return which part of the data is train, val and test of the task."""
    val, test = task.val_fraction, task.test_fraction
    if not splits:
        return {"train": Part(None, val + test), "val": Part(None, test, val + test), "test": Part(None, 0.0, test)}
    if "train" not in splits or not {"val", "test"} & set(splits):
        raise ValueError(f"The data of {task.name} has the splits {join_names(splits)}; expected train and test: add them.")
    if "val" not in splits and task.splits_test:
        return {"train": Part("train"), "val": Part("test", 0.0, 0.5), "test": Part("test", 0.5)}
    if "val" in splits and "test" in splits:
        return {split: Part(split) for split in ("train", "val", "test")}
    return {"train": Part("train", val), "val": Part("train", 0.0, val), "test": Part("test" if "test" in splits else "val")}


def draw_images(source: Source, part: Part, limit: int | None) -> Source:
    """Draw `limit` images of a part by the fixed shuffle (None: all of it), and return them in the order of the source."""
    if limit is None and (part.start, part.stop) == (0.0, 1.0):
        return source
    order = draw_order(source, RngStream.SUBSET, SHUFFLE_SEED)
    start, stop = (round(fraction * len(source)) for fraction in (part.start, part.stop))
    return SubsetSource(source, np.sort(order[start:stop][:limit]))
