"""Checks of a dataset before training: unreadable files, duplicates, leaks between splits, conflicting labels, odd images.

`check_data` finds issues; check_page.py shows them with thumbnails on a page.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from vitrine.core.console import join_names
from vitrine.data.open_data import DataLike, find_data
from vitrine.data.quality.duplicates import DuplicatePairs, find_duplicates_between, find_duplicates_within
from vitrine.data.quality.image_stats import ImageStats, compute_image_stats
from vitrine.data.source import Source

if TYPE_CHECKING:
    from vitrine.core.runtime import Runtime

IssueKind = Literal[
    "unreadable",
    "two labels",
    "in two splits",
    "exact copies",
    "near copies",
    "no training images",
    "empty class folder",
    "single image",
    "suspicious",
    "label suspect",
]
KINDS: tuple[IssueKind, ...] = get_args(IssueKind)
WORTH_A_LOOK: tuple[IssueKind, ...] = (
    "empty class folder",
    "single image",
    "suspicious",
    "label suspect",
)  # the other kinds are errors in the data

JOINED_SPLITS = ("train800val200",)  # VTAB: train and val together
KEPT_FIRST = ("test", "val", "train")  # of duplicates in several splits, the training image is the one to leave out
MIN_SIDE = 16  # pixels, where other images are four times as large
MAX_NEAR_SIMILARITY = 0.9999  # of images whose bytes differ
MAX_ASPECT = 5.0  # long side by short side


@dataclass(frozen=True)
class ImageRef:
    """One image of a dataset: its split (None where there are none) and its index there."""

    split: str | None
    index: int


@dataclass(frozen=True)
class Issue:
    """One problem, with the images that it is about; for duplicates, all copies."""

    kind: IssueKind
    images: tuple[ImageRef, ...]
    detail: str = ""

    @property
    def is_error(self) -> bool:
        return self.kind not in WORTH_A_LOOK


@dataclass(frozen=True)
class DataCheck:
    """The result of `check_data`: the opened splits, statistics of their images, and the issues found."""

    sources: dict[str | None, Source]
    stats: dict[str | None, ImageStats]
    issues: tuple[Issue, ...] = ()

    @property
    def is_clean(self) -> bool:
        """Whether no issue is an error."""
        return not any(issue.is_error for issue in self.issues)

    def name(self, image: ImageRef) -> str:
        """Return the name of an image in its source, usually a path."""
        return self.sources[image.split].name(image.index)

    def classes(self, image: ImageRef) -> tuple[str, ...]:
        """Return the class names of an image's labels."""
        source = self.sources[image.split]
        return tuple(source.class_names[label] for label in source.labels.as_tuple(image.index))

    def count_classes(self) -> dict[str | None, np.ndarray]:
        """Count the images of each class by split. An image with several labels counts for each."""
        return {
            split: np.bincount(source.labels.values, minlength=len(source.class_names))
            for split, source in self.sources.items()
        }

    def with_issues(self, issues: Sequence[Issue]) -> "DataCheck":
        """Return this check with further issues, e.g. label issues found by a model."""
        return replace(self, issues=(*self.issues, *issues))


def check_data(data: DataLike, runtime: "Runtime | None" = None, show_progress: bool = False) -> DataCheck:
    """Check every split of a dataset, and the splits against each other: what `vitrine data check` prints."""
    dataset = find_data(data)
    splits = dataset.splits or (None,)
    if {"train", "val"} <= set(splits):
        splits = [split for split in splits if split not in JOINED_SPLITS]
    sources = {split: dataset.open(split) for split in splits}
    stats = {
        split: compute_image_stats(source, f"reading {split or dataset.name}", runtime, show_progress)
        for split, source in sources.items()
    }
    check = DataCheck(sources, stats)
    errors = find_unreadable(check) + find_duplicate_groups(check, show_progress) + find_untrained_classes(check)
    return check.with_issues(errors + find_small_classes(check) + find_suspicious(check))


def find_unreadable(check: DataCheck) -> list[Issue]:
    """Find images that cannot be decoded."""
    return [
        Issue("unreadable", (ImageRef(split, index),), reason)
        for split, stats in check.stats.items()
        for index, reason in sorted(stats.unreadable.items())
    ]


def find_duplicate_groups(check: DataCheck, show_progress: bool = False) -> list[Issue]:
    """Find groups of duplicates within and across splits; each group is reported once, as its worst kind."""
    refs = [ImageRef(split, index) for split, stats in check.stats.items() for index in range(len(stats))]
    groups = group_duplicates(find_all_pairs(check, show_progress))
    issues = [describe_group(check, tuple(refs[member] for member in members), similarity) for members, similarity in groups]
    return sorted(issues, key=lambda issue: KINDS.index(issue.kind))


def find_all_pairs(check: DataCheck, show_progress: bool) -> DuplicatePairs:
    """Find duplicates within each split and between any two, in indices that count through all splits."""
    starts = np.cumsum([0, *map(len, check.stats.values())])[:-1]
    splits = list(zip(starts, check.stats.values(), check.sources.values(), strict=True))
    parts = []
    for (start, stats, source), (other_start, other_stats, other) in combinations_with_replacement(splits, 2):
        if other_stats is stats:
            pairs = find_duplicates_within(stats, source, show_progress)
        else:
            pairs = find_duplicates_between(stats, source, other_stats, other, show_progress)
        parts.append((pairs.indices + np.array([start, other_start]), pairs.similarity, pairs.is_exact))
    return DuplicatePairs(*map(np.concatenate, zip(*parts, strict=True)))


