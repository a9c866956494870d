"""Map the classes of a dataset to the classes of a model: by name, by number, or by a mapping file.

One class of the data may stand for several of the model's, as in ObjectNet (section D.9 of arXiv:2010.11929). Its images then
have all of these as labels. Images of a class that is mapped to nothing have no label and do not count.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitrine.core.console import join_names, name_setting, warn_user
from vitrine.core.files import read_json
from vitrine.data.source import Labels, Source
from vitrine.data.wrappers import RelabelledSource


def map_classes(
    source: Source, model_classes: Sequence[str] | None, num_classes: int, mapping: str | Path | None = None
) -> RelabelledSource:
    """Return the source with labels changed to the model's class numbers, so that predictions can be compared with them.

    `model_classes` are the model's class names, None if unknown; `mapping` is a JSON file (see `read_mapping`).
    """
    class_names = resolve_class_names(model_classes, num_classes)
    if not source.class_names:
        raise ValueError("The data has no labels to compare predictions with: use labelled data, e.g. images in class folders.")
    if mapping is not None:
        sets = read_mapping(Path(mapping), source.class_names, model_classes, num_classes)
        return RelabelledSource(source, map_to_sets(source.labels, sets), class_names)
    numbers = match_classes(source.class_names, model_classes, num_classes)
    if model_classes is None:
        data_names = dict(zip(numbers, source.class_names, strict=True))
        class_names = tuple(data_names.get(number, str(number)) for number in range(num_classes))
    return RelabelledSource(source, Labels(np.array(numbers)[source.labels.values], source.labels.starts), class_names)


def resolve_class_names(model_classes: Sequence[str] | None, num_classes: int) -> tuple[str, ...]:
    """Return the model's class names, or their numbers as text; raise ValueError if the model has no head."""
    if num_classes < 1:
        raise ValueError("The model has no classification head: fine-tune it first (vitrine finetune).")
    return tuple(model_classes) if model_classes is not None else tuple(map(str, range(num_classes)))


def match_classes(data_classes: Sequence[str], model_classes: Sequence[str] | None, num_classes: int) -> list[int]:
    """Return the model's class number of each class of the data, by name, else by number, else by order."""
    if model_classes is not None:
        if tuple(data_classes) == tuple(model_classes):
            return list(range(num_classes))
        numbers = {name: number for number, name in enumerate(model_classes)}
        counts = Counter(model_classes)
        if all(counts[name] == 1 for name in data_classes):  # ImageNet has two classes named crane: a name must be unique
            return [numbers[name] for name in data_classes]
    if all(name.isdecimal() for name in data_classes) and all(int(name) < num_classes for name in data_classes):
        return [int(name) for name in data_classes]
    if len(data_classes) == num_classes:
        if model_classes is not None:
            pair = f"{data_classes[0]} and {model_classes[0]}, ..."
            warn_user(f"The {num_classes} class names of data and model differ ({pair}); assuming the same order.")
        return list(range(num_classes))
    unknown = [name for name in data_classes if model_classes is None or model_classes.count(name) != 1]
    raise ValueError(
        f"The data has {len(data_classes)} classes and the model {num_classes}; the model does not have: "
        f"{join_names(unknown)}. Map them with {name_setting('mapping')}, or fine-tune the model on this data."
    )


def read_mapping(
    path: Path, data_classes: Sequence[str], model_classes: Sequence[str] | None, num_classes: int
) -> list[list[int]]:
    """Read a JSON mapping file; return the model's class numbers of each class of the data.

    The file is an object {class of the data: class of the model, by number or name, or a list of these}. A text may hold
    several names separated by semicolons, as ObjectNet's file does.
    """
    if not path.is_file():
        raise FileNotFoundError(f"Mapping file {path} not found: check the path.")
    content = read_json(path)
    if not any(name in content for name in data_classes):
        raise ValueError(f"{path} has none of the data's classes ({join_names(data_classes)}): add an entry for each.")
    counts = Counter(model_classes or ())
    numbers = {name: number for number, name in enumerate(model_classes or ()) if counts[name] == 1}
    sets = [parse_entry(path, name, content.get(name, []), numbers, num_classes) for name in data_classes]
    unmapped = [name for name, each in zip(data_classes, sets, strict=True) if not each]
    if unmapped:
        warn_user(f"{len(unmapped)} of {len(data_classes)} classes are not mapped and do not count: {join_names(unmapped)}.")
    return sets


def parse_entry(path: Path, name: str, entry: Any, numbers: dict[str, int], num_classes: int) -> list[int]:
    """Return the sorted class numbers that one entry of a mapping file lists; `numbers` are those of unique names."""
    if isinstance(entry, str) and entry not in numbers:
        entry = [part.strip() for part in entry.split(";") if part.strip()]
    classes = set()
    for item in entry if isinstance(entry, list) else [entry]:
        number = numbers.get(item) if isinstance(item, str) else item
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < num_classes:
            raise ValueError(f"{path} maps {name} to {item!r}; expected a unique class name, or 0 to {num_classes - 1}.")
        classes.add(number)
    return sorted(classes)


def map_to_sets(labels: Labels, sets: Sequence[Sequence[int]]) -> Labels:
    """Replace each label by its set of class numbers."""
    return Labels.several_each(
        [sorted({number for label in labels.as_tuple(index) for number in sets[label]}) for index in range(len(labels))]
    )
