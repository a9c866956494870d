"""Oxford-IIIT Pet: 37 breeds of cats and dogs, in the order of its own lists of images.

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
from vitrine.data.sources.annotations import quote, read_lines
from vitrine.data.sources.image_files import FileSource, list_folder

NUM_CLASSES = 37
LISTS = {"train": "annotations/trainval.txt", "test": "annotations/test.txt"}
LINE = re.compile(r"(?P<name>(?P<breed>\S+)_[0-9]+)\s+(?P<id>[0-9]{1,9})\s+[12]\s+[0-9]{1,9}")


@dataclass(frozen=True)
class Pet:
    place: str
    """The line that lists it, as errors call it."""
    name: str
    breed: str
    label: int


def find_root(data: Path) -> Path | None:
    """The folder of images/ and annotations/; people also give the one above it."""
    for root in (data, data / "oxford-iiit-pet"):
        if isdir(root / "images") and isfile(root / LISTS["train"]):
            return root
    return None


def matches(data: Path) -> bool:
    return find_root(data) is not None


def list_splits(data: Path) -> tuple[str, ...]:
    root = find_root(data)
    assert root is not None  # by `matches`
    return tuple(split for split, path in LISTS.items() if isfile(root / path))


def open_split(data: Path, split: str | None) -> Source:
    root, splits = find_root(data), list_splits(data)
    assert root is not None
    # All lists are read whichever is wanted: the names of the classes come from them, and must be those of every split.
    pets = {each: list(read_pets(root / LISTS[each])) for each in splits}
    everyone = [pet for each in splits for pet in pets[each]]
    class_names = load_class_names(root, everyone)
    require_once(everyone)
    wanted = pets[split or ""]
    require_images(root, wanted)
    paths = [f"images/{pet.name}.jpg" for pet in wanted]
    labels = Labels.one_each([pet.label for pet in wanted])
    return FileSource(root, paths, labels, class_names, [root / LISTS[each] for each in splits])


def read_pets(path: Path) -> Iterator[Pet]:
    for number, line in read_lines(path):
        if line.startswith("#"):
            continue
        match = LINE.fullmatch(line)
        if match is None:
            raise ValueError(
                f"{path}, line {number} is {quote(line)}; an image and three numbers, as in 'Abyssinian_100 1 1 1', "
                "were needed: fetch the list again."
            )
        if not 1 <= int(match["id"]) <= NUM_CLASSES:
            raise ValueError(f"{path}, line {number} has the class {match['id']}, and 1 to {NUM_CLASSES} was needed: mend it.")
        yield Pet(f"{path}, line {number}", match["name"], match["breed"], int(match["id"]) - 1)


def load_class_names(root: Path, pets: list[Pet]) -> tuple[str, ...]:
    """The breed of each class, as the names of its images have it."""
    breeds: dict[int, str] = {}
    classes: dict[str, int] = {}
    for pet in pets:
        breed, label = breeds.setdefault(pet.label, pet.breed), classes.setdefault(pet.breed, pet.label)
        if (breed, label) != (pet.breed, pet.label):
            other = f"{breed} has class {pet.label + 1}" if breed != pet.breed else f"{pet.breed} has class {label + 1}"
            raise ValueError(
                f"{pet.place} gives {pet.breed} the class {pet.label + 1}, but further up {other}; "
                "one class for each breed was needed: mend the list."
            )
    if not breeds:
        raise ValueError(f"{root / LISTS['train']} lists no image, and at least one was needed: fetch the list again.")
    absent = [str(label + 1) for label in range(max(breeds)) if label not in breeds]
    if absent:
        raise ValueError(f"{root / 'annotations'} lists no image of class {absent[0]}, and all were needed: fetch it again.")
    return tuple(breeds[label] for label in range(len(breeds)))


def require_once(pets: list[Pet]) -> None:
    places: dict[str, str] = {}
    for pet in pets:
        if pet.name in places:
            raise ValueError(f"{pet.place} lists {pet.name}, as does {places[pet.name]}, and once was needed: remove one.")
        places[pet.name] = pet.place


def require_images(root: Path, pets: list[Pet]) -> None:
    there = set(list_folder(root / "images"))
    for pet in pets:
        if f"{pet.name}.jpg" not in there:
            raise FileNotFoundError(f"{pet.place} lists {pet.name}, but images/{pet.name}.jpg is not there: unpack it again.")


KIND = DatasetFormat("pets", matches, list_splits, open_split)
