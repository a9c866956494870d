"""Tar shards in WebDataset layout, read by position: a folder of shards, one shard, or a pattern `train-{000..099}.tar`.

Labels are class indices: lines of `classes.txt` beside the shards or in the root. An index file beside the shards keeps the
position of each image, so that headers are read only once. It is used as long as a shard's size and time are unchanged.
"""

import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import FileIO
from pathlib import Path

import numpy as np

from vitrine.core.checksums import load_arrays, save_arrays
from vitrine.core.console import join_names, progress_bar, summarise_error, warn_user
from vitrine.data.dataset_format import DatasetFormat, order_splits
from vitrine.data.image import IMAGE_SUFFIXES
from vitrine.data.source import Labels, PackedStrings, Source
from vitrine.data.sources.annotations import (
    CLASS_LIST,
    MAX_CLASSES,
    load_class_list,
    numbered_class_names,
    readable_errors,
    validate_labels,
)
from vitrine.data.sources.folder import is_image_folder
from vitrine.data.sources.shards import Files, choose_files, expand_pattern, find_files, group_by_split, locate, read_stamp
from vitrine.data.sources.webdataset_samples import EXPECTED, REMEDY, list_members, read_samples

COMPRESSED = (".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")
ENDINGS = (".tar", *COMPRESSED)
INDEX = ".vitrine-index.npz"


def is_webdataset(path: Path) -> bool:
    """Return whether a path is a tar file or a folder of them; images beside archives were probably unpacked from them."""
    if not path.is_dir():
        return path.name.endswith(ENDINGS)
    return bool(find_files(path, ENDINGS)) and not is_image_folder(path)


def find_shards(path: Path) -> Files:
    """Return the shards of each split; raise ValueError if they are compressed."""
    if path.is_dir():
        files = find_files(path, ".tar") or find_files(path, COMPRESSED)
    else:
        files = group_by_split([path] if path.exists() else expand_pattern(path))
    for shard in (shard for shards in files.values() for shard in shards):
        if shard.name.endswith(COMPRESSED):
            raise ValueError(f"{shard} is compressed; images can be read by position only in plain tar files: decompress it.")
    return files


def open_webdataset(path: Path, split: str | None) -> "TarSource":
    """Open the shards of a split, or all; shards that are not in the index yet are read through once."""
    chosen, everything = choose_files(path, find_shards(path), split)
    root = next(folder for folder in (path, *path.parents) if folder.is_dir())  # of a pattern, the part without braces
    places = [folder for folder in (root, chosen[0].parent) if (folder / CLASS_LIST).exists()]
    listed = load_class_list(places[0]) if places else None
    indexed = index_shards(everything if listed is None else chosen)
    shards = [indexed[shard] for shard in chosen]
    check_images(path, shards)
    num_classes = max(int(shard.labels.max(initial=-1)) + 1 for shard in indexed.values())
    class_names = numbered_class_names(num_classes) if listed is None else tuple(listed.values())
    class_list = places[0] / CLASS_LIST if places else None
    return TarSource(root, dict(zip(chosen, shards, strict=True)), class_names, class_list, path)


FORMAT = DatasetFormat("tar", is_webdataset, lambda path: order_splits(find_shards(path)), open_webdataset)


def check_images(path: Path, shards: Sequence["Shard"]) -> None:
    """Raise ValueError if there are no images, and warn if samples without an image are left out."""
    num_left_out = sum(int(shard.facts[2]) for shard in shards)
    if not any(len(shard.rows) for shard in shards):
        expected = f"expected members KEY.EXTENSION with {join_names(sorted(IMAGE_SUFFIXES), 20)}"
        raise ValueError(f"{path} contains no images in its {num_left_out} samples; {expected}.")
    if num_left_out > 0:
        warn_user(f"{path}: left out {num_left_out} samples without an image.")


class TarSource(Source):
    """Images in tar shards, read by position."""

    def __init__(
        self, root: Path, shards: dict[Path, "Shard"], class_names: tuple[str, ...], class_list: Path | None, data: Path
    ) -> None:
        """Take indexed shards; errors about classes name the class list, or `data` if there is none."""
        rows = np.concatenate([shard.rows for shard in shards.values()])  # (N, 4)
        text = np.concatenate([shard.text for shard in shards.values()])
        self.paths = [str(path.absolute()) for path in shards]
        self.titles = [path.relative_to(root).as_posix() for path in shards]
        self.stamps = [shard.stamp for shard in shards.values()]
        self.shard_ends = np.cumsum([len(shard.rows) for shard in shards.values()])  # (number of shards)
        self.positions = rows[:, :2].copy()  # (N, 2): offset and size of each image
        self.names = PackedStrings(np.concatenate([[0], np.cumsum(rows[:, 3])]), text)
        self.class_list = class_list
        labels = join_labels(list(shards.values()))
        self.labels, self.class_names = validate_labels(labels, class_names, str(class_list or data), self.name)

    def fetch(self, index: int) -> bytes:
        """Read the bytes of an image from its tar file, for `Source.read`."""
        shard, _ = locate(self.shard_ends, index)
        offset, size = self.positions[index].tolist()
        file = open_shard(self.paths[shard], self.stamps[shard])  # this reference keeps it open if the cache drops it
        content = os.pread(file.fileno(), size, offset)
        if len(content) < size:
            raise OSError(f"{self.paths[shard]} ends inside it")
        return content

    def name(self, index: int) -> str:
        return f"{self.titles[locate(self.shard_ends, index)[0]]}/{self.names[index]}"

    def files(self) -> list[Path]:
        return [Path(path) for path in self.paths] + ([] if self.class_list is None else [self.class_list])


