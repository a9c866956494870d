"""Parquet files as the Hugging Face hub has them: images as bytes in one column, labels in another.

A parquet file has no way to one row: its rows are decoded by the group, of 100 to 1000 on the hub. In order this costs
little, since the groups read last are kept. Shuffled, nearly every image costs a whole group: at 110 kB an image and from
memory, we measured 6 to 15 ms for a group of 100 and 70 ms for one of 1000. `vitrine data pack` makes such data quick.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from vitrine.core.sentences import summarise
from vitrine.data.kind import Kind, order_splits
from vitrine.data.source import Labels, Source
from vitrine.data.sources.annotations import explain_reading
from vitrine.data.sources.columns import Columns, Features, choose_columns, choose_image_column, find_labels
from vitrine.data.sources.folder import is_folder
from vitrine.data.sources.labelling import settle_labels
from vitrine.data.sources.shards import Files, choose_files, divide, find_files, locate, read_stamp

if TYPE_CHECKING:
    import pyarrow as pa

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
    with explain_reading(path, needed, remedy, failures=Exception), pq.ParquetFile(path) as file:
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
        raise OSError(f"row group {group} does not decode: {summarise(error)}") from None
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
        self.labels, self.class_names = settle_labels(labels, class_names, str(data), self.name)

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
        labels, class_names = find_labels(read_column(chosen, columns.label), others, columns.class_names, str(path))
    if len(labels) != num_images:
        raise ValueError(f"{path} has {len(labels)} labels for {num_images} images: fetch or write it again.")
    return ParquetSource(path, contents, columns.image, labels, class_names)


KIND = Kind("parquet", is_parquet_data, lambda path: order_splits(find_parquet(path)), open_parquet)
