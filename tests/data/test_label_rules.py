"""Label rules against the figures of the benchmark, written out here, and their mistakes in a sentence."""

from collections import Counter
from typing import Any

import pytest

from vitrine.data import label_rules as rules


@pytest.mark.parametrize(("num_objects", "label"), [(3, 0), (4, 1), (10, 7)])
def test_clevr_counts_from_three(num_objects: int, label: int) -> None:
    assert rules.label_clevr_count({"objects": [{}] * num_objects}) == label


@pytest.mark.parametrize(
    ("distances", "label"),
    [([7.9], 0), ([8.0], 0), ([8.01], 1), ([8.5], 1), ([12.0, 8.9], 2), ([9.2], 3), ([9.5], 3), ([9.9], 4), ([10.5, 40.0], 5)],
)
def test_clevr_distance_is_that_of_the_nearest_object(distances: list[float], label: int) -> None:
    """Thresholds 0, 8, 8.5, 9, 9.5, 10, 100: six classes, and a threshold itself belongs to the class below."""
    objects = [{"pixel_coords": [100, 200, distance]} for distance in distances]
    assert rules.label_clevr_distance({"objects": objects}) == label


@pytest.mark.parametrize(
    ("objects", "label"),
    [
        ([], 3),
        ([("Pedestrian", 2.0), ("Cyclist", 3.0), ("DontCare", -1000.0)], 3),
        ([("Car", 7.9)], 0),
        ([("Van", 8.0)], 0),
        ([("Truck", 8.1), ("Pedestrian", 1.0)], 1),
        ([("Car", 60.0), ("Truck", 19.9)], 1),
        ([("Car", 20.5)], 2),
        ([("Car", -3.0)], 0),
    ],
)
def test_kitti_is_about_cars_vans_and_trucks(objects: list[tuple[str, float]], label: int) -> None:
    """Thresholds -100, 8, 20, 999 on z, and 1000 where there is none of them."""
    listed = [{"type": kind, "location": [1.0, 2.0, z]} for kind, z in objects]
    assert rules.label_kitti_distance({"objects": listed}) == label


def test_dsprites_positions_go_in_twos() -> None:
    labels = [rules.label_dsprites_location({"x_position": position}) for position in range(32)]
    assert labels == [position // 2 for position in range(32)]


def test_dsprites_orientations_go_in_twos_and_threes() -> None:
    """40 // 2.5: 0, 1, 2 are class 0, 3 and 4 are class 1, and 5 begins again."""
    labels = [rules.label_dsprites_orientation({"orientation": orientation}) for orientation in range(40)]
    assert labels[:10] == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3]
    assert sorted(Counter(labels).items()) == [(label, 3 if label % 2 == 0 else 2) for label in range(16)]


def test_smallnorb_has_18_azimuths_and_9_elevations() -> None:
    assert [rules.label_smallnorb_azimuth({"azimuth": azimuth}) for azimuth in range(0, 36, 2)] == list(range(18))
    assert [rules.label_smallnorb_elevation({"elevation": elevation}) for elevation in range(9)] == list(range(9))


def test_dmlab_has_a_class_for_each_distance_and_reward() -> None:
    pairs = [(distance, reward) for distance in ("close", "far", "very far") for reward in ("positive", "negative")]
    labels = [rules.label_dmlab({"distance": distance, "reward": reward}) for distance, reward in pairs]
    assert labels == list(range(6))


@pytest.mark.parametrize(
    ("rule", "fields", "sentence"),
    [
        (rules.label_clevr_count, {"objects": [{}] * 11}, "11 objects, and 3 to 10 were needed"),
        (rules.label_clevr_count, {"objects": 5}, "objects=5, and a list of objects was needed"),
        (rules.label_clevr_distance, {"objects": []}, "no objects"),
        (rules.label_clevr_distance, {"objects": [{"pixel_coords": [1, 2]}]}, "three numbers were needed"),
        (rules.label_clevr_distance, {"objects": [{"pixel_coords": [1, 2, 101.0]}]}, "at most 100 was needed"),
        (rules.label_clevr_distance, {"objects": [{"pixel_coords": [1, 2, 0.0]}]}, "one above 0 was needed"),
        (rules.label_kitti_distance, {"objects": [{"type": "Car", "location": None}]}, "location=None, and three numbers"),
        (rules.label_dsprites_location, {"x_position": 32}, "x_position=32, and a whole number from 0 to 31 was needed"),
        (rules.label_dsprites_orientation, {}, "orientation=None, and a whole number from 0 to 39 was needed"),
        (rules.label_smallnorb_azimuth, {"azimuth": 7}, "the azimuth 7, and an even number was needed"),
        (rules.label_smallnorb_elevation, {"elevation": True}, "elevation=True"),
        (rules.label_dmlab, {"distance": "near", "reward": "positive"}, "distance='near', and one of close, far, very far"),
    ],
)
def test_what_no_class_fits_is_refused(rule: rules.Rule, fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        rule(fields)