# One cache per process, so that a source holds no open files and can be pickled. Reading by position needs no lock, neither
# between threads nor between forked processes. It is bounded because a process may have 1024 open files.
@lru_cache(maxsize=64)
def open_shard(path: str, stamp: tuple[int, int]) -> FileIO:
    """Open a shard, or return it if it is open; raise ValueError if it has changed since it was indexed."""
    descriptor = os.open(path, os.O_RDONLY)
    file = FileIO(descriptor, closefd=False)
    weakref.finalize(file, os.close, descriptor)  # closed when nothing refers to it
    if read_stamp(descriptor) != stamp:
        raise ValueError(f"{path} has changed since the dataset was opened: open it again.")
    return file


def join_labels(shards: Sequence["Shard"]) -> Labels:
    """Return the labels of all shards: lists if any shard has lists."""
    has_lists = any(shard.facts[3] for shard in shards)
    return Labels.concatenate(
        [Labels.from_counts(each.labels, each.rows[:, 2]) if has_lists else Labels(each.labels) for each in shards]
    )


# The index.


@dataclass(frozen=True, eq=False)
class Shard:
    """Positions, labels and names of the samples of one shard (N).

    A field whose meaning changes must be renamed: an index that lacks a field is built again.
    """

    facts: np.ndarray
    """int64 (4): size and time of the file, number of samples without an image, whether labels are lists."""
    rows: np.ndarray
    """int64 (N, 4): offset of the image, its size, its number of labels, the length of its name."""
    labels: np.ndarray
    """int64 (sum of the numbers of labels); -1 for a sample without a label."""
    text: np.ndarray
    """uint8: the names of the images in UTF-8, concatenated."""

    @property
    def stamp(self) -> tuple[int, int]:
        size, mtime_ns = self.facts[:2].tolist()
        return size, mtime_ns

    def is_valid(self) -> bool:
        """Return whether types, shapes and values are consistent, so that reading can rely on them."""
        layout = [(array.dtype, array.ndim) for array in vars(self).values()]
        if layout != [(np.int64, 1), (np.int64, 2), (np.int64, 1), (np.uint8, 1)]:
            return False
        size, _, _, has_lists = self.facts.tolist()
        offsets, sizes, counts, lengths = self.rows.T
        return bool(
            (self.rows >= 0).all()
            and (offsets <= size).all()
            and (sizes <= size - offsets).all()
            and (has_lists or (counts == 1).all())
            and (counts <= len(self.labels)).all()
            and counts.sum() == len(self.labels)
            and ((self.labels >= -1) & (self.labels < MAX_CLASSES)).all()
            and (lengths <= len(self.text)).all()
            and lengths.sum() == len(self.text)
        )


def index_shards(paths: Sequence[Path]) -> dict[Path, Shard]:
    """Return the index of each shard, from the index files of their folders."""
    indexed: dict[Path, Shard] = {}
    for folder in dict.fromkeys(path.parent for path in paths):
        indexed |= index_folder(folder, [path for path in paths if path.parent == folder])
    return indexed


def index_folder(folder: Path, paths: Sequence[Path]) -> dict[Path, Shard]:
    """Return the index of some shards of a folder; new and changed shards are read through and added to its index file."""
    known = load_index(folder / INDEX)
    known = {name: each for name, each in known.items() if (folder / name).exists() and each.stamp == read_stamp(folder / name)}
    missing = [path for path in paths if path.name not in known]
    if missing:
        for path in progress_bar(missing, len(missing), f"Indexing {folder}"):
            with readable_errors(path, EXPECTED, REMEDY):
                known[path.name] = scan_shard(path)
        save_index(folder / INDEX, known)
    return {path: known[path.name] for path in paths}


def load_index(path: Path) -> dict[str, Shard]:
    """Read an index file; a missing or damaged one is empty."""
    if not path.exists():
        return {}
    try:
        arrays = load_arrays(path)
        names = dict.fromkeys(key.rpartition("/")[0] for key in arrays)
        shards = {name: Shard(**{field: arrays[f"{name}/{field}"] for field in Shard.__annotations__}) for name in names}
        if not all(shard.is_valid() for shard in shards.values()):
            raise ValueError("inconsistent values")
    except (OSError, ValueError, KeyError) as error:  # everything can be built again
        warn_user(f"{path} is damaged or of another version ({summarise_error(error)}): building it again.")
        return {}
    return shards


def save_index(path: Path, shards: dict[str, Shard]) -> None:
    """Write an index file; only warn if that fails, e.g. in a read-only folder."""
    arrays = {f"{name}/{field}": array for name, shard in shards.items() for field, array in vars(shard).items()}
    try:
        save_arrays(path, arrays)
    except (OSError, ValueError) as error:  # ValueError: a name is not valid UTF-8
        warn_user(f"{path} cannot be written ({summarise_error(error)}): the shards will be indexed again next time.")


def scan_shard(path: Path) -> Shard:
    """Index a shard by reading through its headers and labels."""
    stamp = read_stamp(path)
    found = list(read_samples(path, list_members(path)))
    samples = [sample for sample in found if sample is not None]
    labels = [sample.label if isinstance(sample.label, list) else [sample.label] for sample in samples]
    names = PackedStrings.pack(sample.image.name for sample in samples)
    lengths = np.diff(names.starts).tolist()
    rows = [
        (each.image.offset_data, each.image.size, len(label), length)
        for each, label, length in zip(samples, labels, lengths, strict=True)
    ]
    has_lists = any(isinstance(sample.label, list) for sample in samples)
    return Shard(
        facts=np.array([*stamp, len(found) - len(samples), has_lists], dtype=np.int64),
        rows=np.array(rows, dtype=np.int64).reshape(-1, 4),
        labels=np.array([-1 if number is None else number for each in labels for number in each], dtype=np.int64),
        text=names.text,
    )
