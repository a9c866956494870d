"""Find and open data: paths, built-in names, hf://datasets/org/name, `vtab:TASK:DATA`, and dataset objects."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path

from vitrine.core.console import join_names
from vitrine.core.hub import DATASET_SCHEME
from vitrine.data.config import DataConfig
from vitrine.data.dataset_format import DatasetFormat, normalise_split, require_split
from vitrine.data.source import Source
from vitrine.data.sources import digits, glyphs, shapes, vtab
from vitrine.data.sources.hub import list_hub_splits, open_hub
from vitrine.data.sources.python_dataset import MapDataset, list_python_splits, open_python_data
from vitrine.data.subsets import exclude_images, hold_out, select_subset
from vitrine.data.wrappers import load_into_memory

BUILT_IN = ("digits", "glyphs", "shapes")
VTAB = "vtab:"
HELD_OUT = 0.2  # fraction of data without splits to test on

# Modules in `sources`, the more specific first: an unpacked ImageNet also looks like class folders.
DATASET_FORMATS = (
    *("packed", "vtab", "cifar", "idx", "pets", "flowers", "imagenet"),
    *("webdataset", "parquet", "npz", "manifest", "folder"),
)


@dataclass(frozen=True)
class DatasetHandle:
    """A dataset that was found and is not opened yet."""

    name: str
    kind: str
    """Name of its format, e.g. folder."""
    splits: tuple[str, ...]
    """Empty if the data is not divided."""
    open_split: Callable[[str | None], Source]

    def open(self, split: str | None = None) -> Source:
        """Open a split, in any spelling (validation is val), or everything if the data is not divided."""
        split = split if split is None or split in self.splits else normalise_split(split) or split
        require_split(self.name, split, self.splits)
        source = self.open_split(split)
        if len(source) == 0:
            raise ValueError(f"{self.name} contains no images{'' if split is None else f' in {split}'}: check its files.")
        return source

    def open_train(self) -> Source:
        """Open the training split, or everything if the data is not divided."""
        return self.open("train" if self.splits else None)


DataLike = str | Path | DatasetHandle | Source | MapDataset | Mapping[str, MapDataset]
"""What `find_data` accepts. A MapDataset is a map-style torch dataset or a `datasets.Dataset`, a mapping a `DatasetDict`."""


def open_data(data: DataLike, split: str | None = None) -> Source:
    """Open a dataset, or one of its splits: a path, hf://datasets/org/name, a built-in name, or a dataset object."""
    return find_data(data).open(split)


def open_train_data(config: DataConfig, dataset: DataLike | None = None) -> tuple[Source, Source | None]:
    """Open the training images that a configuration describes, and the part of them that is held out, if any.

    The order is: split, excluded images, subset, held-out part, loading into memory. `dataset` is the configuration's data,
    for callers that have found it already.
    """
    handle = find_data(config.source if dataset is None else dataset)
    source = handle.open_train() if config.split is None else handle.open(config.split)
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
    """Open the images to evaluate on: the named split, else test, else val, or everything if the data is not divided."""
    handle = find_data(data)
    return handle.open(choose_test_split(handle) if split is None and handle.splits else split)


def open_train_and_test(
    data: DataLike, held_out: float | None = None, seed: int = 0, subset: str = "all"
) -> tuple[Source, Source]:
    """Open images to fit a classifier on, and images to test it on.

    These are the splits train and test (or val). If the data is not divided, the fraction `held_out` of each class, HELD_OUT
    by default, is for testing. `subset` selects among the training images, before any are held out, as in `open_train_data`.
    """
    handle = find_data(data)
    if not handle.splits:
        return hold_out(select_subset(handle.open(), subset, seed), HELD_OUT if held_out is None else held_out, seed)
    if held_out is not None:
        found = f"held_out={held_out} has no effect on {handle.name}, which has the splits {join_names(handle.splits)}"
        raise ValueError(f"{found}: leave it out.")
    train, test = handle.open_train(), handle.open(choose_test_split(handle))
    if train.class_names != test.class_names:
        counts = f"{len(train.class_names)} and {len(test.class_names)}, or in another order"
        raise ValueError(f"The classes of {handle.name} differ between train and test ({counts}): use the same in both.")
    return select_subset(train, subset, seed), test