def group_duplicates(pairs: DuplicatePairs) -> list[tuple[list[int], float]]:
    """Group pairs into sets of copies of one image, each with its lowest similarity; 1 means identical bytes."""
    partners: dict[int, dict[int, float]] = {}
    values = np.where(pairs.is_exact, 1.0, np.minimum(pairs.similarity, MAX_NEAR_SIMILARITY))
    for (first, second), value in zip(pairs.indices.tolist(), values.tolist(), strict=True):
        partners.setdefault(first, {})[second] = value
        partners.setdefault(second, {})[first] = value
    groups = []
    for first in sorted(partners):
        copies = partners[first]
        if copies:
            groups.append(([first, *sorted(copies)], min(copies.values())))
            members = {first, *copies}
            for member in members:  # pairs within this group are done
                partners[member] = {other: value for other, value in partners[member].items() if other not in members}
    return groups


def describe_group(check: DataCheck, images: tuple[ImageRef, ...], similarity: float) -> Issue:
    """Return the issue that a group of duplicates is: how similar, in which splits, under which labels; as its worst kind."""
    splits = sorted({image.split for image in images if image.split is not None})
    labels = sorted({" and ".join(sorted(check.classes(image))) for image in images} - {""})
    kind: IssueKind = "exact copies" if similarity == 1.0 else "near copies"
    details = ["identical bytes" if similarity == 1.0 else f"similarity {similarity:.2f}"]
    if len(splits) > 1:
        kind = "in two splits"
        details.append(f"in both {' and '.join(splits)}")
    if len(labels) > 1:
        kind = "two labels"
        details.append(f"labelled {join_names(labels)}")
    return Issue(kind, images, ", ".join(details))


def find_untrained_classes(check: DataCheck) -> list[Issue]:
    """Find classes that have test images and no training images."""
    if "train" not in check.sources:
        return []
    tested, trained = set[str](), set[str]()
    for split, source in check.sources.items():
        names = {source.class_names[label] for label in np.unique(source.labels.values).tolist()}
        (trained if split == "train" else tested).update(names)
    return [Issue("no training images", (), f"class {name}") for name in sorted(tested - trained)]


def find_small_classes(check: DataCheck) -> list[Issue]:
    """Find folders of classes without any image, and classes with a single training image."""
    empty = dict.fromkeys(folder for source in check.sources.values() for folder in source.empty_folders)
    issues = [Issue("empty class folder", (), f"folder {folder}") for folder in empty]
    trained = "train" if "train" in check.sources else next(iter(check.sources))
    source = check.sources[trained]
    if not source.labels.has_several:
        labels, first_indices, counts = np.unique(source.labels.values, return_index=True, return_counts=True)
        for label, index in zip(labels[counts == 1].tolist(), first_indices[counts == 1].tolist(), strict=True):
            name = source.class_names[label]
            issues.append(Issue("single image", (ImageRef(trained, index),), f"the only image of class {name}"))
    return issues


def find_suspicious(check: DataCheck) -> list[Issue]:
    """Find readable images that may not be what they should: flat, tiny, strips, misnamed files."""
    issues = []
    for split, stats in check.stats.items():
        is_readable = stats.sizes.min(axis=1) > 0
        median_side = float(np.median(stats.sizes[is_readable].min(axis=1))) if is_readable.any() else 0.0
        for index in np.flatnonzero(is_readable).tolist():
            doubts = list_doubts(stats, index, median_side)
            if doubts:
                issues.append(Issue("suspicious", (ImageRef(split, index),), ", ".join(doubts)))
    return issues


def list_doubts(stats: ImageStats, index: int, median_side: float) -> list[str]:
    """List what is odd about one readable image."""
    height, width = stats.sizes[index].tolist()
    doubts = []
    if index in stats.misnamed:
        doubts.append(f"{stats.misnamed[index]} under another format's name")
    if stats.hashes.is_flat[index]:
        doubts.append("one colour all over")
    if min(height, width) < MIN_SIDE and median_side >= 4 * MIN_SIDE:
        doubts.append(f"only {height} x {width} pixels")
    if max(height, width) > MAX_ASPECT * min(height, width):
        doubts.append(f"{height} x {width} pixels, a strip")
    return doubts


def list_images_to_exclude(check: DataCheck) -> list[str]:
    """List names of training images for `data.exclude`: unreadable, copies except one, all with conflicting labels.

    Of an image in two splits the training image is excluded. Suspicious images are left for people to judge.
    """
    trained = "train" if "train" in check.sources else None
    names: dict[str, None] = {}
    for issue in check.issues:
        if not issue.is_error or not issue.images:
            continue
        excluded = list(issue.images)
        if issue.kind not in ("unreadable", "two labels"):
            excluded.remove(min(issue.images, key=keep_order))
        names.update(dict.fromkeys(check.name(image) for image in excluded if trained is None or image.split == trained))
    return list(names)


def keep_order(image: ImageRef) -> tuple[int, int]:
    """Sort key of the copies of an image: the first one is kept."""
    rank = KEPT_FIRST.index(image.split) if image.split in KEPT_FIRST else len(KEPT_FIRST)
    return rank, image.index
