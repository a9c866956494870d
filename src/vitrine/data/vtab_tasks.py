"""The 19 tasks of VTAB-1k (arXiv:1910.04867), as a table: what each is, how its images are divided, what is not done to them.

Splits are those of google-research/task_adaptation; which augmentation is off is from appendix F of BiT (arXiv:1912.11370).
"""

from dataclasses import dataclass
from typing import Literal

from vitrine.data.label_rules import (
    Rule,
    label_clevr_count,
    label_clevr_distance,
    label_dmlab,
    label_dsprites_location,
    label_dsprites_orientation,
    label_kitti_distance,
    label_smallnorb_azimuth,
    label_smallnorb_elevation,
)

Group = Literal["natural", "specialised", "structured", "generated", "other"]

# Those of the benchmark, in the order of its tables.
GROUPS: tuple[Group, ...] = ("natural", "specialised", "structured")


@dataclass(frozen=True, kw_only=True)
class VtabTask:
    """A task. The shares are for data that is not divided so already; the rule for annotations instead of classes."""

    name: str
    group: Group
    num_classes: int | None = None
    """None where any number is right."""
    folders: tuple[str, ...] = ()
    """Other names under which people keep it."""
    label: str = "class"
    """What the class is, in a few words."""
    rule: Rule | None = None
    val_share: float = 0.2
    """Of train where there is no val; of all images where they are not divided."""
    test_share: float = 0.2
    """Of all images where they are not divided."""
    splits_test: bool = False
    """Without val, the first half of test is val, and the second half test."""
    flip: bool = True
    crop: bool = True


NATURAL = (
    VtabTask(name="caltech101", group="natural", num_classes=102, val_share=0.1),
    VtabTask(name="cifar100", group="natural", num_classes=100, folders=("cifar", "cifar_100"), val_share=0.1),
    VtabTask(name="dtd", group="natural", num_classes=47),
    VtabTask(name="flowers102", group="natural", num_classes=102, folders=("oxford_flowers102", "flowers")),
    VtabTask(name="pets", group="natural", num_classes=37, folders=("oxford_iiit_pet", "oxford_pet", "oxford_pets")),
    VtabTask(name="sun397", group="natural", num_classes=397),
    VtabTask(name="svhn", group="natural", num_classes=10, folders=("svhn_cropped",), val_share=0.1),
)
SPECIALISED = (
    VtabTask(name="patch_camelyon", group="specialised", num_classes=2, folders=("pcam", "camelyon")),
    VtabTask(name="eurosat", group="specialised", num_classes=10),
    VtabTask(name="resisc45", group="specialised", num_classes=45),
    VtabTask(
        name="diabetic_retinopathy",
        group="specialised",
        num_classes=5,
        folders=("retinopathy", "diabetic_retinopathy_detection"),
    ),
)
STRUCTURED = (
    VtabTask(
        name="clevr_count",
        group="structured",
        num_classes=8,
        folders=("clevr_count_all",),
        label="objects - 3",
        rule=label_clevr_count,
        val_share=0.1,
        crop=False,
    ),
    VtabTask(
        name="clevr_distance",
        group="structured",
        num_classes=6,
        folders=("clevr_dist", "clevr_closest_object_distance"),
        label="nearest object: 8, 8.5, 9, 9.5, 10",
        rule=label_clevr_distance,
        val_share=0.1,
        crop=False,
    ),
    VtabTask(name="dmlab", group="structured", num_classes=6, label="3 distances x 2 rewards", rule=label_dmlab, crop=False),
    VtabTask(
        name="dsprites_location",
        group="structured",
        num_classes=16,
        folders=("dsprites_loc", "dsprites_label_x_position"),
        label="x of 32 // 2",
        rule=label_dsprites_location,
        val_share=0.1,
        test_share=0.1,
        flip=False,
        crop=False,
    ),
    VtabTask(
        name="dsprites_orientation",
        group="structured",
        num_classes=16,
        folders=("dsprites_ori", "dsprites_label_orientation"),
        label="angle of 40 // 2.5",
        rule=label_dsprites_orientation,
        val_share=0.1,
        test_share=0.1,
        flip=False,
    ),
    VtabTask(
        name="kitti_distance",
        group="structured",
        num_classes=4,
        folders=("kitti", "kitti_dist", "kitti_closest_vehicle_distance"),
        label="nearest vehicle: 8, 20 m, none",
        rule=label_kitti_distance,
        crop=False,
    ),
    VtabTask(
        name="smallnorb_azimuth",
        group="structured",
        num_classes=18,
        folders=("smallnorb_azi", "smallnorb_label_azimuth"),
        label="azimuth of 18",
        rule=label_smallnorb_azimuth,
        splits_test=True,
        flip=False,
    ),
    VtabTask(
        name="smallnorb_elevation",
        group="structured",
        num_classes=9,
        folders=("smallnorb_ele", "smallnorb_label_elevation"),
        label="elevation of 9",
        rule=label_smallnorb_elevation,
        splits_test=True,
    ),
)
TASKS: dict[str, VtabTask] = {task.name: task for task in (*NATURAL, *SPECIALISED, *STRUCTURED)}

# Stand-ins for structured tasks where nothing can be downloaded, treated as the benchmark's that ask for the same.
GENERATED: dict[str, VtabTask] = {
    "shapes:position": VtabTask(name="shapes_position", group="generated", num_classes=9, flip=False, crop=False),
    "shapes:orientation": VtabTask(name="shapes_orientation", group="generated", num_classes=8, flip=False),
    "shapes:count": VtabTask(name="shapes_count", group="generated", num_classes=5, crop=False),
}

KNOWN = {**TASKS, **{task.name: task for task in GENERATED.values()}}
CALLED = {called: task.name for task in TASKS.values() for called in (task.name, *task.folders)}


def find_task(name: str) -> VtabTask:
    """The task of that name, or one of group other: someone's own data under the same protocol."""
    return KNOWN.get(name) or VtabTask(name=name, group="other")


def name_task(folder: str) -> str:
    """What the task is called that people keep under this name; the name itself where it is none of the benchmark's."""
    return CALLED.get(folder.lower().replace("-", "_"), folder)
