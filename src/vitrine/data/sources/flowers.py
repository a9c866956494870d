"""Oxford Flowers-102: 102 species of flowers, each split in the order of its image list.

As published (https://www.robots.ox.ac.uk/~vgg/data/flowers/102/): jpg/image_00001.jpg and so on, imagelabels.mat with the
class of each image from 1, and setid.mat with the numbers of the images of each split, from 1 too.
"""

from os.path import isdir, isfile
from pathlib import Path

import numpy as np

from vitrine.data.dataset_format import DatasetFormat
from vitrine.data.source import Labels, Source
from vitrine.data.sources.annotations import load_json
from vitrine.data.sources.image_files import FileSource, list_folder
from vitrine.data.sources.matlab import Value, load_mat

NUM_CLASSES = 102
LABELS, LISTS, NAMES = "imagelabels.mat", "setid.mat", "cat_to_name.json"
VARIABLES = {"train": "trnid", "val": "valid", "test": "tstid"}


def find_folders(data: Path) -> tuple[Path, Path] | None:
    """Return the folders of jpg/ and of the .mat files; torchvision puts both into "flowers-102"."""
    for root in (data, data / "flowers-102"):
        for images in (root, root / "102flowers"):
            for lists in (root, images):
                if isdir(images / "jpg") and (isfile(lists / LABELS) or isfile(lists / LISTS)):
                    return images, lists
    return None


def open_split(data: Path, split: str | None) -> Source:
    """Open the images of one split of setid.mat."""
    folders = find_folders(data)
    assert folders is not None  # otherwise the format does not match
    images, lists = folders
    labels = require_whole(lists / LABELS, "labels", load_mat(lists / LABELS, "labels")["labels"], NUM_CLASSES)
    numbers = load_splits(lists / LISTS, len(labels))[split or ""]
    names = [f"image_{number:05d}.jpg" for number in numbers.tolist()]
    there = set(list_folder(images / "jpg"))
    for name in names:
        if name not in there:
            raise FileNotFoundError(f"{lists / LISTS} lists {name}, but jpg/{name} does not exist: unpack the images again.")
    chosen = Labels.one_each(labels[numbers - 1] - 1)
    side_files = [lists / name for name in (LABELS, LISTS, NAMES) if isfile(lists / name)]
    return FileSource(images, [f"jpg/{name}" for name in names], chosen, load_class_names(lists), side_files)


def load_splits(path: Path, num_images: int) -> dict[str, np.ndarray]:
    """Read the image numbers of each split, counted from 1; no image may be listed twice."""
    found = load_mat(path, *VARIABLES.values())
    splits = {split: require_whole(path, name, found[name], num_images) for split, name in VARIABLES.items()}
    numbers, counts = np.unique(np.concatenate(list(splits.values())), return_counts=True)
    if (counts > 1).any():
        twice = numbers[counts > 1][0]
        has = [name for split, name in VARIABLES.items() if twice in splits[split]]
        where = f"both {has[0]} and {has[1]}" if len(has) > 1 else f"{has[0]} twice"
        raise ValueError(f"{path} has image {twice} in {where}: download the file again.")
    return splits


def require_whole(path: Path, name: str, value: Value, highest: int) -> np.ndarray:
    """Return a MATLAB array as whole numbers from 1 to `highest`, int64 (N), or raise ValueError."""
    if not isinstance(value, np.ndarray) or value.size != max(value.shape) or value.size == 0:
        raise ValueError(f"{path} has no row of numbers in {name}: download the file again.")
    numbers = value.reshape(-1).astype(np.float64)
    wrong = ~((numbers >= 1) & (numbers <= highest) & (np.floor(numbers) == numbers))  # also true of NaN
    if wrong.any():
        position = int(wrong.argmax())
        found = f"{path} has {numbers[position]:g} in {name}, position {position + 1}"
        raise ValueError(f"{found}; expected whole numbers from 1 to {highest}: download the file again.")
    return numbers.astype(np.int64)


def load_class_names(lists: Path) -> tuple[str, ...]:
    """Return the names in cat_to_name.json, a file often put beside the dataset, else the class numbers."""
    path = lists / NAMES
    numbers = [str(number) for number in range(1, NUM_CLASSES + 1)]
    if not isfile(path):
        return tuple(numbers)
    names = load_json(path)
    if not isinstance(names, dict) or set(names) != set(numbers) or not all(isinstance(name, str) for name in names.values()):
        raise ValueError(f"{path} must have a name for each of the classes '1' to '{NUM_CLASSES}': correct or remove it.")
    return tuple(names[number] for number in numbers)


FORMAT = DatasetFormat("flowers", lambda data: find_folders(data) is not None, lambda _: tuple(VARIABLES), open_split)
