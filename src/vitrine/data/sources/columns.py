"""Which columns of a table hold the images and their labels, and the labels as class numbers: for Parquet and the hub alike.

`features` are what `datasets` notes of each column: {"label": {"_type": "ClassLabel", "names": ["cat", "dog"]}, ...}.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vitrine.core.notices import notice
from vitrine.core.sentences import list_names
from vitrine.data.source import Labels
from vitrine.data.sources.labelling import MAX_CLASSES, number_classes

if TYPE_CHECKING:
    import pyarrow as pa

IMAGE_COLUMNS = ("image", "img")
LABEL_COLUMNS = ("label", "labels", "fine_label")
LISTS = ("Sequence", "List", "LargeList")

Features = Mapping[str, Any]


@dataclass(frozen=True)
class Columns:
    image: str
    label: str | None
    class_names: tuple[str, ...] | None
    """None where they are not noted, and have to be found in the labels."""


def choose_columns(columns: Sequence[str], images: Sequence[str], features: Features, data: str) -> Columns:
    """`images` are the columns that can hold some."""
    image = choose_image_column(images, features)
    if image is None:
        raise ValueError(
            f"{data} has the columns {list_names(columns)}, and one with the bytes of images was needed, called "
            f"{' or '.join(IMAGE_COLUMNS)} if there are several: rename or convert it, or take other data."
        )
    labels = [name for name in LABEL_COLUMNS if name in columns][:1]
    labels = labels or [name for name in columns if is_feature(unwrap_list(features.get(name)), "ClassLabel")]
    if len(labels) > 1:
        notice(f"{data} has the classes {list_names(labels)} and none called label: it is taken as unlabelled.")
    if len(labels) != 1:
        return Columns(image, None, None)
    return Columns(image, labels[0], find_class_names(features.get(labels[0]), data))


def choose_image_column(images: Sequence[str], features: Features) -> str | None:
    """One that is noted as an image, else one that is called so."""
    noted = [name for name in images if is_feature(features.get(name), "Image")]
    named = [name for name in IMAGE_COLUMNS if name in (noted or images)]
    return named[0] if named else noted[0] if len(noted) == 1 else None


def is_feature(feature: Any, kind: str) -> bool:
    return isinstance(feature, Mapping) and feature.get("_type") == kind


def unwrap_list(feature: Any) -> Any:
    """What a list is of; old files write the list itself around it."""
    if isinstance(feature, list) and len(feature) == 1:
        return feature[0]
    return feature.get("feature") if isinstance(feature, Mapping) and feature.get("_type") in LISTS else feature


def find_class_names(feature: Any, data: str) -> tuple[str, ...] | None:
    feature = unwrap_list(feature)
    names = feature.get("names") if is_feature(feature, "ClassLabel") else None
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ValueError(f"{data} has notes on its classes that are no list of names: write it again.")
    return None if names is None else tuple(names)


def find_labels(
    column: "pa.ChunkedArray", others: Sequence["pa.ChunkedArray"], names: tuple[str, ...] | None, data: str
) -> tuple[Labels, tuple[str, ...]]:
    """The labels, below 0 where there is none, and the names of the classes.

    Where no names are known, `others` are the columns of the other splits, so that all of them count the same classes.
    """
    values, counts = flatten_lists(column, data)
    if names is None:
        names = find_classes([values, *(flatten_lists(each, data)[0] for each in others)], data)
    numbers = number_labels(values, names)
    return Labels(numbers) if counts is None else Labels.from_counts(numbers, counts), names


def flatten_lists(column: "pa.ChunkedArray", data: str) -> tuple["pa.ChunkedArray", np.ndarray | None]:
    """The labels as strings or int64, where too large a number comes out below 0; for lists also each row's count (N)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kinds, counts = pa.types, None
    if kinds.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if kinds.is_list(column.type) or kinds.is_large_list(column.type) or kinds.is_fixed_size_list(column.type):
        if 0 < column.null_count < len(column):
            raise ValueError(f"{data} has null for some lists of labels: write [] for images that have none.")
        counts = pc.call_function("list_value_length", [column]).fill_null(0).to_numpy()
        column = pa.chunked_array([chunk.flatten() for chunk in column.chunks], column.type.value_type)
    if column.null_count == len(column):
        return pa.chunked_array([pa.nulls(len(column), pa.int64())]), counts
    if kinds.is_string(column.type) or kinds.is_large_string(column.type):
        return column.cast(pa.string()), counts
    if not kinds.is_integer(column.type):
        raise ValueError(f"{data} has labels of type {column.type}; whole numbers, strings or lists of them were needed.")
    return column.cast(pa.int64(), safe=False), counts


def find_classes(columns: Sequence["pa.ChunkedArray"], data: str) -> tuple[str, ...]:
    """Strings are sorted, numbers are counted from 0 to the highest."""
    found = {value for column in columns for value in column.unique().to_pylist()} - {None}
    if len(set(map(type, found))) > 1:
        raise ValueError(f"{data} has numbers as labels in one split and strings in another: keep them apart.")
    are_strings = any(isinstance(value, str) for value in found)
    num_classes = len(found) if are_strings else max(found, default=-1) + 1
    if num_classes > MAX_CLASSES:
        raise ValueError(f"{data} has labels for more than {MAX_CLASSES} classes, the most that can be meant: check them.")
    return tuple(sorted(found)) if are_strings else number_classes(num_classes)


def number_labels(column: "pa.ChunkedArray", names: tuple[str, ...]) -> np.ndarray:
    """int64 (N), -1 for null and for what is none of the names."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.type == pa.string():
        options = pc.SetLookupOptions(pa.array(names, pa.string()), skip_nulls=True)
        column = pc.call_function("index_in", [column], options).cast(pa.int64())
    return column.fill_null(-1).to_numpy()
