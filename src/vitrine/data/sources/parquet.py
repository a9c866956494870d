"""Parquet files as on the Hugging Face hub: images as bytes in one column, labels in another; also columns for hub.py.

Parquet cannot read a single row: rows are decoded in groups, of 100 to 1000 on the hub. Reading in order is cheap, since the
last groups are cached. Shuffled, nearly every image needs a whole group: with 110 kB per image, in memory, we measured 6 to
15 ms for a group of 100 and 70 ms for one of 1000. `vitrine data pack` makes such data fast.

`features` describe columns as `datasets` stores them: {"label": {"_type": "ClassLabel", "names": ["cat", "dog"]}, ...}.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from vitrine.core.console import join_names, progress_bar, summarise_error, warn_user
from vitrine.data.dataset_format import DatasetFormat, order_splits
from vitrine.data.source import Labels, Source
from vitrine.data.sources.annotations import MAX_CLASSES, numbered_class_names, readable_errors, validate_labels
from vitrine.data.sources.folder import is_image_folder
from vitrine.data.sources.shards import Files, choose_files, find_files, group_by_split, locate, read_stamp

if TYPE_CHECKING:
    import pyarrow as pa

ENDING = ".parquet"
IMAGE_COLUMNS = ("image", "img")
LABEL_COLUMNS = ("label", "labels", "fine_label")
LISTS = ("Sequence", "List", "LargeList")

MAX_GROUP_BYTES = 2**31 - 1  # a group is decoded as a whole, and Arrow's structs of bytes cannot be larger

# One lock per process: a lock that is held while the process forks would stay locked in the child.
LOCKS: dict[int, Lock] = {}

Features = Mapping[str, Any]


def is_parquet(path: Path) -> bool:
    """Return whether a path is a Parquet file or a folder of them; beside image files they need a column of images."""
    if not path.is_dir():
        return path.name.endswith(ENDING) and path.is_file()
    files = find_parquet(path)
    if not files or not is_image_folder(path):
        return bool(files)
    try:
        summary = read_summary(next(iter(files.values()))[0])
    except ValueError:
        return False
    return choose_image_column(summary.list_image_columns(), summary.features) is not None


def find_parquet(path: Path) -> Files:
    """Return the Parquet files of each split: the file itself, or those in a folder or, as on the hub, its subfolder data."""
    if not path.is_dir():
        return group_by_split([path])
    inner = path / "data"
    return find_files(path, ENDING) or (find_files(inner, ENDING) if inner.is_dir() else {})


def open_parquet(path: Path, split: str | None) -> "ParquetSource":
    """Open the Parquet files of a split, or all."""
    chosen, everything = choose_files(path, find_parquet(path), split)
    tracked = progress_bar(chosen, len(chosen), f"Reading {path.name}", is_delayed=True)
    summaries = {file: read_summary(file) for file in tracked}
    first = summaries[chosen[0]]
    columns = choose_columns(list(first.types), first.list_image_columns(), first.features, str(chosen[0]))
    for file, summary in summaries.items():
        if summary.select(columns) != first.select(columns):
            raise ValueError(f"{file} has other columns or classes than {chosen[0]}: put them into separate folders.")
    num_images = sum(sum(summary.group_sizes) for summary in summaries.values())
    labels, class_names = Labels.none_each(num_images), ()
    if columns.label is not None:
        rest = [] if columns.class_names is not None else [file for file in everything if file not in summaries]
        others = [read_column([file], columns.label) for file in rest if columns.label in read_summary(file).types]
        labels, class_names = parse_labels(read_column(chosen, columns.label), others, columns.class_names, str(path))
    if len(labels) != num_images:
        raise ValueError(f"{path} has {len(labels)} labels for {num_images} images: download or write it again.")
    return ParquetSource(path, summaries, columns.image, labels, class_names)


FORMAT = DatasetFormat("parquet", is_parquet, lambda path: order_splits(find_parquet(path)), open_parquet)


class ParquetSource(Source):
    """Images in a column of Parquet files."""

    def __init__(
        self, data: Path, summaries: dict[Path, "FileSummary"], column: str, labels: Labels, class_names: tuple[str, ...]
    ) -> None:
        self.root = (data if data.is_dir() else data.parent).absolute()
        self.column = column
        self.paths = [path.absolute() for path in summaries]
        self.stamps = [each.stamp for each in summaries.values()]
        self.group_ends = [np.cumsum(each.group_sizes, dtype=np.int64) for each in summaries.values()]
        self.file_ends = np.cumsum([sum(each.group_sizes) for each in summaries.values()], dtype=np.int64)
        self.labels, self.class_names = validate_labels(labels, class_names, str(data), self.name)

    def fetch(self, index: int) -> bytes:
        """Return the bytes of one image, reading its row group on first use, for `Source.read`."""
        file, row = locate(self.file_ends, index)
        group, row = locate(self.group_ends[file], row)
        # One thread decodes a group and the others wait for it, instead of decoding the same group.
        with LOCKS.setdefault(os.getpid(), Lock()):
            images = read_group(self.paths[file], self.stamps[file], self.column, group)
        image = images[row].as_py()
        content = image.get("bytes") if isinstance(image, dict) else image
        if content is None and isinstance(image, dict) and image.get("path"):
            # `datasets` writes paths for images that were given as files and not embedded.
            raise OSError(f"its row contains the path {image['path']} and no bytes")
        if content is None:
            raise OSError("its row contains no image bytes")
        return content

    def name(self, index: int) -> str:
        file, row = locate(self.file_ends, index)
        return f"{self.paths[file].relative_to(self.root).as_posix()}[{row}]"

    def files(self) -> list[Path]:
        return list(self.paths)


# Files.


@dataclass(frozen=True)
class FileSummary:
    """Metadata of a Parquet file, from its footer."""

    stamp: tuple[int, int]
    """Size and modification time."""
    group_sizes: list[int]
    types: "dict[str, pa.DataType]"
    features: Features

    def list_image_columns(self) -> list[str]:
        """Return the columns that can contain image bytes."""
        return [name for name, column_type in self.types.items() if holds_bytes(column_type)]

    def select(self, columns: "Columns") -> list[Any]:
        """Return types and features of the columns that are used, which must be equal in all files of a dataset."""
        return [(self.types.get(name), self.features.get(name)) for name in (columns.image, columns.label) if name is not None]


def read_summary(path: Path) -> FileSummary:
    """Read the footer of a Parquet file."""
    with open_file(path) as file:
        groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
        if any(group.num_rows < 0 or group.total_byte_size > MAX_GROUP_BYTES for group in groups):
            raise ValueError("a row group is over 2 GB and would be read for each image; row_group_size=100 works well")
        schema = file.schema_arrow
        notes = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        features = notes["info"]["features"] if notes else {}
        if not isinstance(features, dict):
            raise ValueError("the metadata 'huggingface' has no features")
        types = dict(zip(schema.names, schema.types, strict=True))
        return FileSummary(read_stamp(path), [group.num_rows for group in groups], types, features)


@contextmanager
def open_file(path: Path) -> Iterator[Any]:
    """Open a Parquet file; whatever goes wrong with it becomes a ValueError of one sentence."""
    try:
        import pyarrow.parquet as pq
    except ImportError:
        raise ValueError(f"{path} needs pyarrow, which is not installed: pip install 'vitrine[parquet]'.") from None
    expected, remedy = "expected a Parquet file", "download or write it again"
    with readable_errors(path, expected, remedy, failures=Exception), pq.ParquetFile(path) as file:
        yield file


def holds_bytes(column_type: "pa.DataType") -> bool:
    """Return whether a column has bytes, or structs {bytes, path}."""
    import pyarrow as pa

    if pa.types.is_struct(column_type):
        fields = [field.name for field in column_type]
        return fields.count("bytes") == 1 and holds_bytes(column_type.field("bytes").type)
    return pa.types.is_binary(column_type) or pa.types.is_large_binary(column_type)


def read_column(paths: list[Path], column: str) -> "pa.ChunkedArray":
    """Read a column of several files, in which it has the same type."""
    import pyarrow as pa

    columns = []
    for path in paths:
        with open_file(path) as file:
            columns.append(file.read(columns=[column], use_threads=False).column(column))
    return pa.chunked_array([chunk for each in columns for chunk in each.chunks], columns[0].type)


# The last groups, cached per process, so that a source holds no open files and can be pickled. Threads that read in order are
# at most a few hundred images apart.
@lru_cache(maxsize=4)
def read_group(path: Path, stamp: tuple[int, int], column: str, group: int) -> "pa.ChunkedArray":
    """Decode the images of a row group; raise OSError if it is damaged, since other groups may be intact."""
    if read_stamp(path) != stamp:
        raise ValueError(f"{path} has changed since the dataset was opened: open it again.")
    import pyarrow.parquet as pq

    try:
        # Not memory-mapped: that is not faster, and if a mapped file is truncated, the process crashes.
        with pq.ParquetFile(path) as file:
            images = file.read_row_group(group, columns=[column], use_threads=False).column(column)
            if len(images) != file.metadata.row_group(group).num_rows:
                raise ValueError(f"it has {len(images)} images")
    except Exception as error:  # pyarrow may raise anything for a damaged file
        raise OSError(f"row group {group} cannot be decoded: {summarise_error(error)}") from None
    return images


# Columns and labels, also of datasets on the hub.


@dataclass(frozen=True)
class Columns:
    """The columns with images and labels."""

    image: str
    label: str | None
    class_names: tuple[str, ...] | None
    """Names in the features; None if classes must be found in the labels."""


def choose_columns(columns: Sequence[str], images: Sequence[str], features: Features, data: str) -> Columns:
    """Choose the image and label columns of a table; `images` are the columns that can contain images."""
    image = choose_image_column(images, features)
    if image is None:
        expected = f"expected one with image bytes, if several named {' or '.join(IMAGE_COLUMNS)}"
        raise ValueError(f"{data} has the columns {join_names(columns)}; {expected}: rename or convert it.")
    labels = [name for name in LABEL_COLUMNS if name in columns][:1]
    labels = labels or [name for name in columns if is_feature(unwrap_list(features.get(name)), "ClassLabel")]
    if len(labels) > 1:
        warn_user(f"{data} has several label columns ({join_names(labels)}) and none is named label: using no labels.")
    if len(labels) != 1:
        return Columns(image, None, None)
    return Columns(image, labels[0], read_class_names(features.get(labels[0]), data))


def choose_image_column(images: Sequence[str], features: Features) -> str | None:
    """Return the column with an Image feature, else the one named like images; None if there is none, or no clear one."""
    declared = [name for name in images if is_feature(features.get(name), "Image")]
    named = [name for name in IMAGE_COLUMNS if name in (declared or images)]
    return named[0] if named else declared[0] if len(declared) == 1 else None


def is_feature(feature: Any, kind: str) -> bool:
    """Return whether a feature of `datasets` is of a kind, e.g. Image or ClassLabel."""
    return isinstance(feature, Mapping) and feature.get("_type") == kind


def unwrap_list(feature: Any) -> Any:
    """Return the element of a list feature, in old files a list of one feature; other features are returned unchanged."""
    if isinstance(feature, list) and len(feature) == 1:
        return feature[0]
    return feature.get("feature") if isinstance(feature, Mapping) and feature.get("_type") in LISTS else feature


def read_class_names(feature: Any, data: str) -> tuple[str, ...] | None:
    """Return the class names of a ClassLabel feature, None for other features."""
    feature = unwrap_list(feature)
    names = feature.get("names") if is_feature(feature, "ClassLabel") else None
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ValueError(f"{data} has a ClassLabel whose names are not a list of strings: write it again.")
    return None if names is None else tuple(names)


def parse_labels(
    column: "pa.ChunkedArray", others: Sequence["pa.ChunkedArray"], names: tuple[str, ...] | None, data: str
) -> tuple[Labels, tuple[str, ...]]:
    """Return labels, below 0 for unlabelled images, and class names; without names, `others` (splits) count too."""
    values, counts = flatten_lists(column, data)
    if names is None:
        names = collect_classes([values, *(flatten_lists(each, data)[0] for each in others)], data)
    indices = to_class_indices(values, names)
    return Labels(indices) if counts is None else Labels.from_counts(indices, counts), names


def flatten_lists(column: "pa.ChunkedArray", data: str) -> tuple["pa.ChunkedArray", np.ndarray | None]:
    """Return labels as strings or int64 (negative if too large) and, if they were lists, the labels per row (N)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    types, counts = pa.types, None
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type):
        if 0 < column.null_count < len(column):
            raise ValueError(f"{data} has null instead of some lists of labels: write [] for images without labels.")
        counts = pc.call_function("list_value_length", [column]).fill_null(0).to_numpy()
        column = pa.chunked_array([chunk.flatten() for chunk in column.chunks], column.type.value_type)
    if column.null_count == len(column):
        return pa.chunked_array([pa.nulls(len(column), pa.int64())]), counts
    if types.is_string(column.type) or types.is_large_string(column.type):
        return column.cast(pa.string()), counts
    if not types.is_integer(column.type):
        raise ValueError(f"{data} has labels of type {column.type}; expected integers, strings or lists of them: convert them.")
    return column.cast(pa.int64(), safe=False), counts


def collect_classes(columns: Sequence["pa.ChunkedArray"], data: str) -> tuple[str, ...]:
    """Return the class names of labels: strings sorted, or numbers from 0 to the highest."""
    values = {value for column in columns for value in column.unique().to_pylist()} - {None}
    if len(set(map(type, values))) > 1:
        raise ValueError(f"{data} has numbers as labels in one split and strings in another: use the same in all splits.")
    are_strings = any(isinstance(value, str) for value in values)
    num_classes = len(values) if are_strings else max(values, default=-1) + 1
    if num_classes > MAX_CLASSES:
        raise ValueError(f"{data} has labels of {num_classes} classes; the limit is {MAX_CLASSES}: check the label column.")
    return tuple(sorted(values)) if are_strings else numbered_class_names(num_classes)


def to_class_indices(column: "pa.ChunkedArray", names: tuple[str, ...]) -> np.ndarray:
    """Return labels as class indices, int64 (N), -1 for null and for strings that are not class names."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.type == pa.string():
        options = pc.SetLookupOptions(pa.array(names, pa.string()), skip_nulls=True)
        column = pc.call_function("index_in", [column], options).cast(pa.int64())
    return column.fill_null(-1).to_numpy()
