"""The index that remembers where the samples of tar files are, so that headers are read once.

It lies beside the shards, and is believed as long as the size and the time of a shard are what they were.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitrine.core.console import track
from vitrine.core.files import whole_file
from vitrine.core.notices import notice
from vitrine.core.sentences import summarise
from vitrine.data.names import Names
from vitrine.data.sources.annotations import explain_reading
from vitrine.data.sources.labelling import MAX_CLASSES
from vitrine.data.sources.shards import read_stamp
from vitrine.data.sources.tar_samples import NEEDED, REMEDY, list_members, read_samples

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
        for path in track(missing, len(missing), f"Indexing {folder}"):
            with explain_reading(path, NEEDED, REMEDY):
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
        notice(f"{path} is damaged or of another version ({summarise(error)}) and is built again.")
        return {}
    return shards


def save_index(path: Path, shards: dict[str, Shard]) -> None:
    arrays = {f"{name}/{field}": array for name, shard in shards.items() for field, array in vars(shard).items()}
    try:
        with whole_file(path, by_many=True) as partial, open(partial, "wb") as file:
            np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]  (any name but allow_pickle, which none has)
    except (OSError, ValueError) as error:  # ValueError of names that are no UTF-8
        notice(f"{path} cannot be written ({summarise(error)}): the shards will be read through at each start.")


def scan_shard(path: Path) -> Shard:
    stamp = read_stamp(path)
    found = list(read_samples(path, list_members(path)))
    samples = [sample for sample in found if sample is not None]
    labels = [sample.label if isinstance(sample.label, list) else [sample.label] for sample in samples]
    names = Names.pack(sample.image.name for sample in samples)
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
