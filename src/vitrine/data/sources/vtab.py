"""VTAB-1k: tasks, lists, `vtab:TASK:DATA`.

A task of VTAB-1k as the community keeps it: lists of images with their classes, beside the images.

`train800.txt`, `val200.txt`, `train800val200.txt` (both together) and `test.txt`; a line is a path from the folder of the
lists, a space and the class, counted from 0. A file `classes.txt` may name the classes.
The 19 tasks of VTAB-1k (arXiv:1910.04867), as a table: what each is, how its images are divided, what is not done to them.

Splits are those of google-research/task_adaptation; which augmentation is off is from appendix F of BiT (arXiv:1912.11370).
The 800, 200, 1000 and test images of a task, from whatever its data is divided into.

Lists of the community are followed. Elsewhere "the first 800" are the first of a shuffle that never changes, because images in
class folders are sorted by class; the benchmark takes the first of its own files, which nobody else has.
"""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from vitrine.core.console import join_names
from vitrine.data.dataset_format import DatasetFormat
from vitrine.data.label_rules import (
    Rule,
    label_clevr_count,
    label_clevr_distance,
    label_dmlab,
    label_dsprites_location,
    label_dsprites_orientation,
    label_kitti_distance,
    label_smallnorb_azimuth,
    label_smallnorb_elevation,
)
from vitrine.data.sampling import RngStream
from vitrine.data.source import Labels, Source
from vitrine.data.sources.annotations import CLASS_LIST, MAX_CLASSES, load_class_list, numbered_class_names, quote, read_lines
from vitrine.data.sources.image_files import FileSource
from vitrine.data.subsets import SubsetSource, draw_ranks
from vitrine.data.wrappers import ConcatSource

WHOLE = "train800val200"  # what is trained on in the end; it holds the images of val
LISTS = {"train": "train800.txt", "val": "val200.txt", "test": "test.txt", WHOLE: f"{WHOLE}.txt"}
LINE = re.compile(r"(?P<path>\S.*?)\s+(?P<label>[0-9]{1,9})")


class Line(NamedTuple):
    place: str
    path: str
    label: int


def matches(folder: Path) -> bool:
    return any(os.path.isfile(folder / LISTS[split]) for split in ("train", WHOLE))


def list_splits(folder: Path) -> tuple[str, ...]:
    """Those that have a list; where train and val have one, both together need none."""
    found = {split for split, name in LISTS.items() if os.path.isfile(folder / name)}
    return tuple(split for split in LISTS if split in found or (split == WHOLE and {"train", "val"} <= found))


def open_split(folder: Path, split: str | None) -> Source:
    files = [folder / name for name in LISTS.values() if os.path.isfile(folder / name)]
    lists = {file.name: list(read_list(file)) for file in files}  # all, because the classes are those of all splits
    assert split is not None
    parts = [split] if LISTS[split] in lists else ["train", "val"]
    wanted = [line for part in parts for line in lists[LISTS[part]]]
    require_once(wanted)
    require_first(folder, wanted)
    names = load_class_names(folder, [line for lines in lists.values() for line in lines])
    side_files = [*files, *([folder / CLASS_LIST] if os.path.isfile(folder / CLASS_LIST) else [])]
    labels = Labels.one_each([line.label for line in wanted])
    return FileSource(folder, [line.path for line in wanted], labels, names, side_files)


def read_list(path: Path) -> Iterator[Line]:
    for number, text in read_lines(path):
        match = LINE.fullmatch(text)
        if match is None or int(match["label"]) >= MAX_CLASSES:
            raise ValueError(
                f"{path} line {number} is {quote(text)}, and a path and a class, as 'images/0001.png 7', were needed: mend it."
            )
        yield Line(f"{path} line {number}", os.path.normpath(match["path"]), int(match["label"]))


def require_once(lines: list[Line]) -> None:
    places: dict[str, str] = {}
    for line in lines:
        if line.path in places:
            raise ValueError(f"{line.place} lists {line.path}, as does {places[line.path]}, and once was needed: remove one.")
        places[line.path] = line.place


def require_first(folder: Path, lines: list[Line]) -> None:
    """That the others are there is seen when they are read."""
    if lines and not os.path.isfile(folder / lines[0].path):
        raise FileNotFoundError(
            f"{lines[0].place} lists {lines[0].path}, and there is no such file in {folder}: unpack the images there."
        )


