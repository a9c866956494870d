"""Tar shards in WebDataset layout, their index.

The index that remembers where the samples of tar files are, so that headers are read once.

It lies beside the shards, and is believed as long as the size and the time of a shard are what they were.
Shards in WebDataset's layout, read by position: a folder of them, one, or a pattern as `shards/train-{000..099}.tar`.

Labels count the lines of `classes.txt` beside the shards, or above the folders that they lie in; without it, classes have
numbers for names. What a sample is, `tar_samples` says.
"""

import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import FileIO
from pathlib import Path

import numpy as np

from vitrine.core.console import join_names, progress_bar, summarise_error, warn_user
from vitrine.core.files import atomic_file
from vitrine.data.dataset_format import DatasetFormat, order_splits
from vitrine.data.source import Labels, PackedStrings, Source
from vitrine.data.sources.annotations import (
    CLASS_LIST,
    MAX_CLASSES,
    load_class_list,
    numbered_class_names,
    readable_errors,
    validate_labels,
)
from vitrine.data.sources.folder import is_folder
from vitrine.data.sources.image_files import IMAGE_SUFFIXES
from vitrine.data.sources.shards import Files, choose_files, divide, expand_pattern, find_files, locate, read_stamp
from vitrine.data.sources.webdataset_samples import EXPECTED, REMEDY, list_members, read_samples

INDEX = ".vitrine-index.npz"


@dataclass(frozen=True, eq=False)
class Shard:
    """The samples of one shard (N). Whoever changes what a field means renames it: indices that lack one are built again."""

    facts: np.ndarray
    """int64 (4): size and time of the file, number of samples without an image, whether labels are lists."""
    rows: np.ndarray
    """int64 (N, 4): where the image starts, its size, its number of labels, the length of its name."""
    labels: np.ndarray
    """int64 (sum of these numbers), -1 for a sample that says nothing."""
    text: np.ndarray
    """uint8: the images' names in UTF-8, one after another."""

    @property
    def stamp(self) -> tuple[int, int]:
        size, mtime_ns = self.facts[:2].tolist()
        return size, mtime_ns

    def is_sound(self) -> bool:
        """Whether nothing that reading relies on is wrong."""
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
    indexed: dict[Path, Shard] = {}
    for folder in dict.fromkeys(path.parent for path in paths):
        indexed |= index_folder(folder, [path for path in paths if path.parent == folder])
    return indexed


def index_folder(folder: Path, paths: Sequence[Path]) -> dict[Path, Shard]:
    """From the folder's index as far as it is up to date; what was missing there is read and added."""
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
    if not path.exists():
        return {}
    try:
        with open(path, "rb") as content, np.load(content, allow_pickle=False) as file:
            # Stored as they are, no array is larger than the file: none can be blown up.
            if sum(member.file_size for member in file.zip.infolist()) > path.stat().st_size:
                raise ValueError("arrays are larger than the file")
            names = dict.fromkeys(key.rpartition("/")[0] for key in file.files)
            shards = {name: Shard(**{field: file[f"{name}/{field}"] for field in Shard.__annotations__}) for name in names}
        if not all(shard.is_sound() for shard in shards.values()):
            raise ValueError("its numbers do not agree")
    except Exception as error:  # whatever numpy and zipfile trip over: all of it can be built anew
        warn_user(f"{path} is damaged or of another version ({summarise_error(error)}) and is built again.")
        return {}
    return shards


def save_index(path: Path, shards: dict[str, Shard]) -> None:
    arrays = {f"{name}/{field}": array for name, shard in shards.items() for field, array in vars(shard).items()}
    try:
        with atomic_file(path, is_concurrent=True) as partial, open(partial, "wb") as file:
            np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]  (any name but allow_pickle, which none has)
    except (OSError, ValueError) as error:  # ValueError of names that are no UTF-8
        warn_user(f"{path} cannot be written ({summarise_error(error)}): the shards will be read through at each start.")


def scan_shard(path: Path) -> Shard:
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


COMPRESSED = (".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")
ENDINGS = (".tar", *COMPRESSED)


def is_tar_data(path: Path) -> bool:
    """Where images lie beside archives, these are what the images came from."""
    if not path.is_dir():
        return path.name.endswith(ENDINGS)
    return bool(find_files(path, ENDINGS)) and not is_folder(path)


