"""The table of tasks against the benchmark's, written out here."""

import pytest

from vitrine.data.vtab_tasks import GENERATED, GROUPS, TASKS, find_task, name_task

# Classes, in the order of table 9 of arXiv:2010.11929.
CLASSES = {
    "natural": {"caltech101": 102, "cifar100": 100, "dtd": 47, "flowers102": 102, "pets": 37, "sun397": 397, "svhn": 10},
    "specialised": {"patch_camelyon": 2, "eurosat": 10, "resisc45": 45, "diabetic_retinopathy": 5},
    "structured": {
        "clevr_count": 8,
        "clevr_distance": 6,
        "dmlab": 6,
        "dsprites_location": 16,
        "dsprites_orientation": 16,
        "kitti_distance": 4,
        "smallnorb_azimuth": 18,
        "smallnorb_elevation": 9,
    },
}


def test_there_are_19_tasks_in_three_groups() -> None:
    found = {group: {task.name: task.num_classes for task in TASKS.values() if task.group == group} for group in GROUPS}
    assert found == CLASSES
    assert list(TASKS) == [name for group in CLASSES.values() for name in group]
    assert len(TASKS) == 19


def test_every_structured_task_has_a_rule_and_no_other() -> None:
    assert {name for name, task in TASKS.items() if task.rule is not None} == set(CLASSES["structured"])


def test_what_is_not_done_to_images_is_bit_s() -> None:
    """Appendix F of arXiv:1912.11370."""
    assert {name for name, task in TASKS.items() if not task.flip} == {
        "dsprites_location",
        "dsprites_orientation",
        "smallnorb_azimuth",
    }
    assert {name for name, task in TASKS.items() if not task.crop} == {
        "clevr_count",
        "clevr_distance",
        "dmlab",
        "dsprites_location",
        "kitti_distance",
    }


def test_shares_are_the_benchmark_s() -> None:
    tenth = {"caltech101", "cifar100", "svhn", "clevr_count", "clevr_distance", "dsprites_location", "dsprites_orientation"}
    assert {name for name, task in TASKS.items() if task.val_share == 0.1} == tenth
    assert {task.val_share for name, task in TASKS.items() if name not in tenth} == {0.2}  # Pets 80/20, EuroSAT 60/20/20
    assert {name for name, task in TASKS.items() if task.test_share == 0.1} == {"dsprites_location", "dsprites_orientation"}
    assert {name for name, task in TASKS.items() if task.splits_test} == {"smallnorb_azimuth", "smallnorb_elevation"}


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("pets", "pets"),
        ("oxford_iiit_pet", "pets"),
        ("Oxford-IIIT-Pet", "pets"),
        ("cifar", "cifar100"),
        ("cifar10", "cifar10"),
        ("dsprites_loc", "dsprites_location"),
        ("smallnorb_azi", "smallnorb_azimuth"),
        ("kitti", "kitti_distance"),
        ("My Photos", "My Photos"),
    ],
)
def test_names_that_people_use(folder: str, name: str) -> None:
    assert name_task(folder) == name


def test_names_are_told_apart() -> None:
    called = [each for task in TASKS.values() for each in (task.name, *task.folders)]
    assert len(set(called)) == len(called)


def test_other_data_is_a_task_of_its_own_group() -> None:
    assert find_task("pets") is TASKS["pets"]
    assert find_task("shapes_count") is GENERATED["shapes:count"]
    other = find_task("photos")
    assert (other.name, other.group, other.num_classes, other.rule) == ("photos", "other", None, None)
