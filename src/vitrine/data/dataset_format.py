"""DatasetFormat, the contract of the files in `sources`, and the names of splits.

A new format is one file in `sources` and one name in `open_data.DATASET_FORMATS`.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from vitrine.core.console import join_names
from vitrine.data.source import Source

SPLITS = ("train", "val", "test")

# Spellings found in folder names and lists, in any case.
SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "train800": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "val200": "val",
    "test": "test",
    "testing": "test",
}


@dataclass(frozen=True)
class DatasetFormat:
    """A format of datasets on disk, and the functions that recognise and open it."""

    name: str
    matches: Callable[[Path], bool]
    """Return whether the path has this format, from file names and first bytes only."""
    list_splits: Callable[[Path], tuple[str, ...]]
    """Return the splits, in the order train, val, test; empty if the data is not divided."""
    open: Callable[[Path, str | None], Source]
    """Open one of the splits, or everything (None) if the data is not divided."""


def normalise_split(name: str) -> str | None:
    """Return train, val or test for any spelling of them, None for other words."""
    return SPLIT_NAMES.get(name.strip().lower())


def order_splits(splits: Collection[str | None]) -> tuple[str, ...]:
    """Return the splits among the given names, in the order train, val, test."""
    return tuple(split for split in SPLITS if split in splits)


def require_split(data: Path | str, split: str | None, splits: tuple[str, ...]) -> None:
    """Raise ValueError unless the split is one of `splits`, or None if there are none."""
    if split is None and splits:
        raise ValueError(f"{data} has the splits {join_names(splits)}: choose one of them.")
    if split is not None and split not in splits:
        if splits:
            raise ValueError(f"{data} has no split {split!r}; it has {join_names(splits)}: choose one of them.")
        raise ValueError(f"{data} has no splits, but {split!r} was requested: leave the split out to use all images.")
