"""What a kind of data has to answer, so that one file and one line in `opening.KINDS` add it."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from vitrine.core.console import join_names
from vitrine.data.source import Source

SPLITS = ("train", "val", "test")

# How people spell them, in folders and in lists, in any case.
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
    """A kind of data on disk, recognised by what is there."""

    name: str
    matches: Callable[[Path], bool]
    """Whether the path holds this kind; looks at names and first bytes only."""
    list_splits: Callable[[Path], tuple[str, ...]]
    """As train, val, test; empty where the data is not divided."""
    open: Callable[[Path, str | None], Source]
    """The images of a split, one of `list_splits`, or of all the data where it is not divided (None)."""


def normalise_split(name: str) -> str | None:
    """train, val or test; None for a word that means none of them."""
    return SPLIT_NAMES.get(name.strip().lower())


def order_splits(found: Collection[str | None]) -> tuple[str, ...]:
    """Those that were found, as train, val, test."""
    return tuple(split for split in SPLITS if split in found)


def require_split(data: Path | str, split: str | None, splits: tuple[str, ...]) -> None:
    """A split is named exactly where there are some."""
    if split is None and splits:
        raise ValueError(f"{data} has the splits {join_names(splits)}: say which one is meant.")
    if split is not None and split not in splits:
        has = f"the splits {join_names(splits)}" if splits else "no splits"
        raise ValueError(f"{data} has {has}, and {split!r} was asked for: take {'one of these' if splits else 'all of it'}.")
