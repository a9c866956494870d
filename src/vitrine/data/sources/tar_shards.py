"""Shards in WebDataset's layout, read by position: a folder of them, one, or a pattern as `shards/train-{000..099}.tar`.

Labels count the lines of `classes.txt` beside the shards, or above the folders that they lie in; without it, classes have
numbers for names. What a sample is, `tar_samples` says.
"""

import os
import weakref
from collections.abc import Sequence
from functools import lru_cache
from io import FileIO
from pathlib import Path

import numpy as np

from vitrine.core.notices import notice
from vitrine.core.sentences import list_names
from vitrine.data.kind import Kind, order_splits
from vitrine.data.names import Names
from vitrine.data.source import Labels, Source
from vitrine.data.sources.annotations import CLASS_LIST, load_class_list
from vitrine.data.sources.folder import is_folder
from vitrine.data.sources.labelling import number_classes, settle_labels
from vitrine.data.sources.listing import IMAGE_SUFFIXES
from vitrine.data.sources.shards import Files, choose_files, divide, expand_pattern, find_files, locate, read_stamp
from vitrine.data.sources.tar_index import Shard, index_shards

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
        self.names = Names(np.concatenate([[0], np.cumsum(rows[:, 3])]), text)
        self.class_list = class_list
        labels = join_labels(list(shards.values()))
        self.labels, self.class_names = settle_labels(labels, class_names, str(class_list or data), self.name)

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
    class_names = number_classes(num_classes) if listed is None else tuple(listed.values())
    class_list = places[0] / CLASS_LIST if places else None
    return TarSource(root, dict(zip(chosen, shards, strict=True)), class_names, class_list, path)


def require_images(path: Path, shards: Sequence[Shard]) -> None:
    num_left_out = sum(int(shard.facts[2]) for shard in shards)
    if not any(len(shard.rows) for shard in shards):
        raise ValueError(
            f"{path} has no image among its {num_left_out} samples: members KEY.EXTENSION were needed, with "
            f"{list_names(sorted(IMAGE_SUFFIXES), 20)}."
        )
    if num_left_out > 0:
        notice(f"{num_left_out} samples of {path} have no image and are left out.")


def join_labels(shards: Sequence[Shard]) -> Labels:
    has_lists = any(shard.facts[3] for shard in shards)
    return Labels.concatenate(
        [Labels.from_counts(each.labels, each.rows[:, 2]) if has_lists else Labels(each.labels) for each in shards]
    )


KIND = Kind("tar", is_tar_data, lambda path: order_splits(find_shards(path)), open_tar)
