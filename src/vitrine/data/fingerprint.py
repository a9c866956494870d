"""Fingerprint of the images that a run uses, by which a resumed run notices that they have changed.

It holds names, labels, class names and file sizes. No image is read, so other pixels in a file of the same name and size are
not noticed.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitrine.core.console import join_names
from vitrine.data.source import Source

MAX_LISTED = 20_000  # images or files; larger splits keep digests only, and changes are told by class


@dataclass(frozen=True)
class SplitFingerprint:
    """Fingerprint of one split."""

    class_names: list[str]
    class_counts: list[int]
    """Number of images of each class."""
    images_digest: str
    """Hash of the names and labels of all images, in order."""
    files_digest: str
    """Hash of the names and sizes of all files, in order."""
    images: dict[str, list[int]] | None
    """Labels by name; None if there are too many."""
    files: dict[str, int] | None
    """Size in bytes by path below the folder that all files share; None if there are too many."""

    @classmethod
    def compute(cls, source: Source) -> "SplitFingerprint":
        """Compute the fingerprint of a source."""
        images_digest, images = digest_items(
            (source.name(index), [*source.labels.as_tuple(index)]) for index in range(len(source))
        )
        files_digest, files = digest_items(measure_files(source.files()))
        counts = np.bincount(source.labels.values, minlength=len(source.class_names)).tolist()
        return cls([*source.class_names], counts, images_digest, files_digest, images, files)

    def list_changes(self, new: "SplitFingerprint") -> list[str]:
        """Describe what has changed since: classes, else images, else files."""
        if self.class_names != new.class_names:
            gone = [name for name in self.class_names if name not in new.class_names]
            added = [name for name in new.class_names if name not in self.class_names]
            return describe({"missing classes": gone, "new classes": added}) or ["classes in another order"]
        if self.images_digest != new.images_digest:
            return self.list_changed_images(new)
        return self.list_changed_files(new) if self.files_digest != new.files_digest else []

    def list_changed_images(self, new: "SplitFingerprint") -> list[str]:
        """Describe images that were added, removed, relabelled or reordered; by class if there are too many to be listed."""
        before, now = self.images, new.images
        if before is None or now is None:
            counts = zip(new.class_names, self.class_counts, new.class_counts, strict=True)
            by_class = [f"{name} had {old} images and has {count}" for name, old, count in counts if old != count]
            return [join_names(by_class)] if by_class else ["other names or labels of images"]
        kinds = {
            "missing images": [name for name in before if name not in now],
            "new images": [name for name in now if name not in before],
            "images with other labels": [name for name in now if before.get(name, now[name]) != now[name]],
        }
        return describe(kinds) or ["images in another order"]

    def list_changed_files(self, new: "SplitFingerprint") -> list[str]:
        """Describe files that were added or removed or have another size."""
        if self.files is None or new.files is None:
            return ["other names or sizes of files"]
        names = [name for name in {**self.files, **new.files} if self.files.get(name) != new.files.get(name)]
        return describe({"files with another size": names}) or ["files in another order"]


@dataclass(frozen=True)
class DataFingerprint:
    """Fingerprints of the splits that a run uses, and the number of steps that they gave the run."""

    splits: dict[str, SplitFingerprint]
    total_steps: int

    @classmethod
    def compute(cls, splits: dict[str, Source | None], total_steps: int) -> "DataFingerprint":
        """Compute the fingerprint of the splits that are there."""
        computed = {name: SplitFingerprint.compute(source) for name, source in splits.items() if source is not None}
        return cls(computed, total_steps)

    def list_changes(self, new: "DataFingerprint") -> list[str]:
        """Describe what has changed since, split by split; empty if nothing has."""
        changes = []
        for name in {**self.splits, **new.splits}:
            if name not in self.splits or name not in new.splits:
                changes.append(f"{name} is {'new' if name in new.splits else 'missing'}")
            else:
                changes += [f"{name} has {change}" for change in self.splits[name].list_changes(new.splits[name])]
        return changes

    def has_classes_of(self, other: "DataFingerprint") -> bool:
        """Return whether the training images have the same classes in the same order."""
        return self.splits["train"].class_names == other.splits["train"].class_names

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "DataFingerprint":
        """Read what `to_json` has made; KeyError, TypeError or AttributeError if it is something else."""
        splits = {name: SplitFingerprint(**split) for name, split in content["splits"].items()}
        return cls(splits, content["total_steps"])


def describe(kinds: dict[str, list[str]]) -> list[str]:
    """Return a phrase for each kind of change that has names."""
    return [f"{kind} ({join_names(names, 3)})" for kind, names in kinds.items() if names]


def digest_items(items: Iterable[tuple[str, Any]]) -> tuple[str, dict[str, Any] | None]:
    """Return a hash of names and values in their order, and the items themselves unless there are too many."""
    digest, listed = hashlib.blake2b(digest_size=16), {}
    for name, value in items:
        digest.update(f"{name}\0{value}\0".encode("utf-8", "surrogateescape"))
        if len(listed) <= MAX_LISTED:
            listed[name] = value
    return digest.hexdigest(), listed if len(listed) <= MAX_LISTED else None


def measure_files(paths: Sequence[Path]) -> Iterator[tuple[str, int]]:
    """Yield each file's path below the folder that all share, and its size in bytes, -1 if it is missing."""
    absolute = [os.path.abspath(path) for path in paths]
    root = os.path.commonpath([os.path.dirname(path) for path in absolute]) if absolute else ""
    for path in absolute:
        try:
            size = os.stat(path).st_size
        except OSError:
            size = -1
        yield path[len(root) :].lstrip(os.sep), size