def load_class_names(folder: Path, lines: list[Line]) -> tuple[str, ...]:
    listed, highest = load_class_list(folder), max(lines, key=lambda line: line.label, default=None)
    num_classes = 0 if highest is None else highest.label + 1
    if listed is None:
        return numbered_class_names(num_classes)
    if highest is not None and len(listed) < num_classes:
        raise ValueError(
            f"{highest.place} has the class {highest.label}, and {CLASS_LIST} lists {len(listed)}, counted from 0: mend one."
        )
    return tuple(listed.values())


KIND = DatasetFormat("vtab", matches, list_splits, open_split)

Group = Literal["natural", "specialised", "structured", "generated", "other"]

# Those of the benchmark, in the order of its tables.
GROUPS: tuple[Group, ...] = ("natural", "specialised", "structured")


@dataclass(frozen=True, kw_only=True)
class VtabTask:
    """A task. The shares are for data that is not divided so already; the rule for annotations instead of classes."""

    name: str
    group: Group
    num_classes: int | None = None
    """None where any number is right."""
    folders: tuple[str, ...] = ()
    """Other names under which people keep it."""
    label: str = "class"
    """What the class is, in a few words."""
    rule: Rule | None = None
    val_share: float = 0.2
    """Of train where there is no val; of all images where they are not divided."""
    test_share: float = 0.2
    """Of all images where they are not divided."""
    splits_test: bool = False
    """Without val, the first half of test is val, and the second half test."""
    flip: bool = True
    crop: bool = True


NATURAL = (
    VtabTask(name="caltech101", group="natural", num_classes=102, val_share=0.1),
    VtabTask(name="cifar100", group="natural", num_classes=100, folders=("cifar", "cifar_100"), val_share=0.1),
    VtabTask(name="dtd", group="natural", num_classes=47),
    VtabTask(name="flowers102", group="natural", num_classes=102, folders=("oxford_flowers102", "flowers")),
    VtabTask(name="pets", group="natural", num_classes=37, folders=("oxford_iiit_pet", "oxford_pet", "oxford_pets")),
    VtabTask(name="sun397", group="natural", num_classes=397),
    VtabTask(name="svhn", group="natural", num_classes=10, folders=("svhn_cropped",), val_share=0.1),
)
SPECIALISED = (
    VtabTask(name="patch_camelyon", group="specialised", num_classes=2, folders=("pcam", "camelyon")),
    VtabTask(name="eurosat", group="specialised", num_classes=10),
    VtabTask(name="resisc45", group="specialised", num_classes=45),
    VtabTask(
        name="diabetic_retinopathy",
        group="specialised",
        num_classes=5,
        folders=("retinopathy", "diabetic_retinopathy_detection"),
    ),
)
STRUCTURED = (
    VtabTask(
        name="clevr_count",
        group="structured",
        num_classes=8,
        folders=("clevr_count_all",),
        label="objects - 3",
        rule=label_clevr_count,
        val_share=0.1,
        crop=False,
    ),
    VtabTask(
        name="clevr_distance",
        group="structured",
        num_classes=6,
        folders=("clevr_dist", "clevr_closest_object_distance"),
        label="nearest object: 8, 8.5, 9, 9.5, 10",
        rule=label_clevr_distance,
        val_share=0.1,
        crop=False,
    ),
    VtabTask(name="dmlab", group="structured", num_classes=6, label="3 distances x 2 rewards", rule=label_dmlab, crop=False),
    VtabTask(
        name="dsprites_location",
        group="structured",
        num_classes=16,
        folders=("dsprites_loc", "dsprites_label_x_position"),
        label="x of 32 // 2",
        rule=label_dsprites_location,
        val_share=0.1,
        test_share=0.1,
        flip=False,
        crop=False,
    ),
    VtabTask(
        name="dsprites_orientation",
        group="structured",
        num_classes=16,
        folders=("dsprites_ori", "dsprites_label_orientation"),
        label="angle of 40 // 2.5",
        rule=label_dsprites_orientation,
        val_share=0.1,
        test_share=0.1,
        flip=False,
    ),
    VtabTask(
        name="kitti_distance",
        group="structured",
        num_classes=4,
        folders=("kitti", "kitti_dist", "kitti_closest_vehicle_distance"),
        label="nearest vehicle: 8, 20 m, none",
        rule=label_kitti_distance,
        crop=False,
    ),
    VtabTask(
        name="smallnorb_azimuth",
        group="structured",
        num_classes=18,
        folders=("smallnorb_azi", "smallnorb_label_azimuth"),
        label="azimuth of 18",
        rule=label_smallnorb_azimuth,
        splits_test=True,
        flip=False,
    ),
    VtabTask(
        name="smallnorb_elevation",
        group="structured",
        num_classes=9,
        folders=("smallnorb_ele", "smallnorb_label_elevation"),
        label="elevation of 9",
        rule=label_smallnorb_elevation,
        splits_test=True,
    ),
)
TASKS: dict[str, VtabTask] = {task.name: task for task in (*NATURAL, *SPECIALISED, *STRUCTURED)}