def find_shards(path: Path) -> Files:
    if path.is_dir():
        found = find_files(path, ".tar") or find_files(path, COMPRESSED)
    else:
        found = divide([path] if path.exists() else expand_pattern(path))
    for shard in (shard for shards in found.values() for shard in shards):
        if shard.name.endswith(COMPRESSED):
            raise ValueError(
                f"{shard} is compressed, and images are read from the middle of plain tar files: decompress it first."
            )
    return found


# One cache for a process, so that a source holds nothing open: it can be sent elsewhere as it is. Reading by position needs
# no lock, neither against threads nor against processes forked off. Bounded, because processes may have 1024 files open.
@lru_cache(maxsize=64)
def open_shard(path: str, stamp: tuple[int, int]) -> FileIO:
    descriptor = os.open(path, os.O_RDONLY)
    file = FileIO(descriptor, closefd=False)
    weakref.finalize(file, os.close, descriptor)  # when nobody uses it any more
    if read_stamp(descriptor) != stamp:
        raise ValueError(f"{path} has changed since its images were looked up: open the data again.")
    return file


class TarSource(Source):
    def __init__(
        self, root: Path, shards: dict[Path, Shard], class_names: tuple[str, ...], class_list: Path | None, data: Path
    ) -> None:
        """`data` is what errors name where there is no list of classes."""
        rows = np.concatenate([shard.rows for shard in shards.values()])  # (N, 4)
        text = np.concatenate([shard.text for shard in shards.values()])
        self.paths = [str(path.absolute()) for path in shards]
        self.titles = [path.relative_to(root).as_posix() for path in shards]
        self.stamps = [shard.stamp for shard in shards.values()]
        self.shard_ends = np.cumsum([len(shard.rows) for shard in shards.values()])  # (number of shards)
        self.places = rows[:, :2].copy()  # (N, 2)
        self.names = PackedStrings(np.concatenate([[0], np.cumsum(rows[:, 3])]), text)
        self.class_list = class_list
        labels = join_labels(list(shards.values()))
        self.labels, self.class_names = validate_labels(labels, class_names, str(class_list or data), self.name)

    def fetch(self, index: int) -> bytes:
        shard, _ = locate(self.shard_ends, index)
        offset, size = self.places[index].tolist()
        file = open_shard(self.paths[shard], self.stamps[shard])  # a name for it keeps it open: the cache may drop it now
        content = os.pread(file.fileno(), size, offset)
        if len(content) < size:
            raise OSError(f"{self.paths[shard]} ends within it")
        return content

    def name(self, index: int) -> str:
        return f"{self.titles[locate(self.shard_ends, index)[0]]}/{self.names[index]}"

    def files(self) -> list[Path]:
        return [Path(path) for path in self.paths] + ([] if self.class_list is None else [self.class_list])


def open_tar(path: Path, split: str | None) -> TarSource:
    chosen, everything = choose_files(path, find_shards(path), split)
    root = next(folder for folder in (path, *path.parents) if folder.is_dir())  # that of a pattern's plain part
    places = [folder for folder in (root, chosen[0].parent) if (folder / CLASS_LIST).exists()]
    listed = load_class_list(places[0]) if places else None
    indexed = index_shards(everything if listed is None else chosen)
    shards = [indexed[shard] for shard in chosen]
    require_images(path, shards)
    num_classes = max(int(shard.labels.max(initial=-1)) + 1 for shard in indexed.values())
    class_names = numbered_class_names(num_classes) if listed is None else tuple(listed.values())
    class_list = places[0] / CLASS_LIST if places else None
    return TarSource(root, dict(zip(chosen, shards, strict=True)), class_names, class_list, path)


def require_images(path: Path, shards: Sequence[Shard]) -> None:
    num_left_out = sum(int(shard.facts[2]) for shard in shards)
    if not any(len(shard.rows) for shard in shards):
        raise ValueError(
            f"{path} has no image among its {num_left_out} samples: members KEY.EXTENSION were needed, with "
            f"{join_names(sorted(IMAGE_SUFFIXES), 20)}."
        )
    if num_left_out > 0:
        warn_user(f"{num_left_out} samples of {path} have no image and are left out.")


def join_labels(shards: Sequence[Shard]) -> Labels:
    has_lists = any(shard.facts[3] for shard in shards)
    return Labels.concatenate(
        [Labels.from_counts(each.labels, each.rows[:, 2]) if has_lists else Labels(each.labels) for each in shards]
    )


FORMAT = DatasetFormat("tar", is_tar_data, lambda path: order_splits(find_shards(path)), open_tar)
