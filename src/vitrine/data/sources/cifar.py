"""CIFAR-10 and CIFAR-100 in their binary version, as downloaded and unpacked.

A file is a row of records: the label, in CIFAR-100 the coarse and then the fine one, a byte each, and 3 x 32 x 32 bytes, all of
the red ones before the green and the blue, row by row.
Shapes: N images of 32 x 32 pixels.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitrine.core.console import join_names
from vitrine.data.dataset_format import DatasetFormat
from vitrine.data.source import ArraySource, Labels
from vitrine.data.sources.annotations import read_text, readable_errors

SIDE = 32
NUM_PIXEL_BYTES = 3 * SIDE * SIDE
MAX_NAMES_SIZE = 65_536
NEEDED, REMEDY = "the data is not whole without it", "fetch or unpack it again"


@dataclass(frozen=True)
class Layout:
    folder: str
    """As it is called when unpacked."""
    files: dict[str, tuple[str, ...]]
    """The names by split."""
    titles: dict[str, str]
    names_file: str
    num_classes: int
    num_label_bytes: int
    """Of which the last is the label."""
    marks: tuple[str, ...]
    """Files that nothing else has: train.bin alone may be anything."""
    pickled: tuple[str, ...]
    """The files of the Python version."""
    pickled_folder: str


BATCHES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
LAYOUTS = (
    Layout(
        folder="cifar-10-batches-bin",
        files={"train": BATCHES, "test": ("test_batch.bin",)},
        titles={"train": "data_batch_*.bin", "test": "test_batch.bin"},
        names_file="batches.meta.txt",
        num_classes=10,
        num_label_bytes=1,
        marks=("batches.meta.txt", *BATCHES, "test_batch.bin"),
        pickled=("batches.meta", "data_batch_1", "test_batch"),
        pickled_folder="cifar-10-batches-py",
    ),
    Layout(
        folder="cifar-100-binary",
        files={"train": ("train.bin",), "test": ("test.bin",)},
        titles={"train": "train.bin", "test": "test.bin"},
        names_file="fine_label_names.txt",
        num_classes=100,
        num_label_bytes=2,
        marks=("coarse_label_names.txt", "fine_label_names.txt"),
        pickled=("meta", "train", "test"),
        pickled_folder="cifar-100-python",
    ),
)


def is_cifar(path: Path) -> bool:
    return bool(find_folders(path) or has_pickled(path))


def list_splits(path: Path) -> tuple[str, ...]:
    layout, folder = find_folder(path)
    splits = tuple(split for split, names in layout.files.items() if has_any(folder, names))
    if not splits:
        raise FileNotFoundError(f"{folder / layout.files['train'][0]} does not exist, and {NEEDED}: {REMEDY}.")
    return splits


def open_cifar(path: Path, split: str | None) -> ArraySource:
    assert split is not None  # there always are splits, so that one has been named
    layout, folder = find_folder(path)
    paths = [folder / name for name in layout.files[split]]
    class_names = read_class_names(folder / layout.names_file, layout.num_classes)
    parts = [map_records(path, layout) for path in paths]
    labels = np.concatenate([part[:, layout.num_label_bytes - 1] for part in parts])  # (N)
    pixels = np.empty((len(labels), SIDE, SIDE, 3), np.uint8)  # (N, 32, 32, 3)
    start = 0
    for part in parts:
        planes = part[:, layout.num_label_bytes :].reshape(-1, 3, SIDE, SIDE)
        pixels[start : start + len(part)] = planes.transpose(0, 2, 3, 1)
        start += len(part)
    return ArraySource(pixels, Labels.one_each(labels), class_names, layout.titles[split], paths)


def find_folder(path: Path) -> tuple[Layout, Path]:
    """The one folder that is meant: the path, or what is in it."""
    found = find_folders(path)
    if len(found) > 1:
        folders = join_names([str(folder) for _, folder in found])
        raise ValueError(f"{path} holds both CIFAR-10 and CIFAR-100 ({folders}), and one was needed: give its own folder.")
    if not found:
        raise ValueError(
            f"{path} holds CIFAR's Python version, which is pickled and could run anything when read; "
            "the binary version was needed: fetch that."
        )
    return found[0]


def find_folders(path: Path) -> list[tuple[Layout, Path]]:
    own = [(layout, path) for layout in LAYOUTS if has_any(path, layout.marks)]
    return own or [(layout, path / layout.folder) for layout in LAYOUTS if has_any(path / layout.folder, layout.marks)]


def has_pickled(path: Path) -> bool:
    places = [(layout, folder) for layout in LAYOUTS for folder in (path, path / layout.pickled_folder)]
    return any(all(os.path.isfile(folder / name) for name in layout.pickled) for layout, folder in places)


def has_any(folder: Path, names: Sequence[str]) -> bool:
    return any(os.path.isfile(folder / name) for name in names)


def read_class_names(path: Path, num_classes: int) -> tuple[str, ...]:
    """One in each line; the file of CIFAR-10 ends with an empty one."""
    text = read_text(path, f"the names of {num_classes} classes were needed", limit=MAX_NAMES_SIZE)
    names = tuple(line.strip() for line in text.splitlines() if line.strip())
    if len(names) != num_classes:
        raise ValueError(f"{path} has {len(names)} names of classes, and {num_classes} were needed: fetch it again.")
    return names


def map_records(path: Path, layout: Layout) -> np.ndarray:
    """The bytes of its records (N, label bytes + 3072), checked."""
    record_size = layout.num_label_bytes + NUM_PIXEL_BYTES
    with readable_errors(path, NEEDED, REMEDY):
        num_records, rest = divmod(path.stat().st_size, record_size)
        if rest or not num_records:
            raise ValueError(
                f"{path} has {path.stat().st_size} bytes, and whole records of {record_size} were needed: fetch it again."
            )
        records = np.memmap(path, np.uint8, "r", shape=(num_records, record_size))
    labels = records[:, layout.num_label_bytes - 1]
    if labels.max() >= layout.num_classes:
        index = int(np.argmax(labels >= layout.num_classes))
        raise ValueError(
            f"{path} has the label {labels[index]} in record {index}, and at most {layout.num_classes - 1} was needed: "
            "fetch it again."
        )
    return records


KIND = DatasetFormat("cifar", is_cifar, list_splits, open_cifar)
