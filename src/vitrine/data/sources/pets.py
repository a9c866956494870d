"""Oxford-IIIT Pet: 37 breeds of cats and dogs, in the order of its image lists.

As published (https://www.robots.ox.ac.uk/~vgg/data/pets/): images/ and annotations/, where a line of trainval.txt or
test.txt is the name of an image, its class from 1, its species (1 cat, 2 dog) and its breed among these.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from os.path import isdir, isfile
from pathlib import Path

from vitrine.data.dataset_format import DatasetFormat
from vitrine.data.source import Labels, Source
from vitrine.data.sources.annotations import quote, read_lines, require_once
from vitrine.data.sources.image_files import FileSource, list_folder

NUM_CLASSES = 37
LISTS = {"train": "annotations/trainval.txt", "test": "annotations/test.txt"}
LINE = re.compile(r"(?P<name>(?P<breed>\S+)_[0-9]+)\s+(?P<id>[0-9]{1,9})\s+[12]\s+[0-9]{1,9}")


@dataclass(frozen=True)
class Pet:
    """One image of a list; `where` names file and line for messages."""

    where: str
    name: str
    breed: str
    label: int


def find_root(data: Path) -> Path | None:
    """Return the folder of images/ and annotations/: the given one, or the usual folder in it."""
    roots = (data, data / "oxford-iiit-pet")
    return next((root for root in roots if isdir(root / "images") and isfile(root / LISTS["train"])), None)


def list_splits(data: Path) -> tuple[str, ...]:
    """List the splits that have an image list."""
    root = find_root(data)
    assert root is not None  # otherwise the format does not match
    return tuple(split for split, path in LISTS.items() if isfile(root / path))


def open_split(data: Path, split: str | None) -> Source:
    """Open the images of one list."""
    root, splits = find_root(data), list_splits(data)
    assert root is not None
    # All lists are read for any split: class names come from them and must be the same for every split.
    pets = {each: list(read_pets(root / LISTS[each])) for each in splits}
    everyone = [pet for each in splits for pet in pets[each]]
    class_names = load_class_names(root, everyone)
    require_once((pet.where, pet.name) for pet in everyone)
    wanted, there = pets[split or ""], set(list_folder(root / "images"))
    for pet in wanted:
        if f"{pet.name}.jpg" not in there:
            raise FileNotFoundError(f"{pet.where} lists {pet.name}, but images/{pet.name}.jpg is missing: unpack it.")
    paths = [f"images/{pet.name}.jpg" for pet in wanted]
    labels = Labels.one_each([pet.label for pet in wanted])
    return FileSource(root, paths, labels, class_names, [root / LISTS[each] for each in splits])


def read_pets(path: Path) -> Iterator[Pet]:
    """Yield the images of one list file."""
    for number, line in read_lines(path):
        if line.startswith("#"):
            continue
        match = LINE.fullmatch(line)
        if match is None:
            expected = "an image and three numbers, e.g. 'Abyssinian_100 1 1 1'"
            raise ValueError(f"{path}, line {number} is {quote(line)}; expected {expected}: download the list again.")
        if not 1 <= int(match["id"]) <= NUM_CLASSES:
            raise ValueError(f"{path}, line {number} has class {match['id']}; expected 1 to {NUM_CLASSES}: correct it.")
        yield Pet(f"{path}, line {number}", match["name"], match["breed"], int(match["id"]) - 1)


def load_class_names(root: Path, pets: list[Pet]) -> tuple[str, ...]:
    """Return the breed of each class, taken from the names of its images."""
    breeds: dict[int, str] = {}
    classes: dict[str, int] = {}
    for pet in pets:
        breed, label = breeds.setdefault(pet.label, pet.breed), classes.setdefault(pet.breed, pet.label)
        if (breed, label) != (pet.breed, pet.label):
            other = f"{breed} has class {pet.label + 1}" if breed != pet.breed else f"{pet.breed} has class {label + 1}"
            raise ValueError(f"{pet.where} gives {pet.breed} class {pet.label + 1}, but earlier {other}: correct the list.")
    if not breeds:
        raise ValueError(f"{root / LISTS['train']} lists no images: download the list again.")
    absent = [str(label + 1) for label in range(max(breeds)) if label not in breeds]
    if absent:
        raise ValueError(f"{root / 'annotations'} lists no image of class {absent[0]}: download it again.")
    return tuple(breeds[label] for label in range(len(breeds)))


FORMAT = DatasetFormat("pets", lambda data: find_root(data) is not None, list_splits, open_split)