# Stand-ins for structured tasks where nothing can be downloaded, treated as the benchmark's that ask for the same.
GENERATED: dict[str, VtabTask] = {
    "shapes:position": VtabTask(name="shapes_position", group="generated", num_classes=9, flip=False, crop=False),
    "shapes:orientation": VtabTask(name="shapes_orientation", group="generated", num_classes=8, flip=False),
    "shapes:count": VtabTask(name="shapes_count", group="generated", num_classes=5, crop=False),
}

KNOWN = {**TASKS, **{task.name: task for task in GENERATED.values()}}
CALLED = {called: task.name for task in TASKS.values() for called in (task.name, *task.folders)}


def find_task(name: str) -> VtabTask:
    """The task of that name, or one of group other: someone's own data under the same protocol."""
    return KNOWN.get(name) or VtabTask(name=name, group="other")


def name_task(folder: str) -> str:
    """What the task is called that people keep under this name; the name itself where it is none of the benchmark's."""
    return CALLED.get(folder.lower().replace("-", "_"), folder)


SPLITS = tuple(LISTS)  # train (of 800), val (of 200), test, and both of the first together
SIZES = {"train": 800, "val": 200}
SHUFFLE_SEED = 0

Open = Callable[[str | None], Source]


@dataclass(frozen=True)
class Part:
    """Of the images of one split of the data, as shuffled, those from one share to another."""

    split: str | None
    start: float = 0.0
    stop: float = 1.0


def open_task_split(
    task: VtabTask, splits: tuple[str, ...], open_split: Open, split: str | None, test_images: int | None = None
) -> Source:
    """`splits` and `open_split` are of the data; `split` is one of SPLITS; `test_images` is the most of test, None for all."""
    assert split is not None
    most = test_images if split == "test" else SIZES.get(split)
    if WHOLE in splits:
        return take(open_split(split), Part(split), most if split == "test" else None)
    if split == WHOLE:
        return ConcatSource([open_task_split(task, splits, open_split, part) for part in SIZES])
    part = divide(task, splits)[split]
    return take(open_split(part.split), part, most)


def divide(task: VtabTask, splits: tuple[str, ...]) -> dict[str, Part]:
    """Where the images for training, validation and test come from."""
    val, test = task.val_share, task.test_share
    if not splits:
        return {"train": Part(None, val + test), "val": Part(None, test, val + test), "test": Part(None, 0.0, test)}
    if "train" not in splits or not {"val", "test"} & set(splits):
        raise ValueError(
            f"The data of {task.name} has the splits {join_names(splits)}, and train and test were needed: add what is missing."
        )
    if "val" not in splits and task.splits_test:
        return {"train": Part("train"), "val": Part("test", 0.0, 0.5), "test": Part("test", 0.5)}
    if "val" in splits and "test" in splits:
        return {split: Part(split) for split in ("train", "val", "test")}
    return {"train": Part("train", val), "val": Part("train", 0.0, val), "test": Part("test" if "test" in splits else "val")}


def take(source: Source, part: Part, most: int | None) -> Source:
    """The first so many of the part, in the order of the source."""
    if most is None and (part.start, part.stop) == (0.0, 1.0):
        return source
    ranks = draw_ranks(source, RngStream.SUBSET, SHUFFLE_SEED)
    start, stop = (round(share * len(source)) for share in (part.start, part.stop))
    return SubsetSource(source, np.sort(ranks[start:stop][:most]))
