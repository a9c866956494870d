"""Datasets that exist as Python objects: map-style torch datasets, `datasets.Dataset` and `datasets.DatasetDict`.

An item of a map-style dataset is (image, label), or an image alone. Images are PIL images or uint8 arrays, without
augmentation: Vitrine resizes and augments itself. A dict of datasets has its keys as splits.
"""

import operator
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import RLock
from typing import Any, Protocol

import numpy as np
from PIL import Image

from vitrine.core.console import progress_bar
from vitrine.data.dataset_format import order_splits
from vitrine.data.image import BadImage, convert_image
from vitrine.data.source import Labels, Source
from vitrine.data.sources.annotations import numbered_class_names, validate_labels
from vitrine.data.sources.hub import HubSource, choose_split, match_splits

EXPECTED = "expected a path, or a dataset with a length whose items are (PIL image, label)"
GREY_MODES = ("1", "L", "LA", "La", "I", "F")
LABEL_ATTRIBUTES = ("targets", "labels")

# torch never calls a dataset from several threads, so it need not be thread-safe. One lock per process: a lock that is held
# while the process forks would stay locked in the child.
LOCKS: dict[int, RLock] = {}


class MapDataset(Protocol):
    """Map-style dataset of torch, or `datasets.Dataset`."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Any: ...


def list_python_splits(data: Any) -> tuple[str, ...]:
    """Return the splits of a dataset object; only a dict of datasets has any."""
    parts = list(data.values()) if isinstance(data, Mapping) else [data]
    for part in parts:
        if not (isinstance(part, Source) or (hasattr(part, "__len__") and hasattr(part, "__getitem__"))):
            raise ValueError(f"{type(part).__name__} is not a dataset; {EXPECTED}.")
    return order_splits(match_splits(list(data))) if isinstance(data, Mapping) else ()


def open_python_data(data: Any, title: str, split: str | None) -> Source:
    """Open a dataset object, or a split of a dict of datasets; `title` names it in messages."""
    parts = data if isinstance(data, Mapping) else {None: data}
    key = choose_split(parts, title, split)
    dataset, others = parts[key], [part for other, part in parts.items() if other != key]
    if isinstance(dataset, Source):
        return dataset
    if is_hugging_face(dataset):
        return HuggingFaceSource(dataset, title, split, [other for other in others if is_hugging_face(other)])
    return MapDatasetSource(dataset, title if split is None else f"{title}/{split}", others)


def is_hugging_face(dataset: Any) -> bool:
    """Return whether an object is a `datasets.Dataset`, without importing that package."""
    module = sys.modules.get("datasets")
    return module is not None and isinstance(dataset, module.Dataset)


class HuggingFaceSource(HubSource):
    """Images of a `datasets.Dataset` made by the caller, maybe a selection, so that its files do not identify it."""

    def files(self) -> list[Path]:
        return []


class MapDatasetSource(Source):
    """Images of a map-style dataset, read by index; labels are read once, at the start."""

    def __init__(self, dataset: MapDataset, title: str, others: Sequence[Any] = ()) -> None:
        """Take one split and, in `others`, the other splits, so that all have the same classes if these have no names."""
        self.dataset = dataset
        self.title = title
        labels = load_labels(dataset, title)
        class_names = find_class_names(dataset)
        if class_names is None:
            highest = [int(each.values.max(initial=-1)) for each in (labels, *(load_labels(other, title) for other in others))]
            class_names = numbered_class_names(max(highest) + 1)
        self.labels, self.class_names = validate_labels(labels, class_names, title, self.name)

    def fetch(self, index: int) -> np.ndarray:
        """Return the image of one item of the dataset, for `Source.read`."""
        with LOCKS.setdefault(os.getpid(), RLock()):
            image, _ = split_item(self.dataset[index], self.title)
        if isinstance(image, np.ndarray):
            return image
        num_channels = 1 if image.mode in GREY_MODES or image.mode.startswith("I;") else 3
        try:
            return np.asarray(convert_image(image, num_channels, self.name(index)))
        except BadImage as error:
            raise OSError(str(error)) from None

    def name(self, index: int) -> str:
        return f"{self.title}[{index}]"

    def files(self) -> list[Path]:
        return []


def split_item(item: Any, title: str) -> tuple[Any, Any]:
    """Return image and label of an item; the label of an image alone is None."""
    image, label = item if isinstance(item, tuple | list) and len(item) == 2 else (item, None)
    if not isinstance(image, Image.Image | np.ndarray):
        found = f"({type(image).__name__}, label)" if image is not item else type(item).__name__
        raise ValueError(f"{title} gives {found}; expected (PIL image, label): remove transforms such as ToTensor.")
    return image, label


def load_labels(dataset: MapDataset, title: str) -> Labels:
    """Return the labels of a map-style dataset, from its attribute `targets` or `labels`, otherwise from its items."""
    known = read_label_attribute(dataset)
    if known is not None and len(dataset) > 0:
        # The items decide: a subclass may have changed them without changing the attribute.
        ends = [split_item(dataset[index], title)[1] for index in (0, len(dataset) - 1)]
        if [parse_label(label, title) for label in ends] == [int(known[0]), int(known[-1])]:
            return Labels.one_each(known)
    indices = progress_bar(range(len(dataset)), len(dataset), f"Reading labels of {title}")
    labels = [parse_label(split_item(dataset[index], title)[1], title) for index in indices]
    if any(isinstance(label, list) for label in labels):
        return Labels.several_each(label if isinstance(label, list) else [label] for label in labels)
    return Labels.one_each([label for label in labels if isinstance(label, int)])


def read_label_attribute(dataset: Any) -> np.ndarray | None:
    """Return the class indices (N) that a torchvision dataset, or a `Subset` of one, keeps in an attribute."""
    if hasattr(dataset, "dataset") and hasattr(dataset, "indices"):
        labels = read_label_attribute(dataset.dataset)
        return None if labels is None else labels[np.asarray(dataset.indices, np.int64)]
    attribute = next((name for name in LABEL_ATTRIBUTES if hasattr(dataset, name)), None)
    if attribute is None or getattr(dataset, "target_transform", None) is not None:
        return None
    labels = np.asarray(getattr(dataset, attribute))
    return labels if labels.dtype.kind in "iu" and labels.shape == (len(dataset),) else None


def parse_label(label: Any, title: str) -> int | list[int]:
    """Return a label as a class index, -1 for None, or a list of class indices."""
    if label is None:
        return -1
    try:
        return [operator.index(each) for each in label] if isinstance(label, list | tuple) else operator.index(label)
    except TypeError:
        found = f"{str(label)[:40]!r} ({type(label).__name__})"
        raise ValueError(f"{title} has the label {found}; expected a class index, or a list of them.") from None


def find_class_names(dataset: Any) -> tuple[str, ...] | None:
    """Return the attribute `classes` of a torchvision dataset, or of the one inside a `Subset`; None if there is none."""
    if not hasattr(dataset, "classes") and hasattr(dataset, "dataset"):
        return find_class_names(dataset.dataset)
    classes = getattr(dataset, "classes", None)
    if not isinstance(classes, list | tuple):
        return None
    return tuple(", ".join(name) if isinstance(name, tuple) else str(name) for name in classes)  # tuples: ImageNet's synonyms