def choose_test_split(data: DatasetHandle) -> str:
    """Return the split to test on: test, else val."""
    split = next((split for split in ("test", "val") if split in data.splits), None)
    if split is None:
        raise ValueError(f"{data.name} has the splits {join_names(data.splits)}; expected test or val to evaluate on: add one.")
    return split


def find_data(data: DataLike) -> DatasetHandle:
    """Find a dataset and its splits, without opening it; a DatasetHandle is returned unchanged."""
    if isinstance(data, DatasetHandle):
        return data
    if not isinstance(data, str | Path):
        name = type(data).__name__
        return DatasetHandle(name, "python", list_python_splits(data), partial(open_python_data, data, name))
    name = str(data)
    if name.startswith(DATASET_SCHEME):
        return DatasetHandle(name, "hub", list_hub_splits(name), partial(open_hub, name))
    if name.startswith(VTAB):
        return find_vtab_task(name)
    if re.split("[:@]", name)[0] in BUILT_IN:
        if find_format(Path(name)) is not None:  # a folder of that name that is not a dataset, e.g. of a run, does not matter
            raise ValueError(f"{name} is both a built-in dataset and a path: write ./{name} for the path.")
        return find_built_in(name)
    return find_on_disk(Path(data))


def find_built_in(name: str) -> DatasetHandle:
    """Find `digits`, `glyphs`, `shapes` or a variant, e.g. `shapes:count@64` or `glyphs:classes=200@28`."""
    base = re.split("[:@]", name)[0]
    task = name.removeprefix(base).removeprefix(":")
    if base == "shapes":
        return DatasetHandle(name, "shapes", shapes.SPLITS, partial(shapes.open_shapes, task))
    if base == "glyphs":
        return DatasetHandle(name, "glyphs", glyphs.SPLITS, partial(glyphs.open_glyphs, glyphs.parse_settings(name)))
    if task:
        raise ValueError(f"{name} is not a built-in dataset; digits has no variants: write digits.")
    return DatasetHandle(name, "digits", digits.SPLITS, digits.open_digits)


def find_vtab_task(name: str) -> DatasetHandle:
    """Find a task of VTAB-1k in any data: `vtab:TASK:DATA`, or `vtab:TASK@500:DATA` with at most 500 test images."""
    task_name, colon, where = name.removeprefix(VTAB).partition(":")
    if not task_name or not colon or not where:
        raise ValueError(f"{name} does not name a task and its data: write e.g. {VTAB}pets:DATA.")
    task_name, at, limit = task_name.partition("@")
    if at and not re.fullmatch("[1-9][0-9]{0,8}", limit):
        raise ValueError(f"{name} has {limit!r} as the number of test images; expected at least 1: write e.g. {task_name}@500.")
    task = vtab.find_task(task_name)
    data = find_data(where)
    if data.kind != "vtab":
        vtab.assign_parts(task, data.splits)  # raises now, before anything is opened, if a split is missing
    open_split = partial(vtab.open_task_split, task, data.splits, data.open, test_images=int(limit) if at else None)
    return DatasetHandle(name, data.kind, vtab.SPLITS, open_split)


def find_on_disk(path: Path) -> DatasetHandle:
    """Find the dataset at a path, in any known format."""
    dataset_format = find_format(path)
    if dataset_format is not None:
        splits = dataset_format.list_splits(path)
        return DatasetHandle(str(path), dataset_format.name, splits, partial(dataset_format.open, path))
    if str(path).startswith("hf:"):
        raise ValueError(f"{path} is not a dataset on the hub; expected {DATASET_SCHEME}org/name.")
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist; expected a folder, a file, {DATASET_SCHEME}org/name, {' or '.join(BUILT_IN)}."
        )
    raise ValueError(
        f"{path} is not a recognised dataset (expected class folders, CSV, TSV or JSONL, IDX files, .npz arrays, tar shards, "
        "Parquet, or the official files of CIFAR, Pets, Flowers, ImageNet or VTAB-1k): check the path."
    )


def find_format(path: Path) -> DatasetFormat | None:
    """Return the format of the dataset at a path, or None if it has no known format."""
    return next((each for each in map(load_format, DATASET_FORMATS) if each.matches(path)), None)


def load_format(name: str) -> DatasetFormat:
    """Return the format defined by a module of `sources`."""
    return import_module(f"vitrine.data.sources.{name}").FORMAT
