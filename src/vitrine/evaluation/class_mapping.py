"""The classes of some data in the numbers of a model: by name, by number, or by a file that says which are which.

A class of the data may stand for several of the model's, as ObjectNet's do (section D.9 of arXiv:2010.11929): then an image has
all of them for labels, and images whose class stands for none have no label and do not count.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitrine.core.console import join_names, warn_user
from vitrine.core.files import read_json
from vitrine.data.source import Labels, Source
from vitrine.data.wrappers import RelabelledSource


def map_classes(source: Source, names: Sequence[str] | None, num_classes: int, mapping: Path | None = None) -> Source:
    """The same images with the model's numbers for labels; `names` are the model's, where it has some."""
    shown = name_classes(names, num_classes)
    if not source.class_names:
        raise ValueError(
            "The images have no labels, and some were needed to be compared with: give images in folders by class."
        )
    if mapping is not None:
        sets = read_mapping(mapping, source.class_names, names, num_classes)
        return RelabelledSource(source, map_to_sets(source.labels, sets), shown)
    numbers = match_classes(source.class_names, names, num_classes)
    if names is None:
        theirs = dict(zip(numbers, source.class_names, strict=True))
        shown = tuple(theirs.get(number, str(number)) for number in range(num_classes))
    return RelabelledSource(source, Labels(np.array(numbers)[source.labels.values], source.labels.starts), shown)


def name_classes(names: Sequence[str] | None, num_classes: int) -> tuple[str, ...]:
    """What to call a classifier's classes: by number, where it has no names."""
    if num_classes < 1:
        raise ValueError("The model has no head, and a classifier was needed: fine-tune it first (vitrine finetune).")
    return tuple(names) if names is not None else tuple(map(str, range(num_classes)))


def match_classes(given: Sequence[str], names: Sequence[str] | None, num_classes: int) -> list[int]:
    """The model's number of each of the data's classes."""
    if names is not None:
        if tuple(given) == tuple(names):
            return list(range(num_classes))
        places = {name: number for number, name in enumerate(names)}
        counts = Counter(names)
        if all(counts[name] == 1 for name in given):  # ImageNet has two cranes, which a name does not tell apart
            return [places[name] for name in given]
    if all(name.isdecimal() for name in given) and all(int(name) < num_classes for name in given):
        return [int(name) for name in given]
    if len(given) == num_classes:
        if names is not None:
            warn_user(
                f"The {num_classes} classes of the data are not called as the model's ({given[0]} and {names[0]}, ..), and are "
                "taken to be in the same order."
            )
        return list(range(num_classes))
    strangers = [name for name in given if names is None or names.count(name) != 1]
    raise ValueError(
        f"The data has {len(given)} classes, the model {num_classes}, and these are not among its own: "
        f"{join_names(strangers)}. Say by --mapping FILE which they are, or fine-tune the model on them."
    )


def read_mapping(path: Path, given: Sequence[str], names: Sequence[str] | None, num_classes: int) -> list[list[int]]:
    """Of each class of the data, the classes of the model that it stands for.

    The file is an object of JSON: by class of the data a number, a name, or a list of these; or several names in one text,
    with semicolons between, as ObjectNet has them.
    """
    if not path.is_file():
        raise FileNotFoundError(f"--mapping {path} is no file, and one of JSON was needed: check its name.")
    content = read_json(path)
    if not any(name in content for name in given):
        raise ValueError(
            f"{path} has none of the data's classes, which are {join_names(given)}: write one line for each, as "
            f'{{"{given[0]}": [3, 7]}}.'
        )
    counts = Counter(names or ())
    numbers = {name: number for number, name in enumerate(names or ()) if counts[name] == 1}
    sets = [find_numbers(path, name, content.get(name, []), numbers, num_classes) for name in given]
    without = [name for name, each in zip(given, sets, strict=True) if not each]
    if without:
        warn_user(
            f"{len(without)} of {len(given)} classes stand for none of the model's and do not count: {join_names(without)}."
        )
    return sets


def find_numbers(path: Path, name: str, entry: Any, numbers: dict[str, int], num_classes: int) -> list[int]:
    if isinstance(entry, str) and entry not in numbers:
        entry = [part.strip() for part in entry.split(";") if part.strip()]
    found = []
    for item in entry if isinstance(entry, list) else [entry]:
        number = numbers.get(item) if isinstance(item, str) else item
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < num_classes:
            raise ValueError(
                f"{path} has {item!r} for {name}, and a class of the model was needed: its name, if no other has it, "
                f"or its number, 0 to {num_classes - 1}."
            )
        found.append(number)
    return sorted(set(found))


def map_to_sets(labels: Labels, sets: Sequence[Sequence[int]]) -> Labels:
    return Labels.several_each(
        [sorted({number for label in labels.as_tuple(index) for number in sets[label]}) for index in range(len(labels))]
    )
