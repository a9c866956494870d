"""Parquet; image and label columns, for the hub too.

Which columns of a table hold the images and their labels, and the labels as class numbers: for Parquet and the hub alike.

`features` are what `datasets` notes of each column: {"label": {"_type": "ClassLabel", "names": ["cat", "dog"]}, ...}.
Parquet files as the Hugging Face hub has them: images as bytes in one column, labels in another.

A parquet file has no way to one row: its rows are decoded by the group, of 100 to 1000 on the hub. In order this costs
little, since the groups read last are kept. Shuffled, nearly every image costs a whole group: at 110 kB an image and from
memory, we measured 6 to 15 ms for a group of 100 and 70 ms for one of 1000. `vitrine data pack` makes such data quick.
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

from vitrine.core.console import join_names, summarise_error, warn_user
from vitrine.data.dataset_format import DatasetFormat, order_splits
from vitrine.data.source import Labels, Source
from vitrine.data.sources.annotations import MAX_CLASSES, numbered_class_names, readable_errors, validate_labels
from vitrine.data.sources.folder import is_folder
from vitrine.data.sources.shards import Files, choose_files, divide, find_files, locate, read_stamp

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
            f"{data} has the columns {join_names(columns)}, and one with the bytes of images was needed, called "
            f"{' or '.join(IMAGE_COLUMNS)} if there are several: rename or convert it, or take other data."
        )
    labels = [name for name in LABEL_COLUMNS if name in columns][:1]
    labels = labels or [name for name in columns if is_feature(unwrap_list(features.get(name)), "ClassLabel")]
    if len(labels) > 1:
        warn_user(f"{data} has the classes {join_names(labels)} and none called label: it is taken as unlabelled.")
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


def parse_labels(
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
    return tuple(sorted(found)) if are_strings else numbered_class_names(num_classes)


def number_labels(column: "pa.ChunkedArray", names: tuple[str, ...]) -> np.ndarray:
    """int64 (N), -1 for null and for what is none of the names."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.type == pa.string():
        options = pc.SetLookupOptions(pa.array(names, pa.string()), skip_nulls=True)
        column = pc.call_function("index_in", [column], options).cast(pa.int64())
    return column.fill_null(-1).to_numpy()


ENDING = ".parquet"
# A group is decoded whole, and Arrow's structs of bytes hold no more.
MAX_GROUP_BYTES = 2**31 - 1

# By process: a lock that is held while another process forks off would never be let go there.
LOCKS: dict[int, Lock] = {}


def is_parquet_data(path: Path) -> bool:
    """Beside image files, a table may just say what they show: then it has no column of images."""
    if not path.is_dir():
        return path.name.endswith(ENDING) and path.is_file()
    found = find_parquet(path)
    if not found or not is_folder(path):
        return bool(found)
    try:
        contents = read_contents(next(iter(found.values()))[0])
    except ValueError:
        return False
    return choose_image_column(contents.list_images(), contents.features) is not None


def find_parquet(path: Path) -> Files:
    """The file itself, or those in the folder or, as on the hub, in `data` in it."""
    if not path.is_dir():
        return divide([path])
    inner = path / "data"
    return find_files(path, ENDING) or (find_files(inner, ENDING) if inner.is_dir() else {})


@dataclass(frozen=True)
class Contents:
    """What the end of a parquet file says about the rest."""

    stamp: tuple[int, int]
    """Its size and the time of its last change."""
    group_sizes: list[int]
    types: "dict[str, pa.DataType]"
    features: Features

    def list_images(self) -> list[str]:
        return [name for name, kind in self.types.items() if holds_bytes(kind)]

    def describe(self, columns: Columns) -> list[Any]:
        """What the files of a data set have in common."""
        return [(self.types.get(name), self.features.get(name)) for name in (columns.image, columns.label) if name is not None]


def read_contents(path: Path) -> Contents:
    with open_file(path) as file:
        groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
        if any(group.num_rows < 0 or group.total_byte_size > MAX_GROUP_BYTES for group in groups):
            raise ValueError("a row group of over 2 GB, which would be read for each image; row_group_size=100 serves well")
        schema = file.schema_arrow
        notes = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        features = notes["info"]["features"] if notes else {}
        if not isinstance(features, dict):
            raise ValueError("notes under 'huggingface' without features")
        types = dict(zip(schema.names, schema.types, strict=True))
        return Contents(read_stamp(path), [group.num_rows for group in groups], types, features)


@contextmanager
def open_file(path: Path) -> Iterator[Any]:
    """Whatever goes wrong with the file becomes one sentence."""
    try:
        import pyarrow.parquet as pq
    except ImportError:
        raise ValueError(f"{path} needs pyarrow, which is not installed: pip install 'vitrine[parquet]'.") from None
    needed, remedy = "a Parquet file was needed", "fetch or write it again"
    with readable_errors(path, needed, remedy, failures=Exception), pq.ParquetFile(path) as file:
        yield file


