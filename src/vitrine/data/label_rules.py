"""From what was annotated in an image to its class, for the structured tasks of VTAB (arXiv:1910.04867).

A rule reads the fields of one image, as a row of `annotations.jsonl` has them, and returns the class, counted from 0. The
figures are those of the benchmark's code, google-research/task_adaptation.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vitrine.core.config_checks import is_whole

Fields = Mapping[str, Any]
Rule = Callable[[Fields], int]

FEWEST_OBJECTS, MOST_OBJECTS = 3, 10  # in an image of Clevr
CLEVR_THRESHOLDS = (0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0)
KITTI_THRESHOLDS = (-100.0, 8.0, 20.0, 999.0)
VEHICLES = ("Car", "Van", "Truck")
NO_VEHICLE = 1000.0  # in metres, behind the last threshold
NUM_POSITIONS, NUM_ORIENTATIONS, NUM_DSPRITES_CLASSES = 32, 40, 16
NUM_AZIMUTHS, NUM_ELEVATIONS = 18, 9
DISTANCES, REWARDS = ("close", "far", "very far"), ("positive", "negative")


def label_clevr_count(fields: Fields) -> int:
    """`objects`: 3 to 10 of them are the classes 0 to 7."""
    num_objects = len(require_objects(fields))
    if not FEWEST_OBJECTS <= num_objects <= MOST_OBJECTS:
        raise ValueError(f"{num_objects} objects, and {FEWEST_OBJECTS} to {MOST_OBJECTS} were needed")
    return num_objects - FEWEST_OBJECTS


def label_clevr_distance(fields: Fields) -> int:
    """`objects`, each with `pixel_coords` (x, y, distance), as Clevr's scenes have them: the nearest one's distance."""
    distances = [require_triple(each, "pixel_coords")[2] for each in require_objects(fields)]
    if not distances:
        raise ValueError("no objects, and at least one was needed")
    label = find_interval(min(distances), CLEVR_THRESHOLDS)
    if label == len(CLEVR_THRESHOLDS) - 1:
        raise ValueError(f"the distance {min(distances):g}, and at most {CLEVR_THRESHOLDS[-1]:g} was needed")
    return label


def label_kitti_distance(fields: Fields) -> int:
    """`objects`, each with `type` and `location` (x, y, z) in metres: z of the nearest car, van or truck; 3 without any."""
    vehicles = [each for each in require_objects(fields) if each.get("type") in VEHICLES]
    distances = [require_triple(each, "location")[2] for each in vehicles]
    return find_interval(min(distances, default=NO_VEHICLE), KITTI_THRESHOLDS)


def label_dsprites_location(fields: Fields) -> int:
    """`x_position`, 0 to 31: two of them to a class."""
    return divide_evenly(require_step(fields, "x_position", NUM_POSITIONS), NUM_POSITIONS)


def label_dsprites_orientation(fields: Fields) -> int:
    """`orientation`, 0 to 39: two or three of them to a class."""
    return divide_evenly(require_step(fields, "orientation", NUM_ORIENTATIONS), NUM_ORIENTATIONS)


def label_smallnorb_azimuth(fields: Fields) -> int:
    """`azimuth` as the data's files have it, in tens of degrees: 0, 2, .. 34 are the classes 0 to 17."""
    azimuth = require_step(fields, "azimuth", 2 * NUM_AZIMUTHS)
    if azimuth % 2 != 0:
        raise ValueError(f"the azimuth {azimuth}, and an even number was needed, in tens of degrees")
    return azimuth // 2


def label_smallnorb_elevation(fields: Fields) -> int:
    """`elevation`, 0 to 8, is the class."""
    return require_step(fields, "elevation", NUM_ELEVATIONS)


def label_dmlab(fields: Fields) -> int:
    """`distance` (close, far, very far) and `reward` (positive, negative) of an object: six classes, in this order."""
    distance, reward = require_choice(fields, "distance", DISTANCES), require_choice(fields, "reward", REWARDS)
    return len(REWARDS) * distance + reward


def divide_evenly(step: int, num_steps: int, num_classes: int = NUM_DSPRITES_CLASSES) -> int:
    """The class of a step where each class has as many, which need be no whole number: 40 steps // 2.5."""
    return math.floor(step / (num_steps / num_classes))


def find_interval(value: float, thresholds: Sequence[float]) -> int:
    """The number of the last threshold that lies below the value."""
    below = [place for place, threshold in enumerate(thresholds) if threshold < value]
    if not below:
        raise ValueError(f"the distance {value:g}, and one above {thresholds[0]:g} was needed")
    return below[-1]


def require_objects(fields: Fields) -> list[dict[str, Any]]:
    objects = fields.get("objects")
    if not isinstance(objects, list) or not all(isinstance(each, dict) for each in objects):
        raise ValueError(f"objects={objects!r:.60}, and a list of objects was needed")
    return objects


def require_triple(thing: Fields, name: str) -> list[float]:
    values: Any = thing.get(name)
    is_triple = isinstance(values, list) and len(values) == 3
    if not is_triple or not all(isinstance(each, int | float) and math.isfinite(each) for each in values):
        raise ValueError(f"an object with {name}={values!r:.60}, and three numbers were needed")
    return values


def require_step(fields: Fields, name: str, num_steps: int) -> int:
    value: Any = fields.get(name)
    if not is_whole(value) or not 0 <= value < num_steps:
        raise ValueError(f"{name}={value!r:.60}, and a whole number from 0 to {num_steps - 1} was needed")
    return value


def require_choice(fields: Fields, name: str, choices: Sequence[str]) -> int:
    """Its place among the choices."""
    if fields.get(name) not in choices:
        raise ValueError(f"{name}={fields.get(name)!r:.60}, and one of {', '.join(choices)} was needed")
    return choices.index(fields[name])
