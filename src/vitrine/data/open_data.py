"""From what a user calls their data to a source: built-in names, the hub, and whatever lies at a path."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path

from vitrine.core.console import join_names
from vitrine.core.hub import DATASET_SCHEME as HUB
from vitrine.data.config import DataConfig
from vitrine.data.dataset_format import DatasetFormat, normalise_split, require_split
from vitrine.data.source import Source
from vitrine.data.sources.vtab import find_task
from vitrine.data.subsets import exclude_images, hold_out, select_subset
from vitrine.data.wrappers import load_into_memory

BUILT_IN = ("digits", "shapes")
VTAB = "vtab:"

# Each has a module of its name in `sources`. The more particular come first: a folder of CIFAR's files is no image folder,
# while what ImageNet's archives unpack to would pass for one.
DATASET_FORMATS = (
    *("packed", "vtab", "cifar", "idx", "pets", "flowers", "imagenet"),
    *("webdataset", "parquet", "npz", "manifest", "folder"),
)


@dataclass(frozen=True)
class DatasetHandle:
    """Data that was found and not opened yet."""

    name: str
    kind: str
    splits: tuple[str, ...]
    """Empty where it is not divided."""
    open_split: Callable[[str | None], Source]

    def open(self, split: str | None = None) -> Source:
        """The images of a split, which has to be named exactly where there are some; validation may be meant by val."""
        split = split if split is None or split in self.splits else normalise_split(split) or split
        require_split(self.name, split, self.splits)
        source = self.open_split(split)
        if len(source) == 0:
            raise ValueError(
                f"{self.name} has no images{'' if split is None else f' in {split}'}: check what was unpacked there."
            )
        return source

    def open_train(self) -> Source:
        """The split for training where there is one, else all of it."""
        return self.open("train" if self.splits else None)


DataLike = str | Path | DatasetHandle
"""Whatever `find_data` accepts."""


def open_data(data: str | Path, split: str | None = None) -> Source:
    """The images at a path, on the hub (hf://datasets/org/name) or of a built-in name, recognised by what is there."""
    return find_data(data).open(split)


def open_train_data(config: DataConfig, dataset: DatasetHandle | None = None) -> tuple[Source, Source | None]:
    """What the configuration asks for, and the part of it that is held out, if any.

    The split; without what is excluded; of that the subset; divided; each part in memory, if so wished.
    """
    data = find_data(config.source if dataset is None else dataset)
    source = data.open_train() if config.split is None else data.open(config.split)
    if config.exclude is not None:
        source = exclude_images(source, config.exclude)
    source, held_out = select_subset(source, config.subset, config.subset_seed), None
    if config.held_out > 0:
        source, held_out = hold_out(source, config.held_out, config.subset_seed)
    if config.in_memory:
        source = load_into_memory(source, config.bad_images)
        held_out = None if held_out is None else load_into_memory(held_out, config.bad_images)
    return source, held_out


def open_test(data: DataLike, split: str | None = None) -> Source:
    """What to measure on: the split of that name; without one test, else val; all of it where it is not divided."""
    found = find_data(data)
    return found.open(choose_test_split(found) if split is None and found.splits else split)


def open_train_and_test(
    data: DataLike, held_out: float, seed: int = 0, subset: str = "all"
) -> tuple[Source, Source]:
    """To fit something to, and to measure it on: train and test, else val; of what is not divided, a share is held out.

    A subset is of the images to fit to, and of all of them before any are held out, as it is in a run (`open_configured`).
    """
    found = find_data(data)
    if not found.splits:
        return hold_out(select_subset(found.open(), subset, seed), held_out, seed)
    train, test = found.open_train(), found.open(choose_test_split(found))
    if train.class_names != test.class_names:
        raise ValueError(
            f"The classes of {found.name} are not the same in train and test ({len(train.class_names)} and "
            f"{len(test.class_names)}, or in another order): give both the same."
        )
    return select_subset(train, subset, seed), test


def choose_test_split(data: DatasetHandle) -> str:
    split = next((split for split in ("test", "val") if split in data.splits), None)
    if split is None:
        raise ValueError(
            f"{data.name} has the splits {join_names(data.splits)}, and test or val was needed to measure on: add one."
        )
    return split


def find_data(data: DataLike) -> DatasetHandle:
    if isinstance(data, DatasetHandle):
        return data
    name = str(data)
    if name.startswith(HUB):
        from vitrine.data.sources.hub import list_hub_splits, open_hub

        return DatasetHandle(name, "hub", list_hub_splits(name), partial(open_hub, name))
    if name.startswith(VTAB):
        return find_vtab_task(name)
    if re.split("[:@]", name)[0] in BUILT_IN:
        if find_format(Path(name)) is not None:  # a folder of another kind, as of a run with that name, is not meant
            raise ValueError(f"{name} is both a built-in data set and something here: write ./{name} for what is here.")
        return find_built_in(name)
    return find_on_disk(Path(data))


def find_built_in(name: str) -> DatasetHandle:
    from vitrine.data.sources import digits, shapes

    base = re.split("[:@]", name)[0]
    task = name.removeprefix(base).removeprefix(":")
    if base == "shapes":
        return DatasetHandle(name, "shapes", shapes.SPLITS, partial(shapes.open_shapes, task))
    if task:
        raise ValueError(f"{name} was given, and digits has only one task: write digits.")
    return DatasetHandle(name, "digits", digits.SPLITS, digits.open_digits)


def find_vtab_task(name: str) -> DatasetHandle:
    """`vtab:TASK:DATA`: of any data the 800, 200 and 1000 images that a task of VTAB-1k has, and its test images.

    `vtab:TASK@500:DATA` has at most so many of these.
    """
    from vitrine.data.sources.vtab import SPLITS, assign_parts, open_task_split

    called, colon, where = name.removeprefix(VTAB).partition(":")
    if not called or not colon or not where:
        raise ValueError(f"{name} was given, and a task and its data were needed: write it as {VTAB}pets:DATA.")
    called, at, limit = called.partition("@")
    if at and not re.fullmatch("[1-9][0-9]{0,8}", limit):
        raise ValueError(
            f"{name} asks for {limit!r} test images, and a whole number of at least 1 was needed: write {called}@500."
        )
    task = find_task(called)
    data = find_data(where)
    if data.kind != "vtab":
        assign_parts(task, data.splits)  # what is missing is said before anything is opened
    return DatasetHandle(
        name, data.kind, SPLITS, partial(open_task_split, task, data.splits, data.open, test_images=int(limit) if at else None)
    )


def find_on_disk(path: Path) -> DatasetHandle:
    kind = find_format(path)
    if kind is not None:
        return DatasetHandle(str(path), kind.name, kind.list_splits(path), partial(kind.open, path))
    if str(path).startswith("hf:"):
        raise ValueError(f"{path} was given, and data on the hub is called {HUB}org/name: write it so.")
    if not path.exists():
        raise FileNotFoundError(f"There is no data at {path}: give a folder, a file, {HUB}org/name, {' or '.join(BUILT_IN)}.")
    raise ValueError(
        f"{path} is no data of a known kind; a folder of images, a CSV or JSONL manifest, IDX files, .npz arrays, tar shards, "
        "Parquet, or an official layout (CIFAR, Pets, Flowers, ImageNet, VTAB-1k) was needed: check the path."
    )


def find_format(path: Path) -> DatasetFormat | None:
    """What the data there is; None where there is none that is known."""
    return next((kind for kind in map(load_format, DATASET_FORMATS) if kind.matches(path)), None)


def load_format(name: str) -> DatasetFormat:
    return import_module(f"vitrine.data.sources.{name}").FORMAT
