"""Labels that come as class numbers: whether each image has one, and each is one of the classes."""

from collections.abc import Callable

import numpy as np

from vitrine.data.source import Labels

# A label that is a hash or a date would otherwise make as many classes, each of which gets a name.
MAX_CLASSES = 1_000_000


def number_classes(num_classes: int) -> tuple[str, ...]:
    """Names for classes that have none."""
    return tuple(map(str, range(num_classes)))


def settle_labels(
    labels: Labels, class_names: tuple[str, ...], where: str, name: Callable[[int], str]
) -> tuple[Labels, tuple[str, ...]]:
    """What a source has as both; labels below 0 say that there is none, which all images may do or no image.

    `where` is what names the classes; `name` gives the name of an image.
    """
    num_lacking, num_labels = int((labels.values < 0).sum()), len(labels.values)
    if num_labels == 0 or (num_lacking == num_labels and not labels.has_several):
        return Labels.none_each(len(labels)), ()
    if num_lacking > 0:
        first = find_image(labels, labels.values < 0)
        raise ValueError(
            f"{where} has {num_labels - num_lacking} labels, and {name(first)} is the first of {num_lacking} images "
            "without (none, null, or below 0): give each a label, or none."
        )
    if labels.values.max() >= len(class_names):
        first = find_image(labels, labels.values >= len(class_names))
        raise ValueError(
            f"{name(first)} has the label {labels[first]}, and {where} names {len(class_names)} classes, counted from "
            "0: correct one of them."
        )
    return labels, class_names


def find_image(labels: Labels, is_meant: np.ndarray) -> int:
    """The first with a label that is meant."""
    position = int(np.flatnonzero(is_meant)[0])
    return position if labels.starts is None else int(np.searchsorted(labels.starts, position, side="right")) - 1
