"""CIFAR-10 and CIFAR-100 in their binary version, as downloaded and unpacked.

A file is a sequence of records: one label byte (CIFAR-100: coarse label, then fine label) and 3 x 32 x 32 bytes, the red plane
before green and blue, row by row.
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
EXPECTED, REMEDY = "the dataset is incomplete without it", "download or unpack it again"


@dataclass(frozen=True)
class Layout:
    """File names and sizes of CIFAR-10 or CIFAR-100."""

    folder: str
    """Folder name when unpacked."""
    files: dict[str, tuple[str, ...]]
    """File names by split."""
    titles: dict[str, str]
    names_file: str
    num_classes: int
    num_label_bytes: int
    """The last of them is the label."""
    marks: tuple[str, ...]
    """Files that identify this dataset; train.bin alone could be anything."""
    pickled: tuple[str, ...]
    """Files of the Python version, which is not read."""
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
    """Return whether a folder holds CIFAR-10 or CIFAR-100, in the binary or the pickled version."""
    pickled = [(layout, folder) for layout in LAYOUTS for folder in (path, path / layout.pickled_folder)]
    has_all = [all(os.path.isfile(folder / name) for name in layout.pickled) for layout, folder in pickled]
    return bool(find_folders(path)) or any(has_all)


def list_splits(path: Path) -> tuple[str, ...]:
    """List the splits of which at least one file is there."""
    layout, folder = find_folder(path)
    splits = tuple(split for split, names in layout.files.items() if has_any(folder, names))
    if not splits:
        raise FileNotFoundError(f"{folder / layout.files['train'][0]} does not exist; {EXPECTED}: {REMEDY}.")
    return splits


def open_cifar(path: Path, split: str | None) -> ArraySource:
    """Read one split into memory."""
    assert split is not None  # CIFAR always has splits
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
    """Return the layout and the folder of the files: the path itself, or a folder in it."""
    found = find_folders(path)
    if len(found) > 1:
        folders = join_names([str(folder) for _, folder in found])
        raise ValueError(f"{path} holds both CIFAR-10 and CIFAR-100 ({folders}): give one of these folders.")
    if not found:
        raise ValueError(f"{path} holds CIFAR's Python version, a pickle that could run any code: download the binary version.")
    return found[0]


def find_folders(path: Path) -> list[tuple[Layout, Path]]:
    """List the CIFAR folders at a path, or directly below it."""
    own = [(layout, path) for layout in LAYOUTS if has_any(path, layout.marks)]
    return own or [(layout, path / layout.folder) for layout in LAYOUTS if has_any(path / layout.folder, layout.marks)]


def has_any(folder: Path, names: Sequence[str]) -> bool:
    return any(os.path.isfile(folder / name) for name in names)


def read_class_names(path: Path, num_classes: int) -> tuple[str, ...]:
    """Read class names, one a line. CIFAR-10's file ends with an empty line."""
    text = read_text(path, f"expected {num_classes} class names", limit=MAX_NAMES_SIZE)
    names = tuple(line.strip() for line in text.splitlines() if line.strip())
    if len(names) != num_classes:
        raise ValueError(f"{path} has {len(names)} class names; expected {num_classes}: download it again.")
    return names


def map_records(path: Path, layout: Layout) -> np.ndarray:
    """Memory-map the records (N, label bytes + 3072) of a file and check their labels."""
    record_size = layout.num_label_bytes + NUM_PIXEL_BYTES
    with readable_errors(path, EXPECTED, REMEDY):
        num_records, rest = divmod(path.stat().st_size, record_size)
        if rest or not num_records:
            raise ValueError(f"{path} has {path.stat().st_size} bytes; expected a multiple of {record_size}: {REMEDY}.")
        records = np.memmap(path, np.uint8, "r", shape=(num_records, record_size))
    labels = records[:, layout.num_label_bytes - 1]
    if labels.max() >= layout.num_classes:
        index = int(np.argmax(labels >= layout.num_classes))
        highest = layout.num_classes - 1
        raise ValueError(f"{path} has label {labels[index]} in record {index}; expected at most {highest}: {REMEDY}.")
    return records


FORMAT = DatasetFormat("cifar", is_cifar, list_splits, open_cifar)