def holds_bytes(kind: "pa.DataType") -> bool:
    """Of bytes, or of {bytes, path}."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return [field.name for field in kind].count("bytes") == 1 and holds_bytes(kind.field("bytes").type)
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def read_column(paths: list[Path], column: str) -> "pa.ChunkedArray":
    """Of files in which it has one type."""
    import pyarrow as pa

    columns = []
    for path in paths:
        with open_file(path) as file:
            columns.append(file.read(columns=[column], use_threads=False).column(column))
    return pa.chunked_array([chunk for each in columns for chunk in each.chunks], columns[0].type)


# The groups read last, for the whole process: a source holds nothing open and can be sent elsewhere as it is. Threads that
# read in order are a few hundred images apart at most.
@lru_cache(maxsize=4)
def read_images(path: Path, stamp: tuple[int, int], column: str, group: int) -> "pa.ChunkedArray":
    if read_stamp(path) != stamp:
        raise ValueError(f"{path} has changed since it was opened: open the data again.")
    import pyarrow.parquet as pq

    try:
        # Not mapped into memory: that measured no faster, and a mapped file that is cut short ends the process.
        with pq.ParquetFile(path) as file:
            images = file.read_row_group(group, columns=[column], use_threads=False).column(column)
            if len(images) != file.metadata.row_group(group).num_rows:
                raise ValueError(f"it has {len(images)} images")
    except Exception as error:  # as in `open_file`, but of these images alone: others may be whole
        raise OSError(f"row group {group} does not decode: {summarise_error(error)}") from None
    return images


class ParquetSource(Source):
    def __init__(
        self, data: Path, contents: dict[Path, Contents], column: str, labels: Labels, class_names: tuple[str, ...]
    ) -> None:
        self.root = (data if data.is_dir() else data.parent).absolute()
        self.column = column
        self.paths = [path.absolute() for path in contents]
        self.stamps = [each.stamp for each in contents.values()]
        self.group_ends = [np.cumsum(each.group_sizes, dtype=np.int64) for each in contents.values()]
        self.file_ends = np.cumsum([sum(each.group_sizes) for each in contents.values()], dtype=np.int64)
        self.labels, self.class_names = validate_labels(labels, class_names, str(data), self.name)

    def fetch(self, index: int) -> bytes:
        file, row = locate(self.file_ends, index)
        group, row = locate(self.group_ends[file], row)
        # One thread decodes a group, and the others wait for it, rather than each decoding the same.
        with LOCKS.setdefault(os.getpid(), Lock()):
            images = read_images(self.paths[file], self.stamps[file], self.column, group)
        image = images[row].as_py()
        content = image.get("bytes") if isinstance(image, dict) else image
        if content is None and isinstance(image, dict) and image.get("path"):
            # So `datasets` writes images that were given as files and not embedded.
            raise OSError(f"its row holds the path {image['path']} and no bytes")
        if content is None:
            raise OSError("its row holds no bytes of an image")
        return content

    def name(self, index: int) -> str:
        file, row = locate(self.file_ends, index)
        return f"{self.paths[file].relative_to(self.root).as_posix()}[{row}]"

    def files(self) -> list[Path]:
        return list(self.paths)


def open_parquet(path: Path, split: str | None) -> ParquetSource:
    chosen, everything = choose_files(path, find_parquet(path), split)
    contents = {file: read_contents(file) for file in chosen}
    first = contents[chosen[0]]
    columns = choose_columns(list(first.types), first.list_images(), first.features, str(chosen[0]))
    for file, each in contents.items():
        if each.describe(columns) != first.describe(columns):
            raise ValueError(f"{file} has other columns or classes than {chosen[0]}: keep them apart.")
    num_images = sum(sum(each.group_sizes) for each in contents.values())
    labels, class_names = Labels.none_each(num_images), ()
    if columns.label is not None:
        rest = [] if columns.class_names is not None else [file for file in everything if file not in contents]
        others = [read_column([file], columns.label) for file in rest if columns.label in read_contents(file).types]
        labels, class_names = parse_labels(read_column(chosen, columns.label), others, columns.class_names, str(path))
    if len(labels) != num_images:
        raise ValueError(f"{path} has {len(labels)} labels for {num_images} images: fetch or write it again.")
    return ParquetSource(path, contents, columns.image, labels, class_names)


FORMAT = DatasetFormat("parquet", is_parquet_data, lambda path: order_splits(find_parquet(path)), open_parquet)
