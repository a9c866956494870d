"""Tests of studies/vtab/protocol.py.

The protocol against table 4 and section 4 of the paper's facts, and whatever departs from it by name.
What is found in a folder of tasks: any kind of data, other people's names, and what is missing or not what it seems.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.data.sources.test_vtab import make_vtab
from vitrine.core.console import VitrineWarning
from vitrine.data.open_data import find_data
from vitrine.data.sources.vtab import TASKS, find_task
from vitrine.recipe import Recipe, with_changes
from vitrine.studies.vtab.config import VtabConfig
from vitrine.studies.vtab.protocol import (
    FoundTask,
    Setting,
    TaskSurvey,
    apply_setting,
    build_protocol,
    build_task_recipe,
    check_recipe,
    find_tasks,
    list_departures,
    list_settings,
)


@pytest.fixture
def protocol() -> Recipe:
    return build_protocol("a-model", "tasks")


def find(name: str) -> FoundTask:
    task = find_task(name)
    return FoundTask(task, task.group, f"vtab:{name}:tasks/{name}", task.num_classes or 0, 1000, 100)


def test_it_is_the_paper_s(protocol: Recipe) -> None:
    optim = protocol.optim
    assert (protocol.model.checkpoint, protocol.model.image_size, protocol.loader.batch_size) == ("a-model", 384, 512)
    assert (optim.learning_rate, protocol.total_steps, optim.kind, optim.momentum) == (0.01, 2500, "sgd", 0.9)
    assert (optim.decay, optim.max_grad_norm, optim.weight_decay) == ("cosine", 1.0, 0.0)
    assert (protocol.evaluation.num_times, protocol.evaluation.test) == (0, True)
    assert list_departures(protocol, protocol, VtabConfig()) == []
    check_recipe(protocol, protocol)


@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_trained_on_its_thousand_images_without_what_would_change_its_labels(protocol: Recipe, name: str) -> None:
    recipe, task = build_task_recipe(protocol, find(name)), TASKS[name]
    assert (recipe.data.source, recipe.data.split) == (f"vtab:{name}:tasks/{name}", "train800val200")
    assert recipe.augment.flip == task.flip
    assert recipe.augment.crop == ("inception" if task.crop else "none")
    assert (
        with_changes(recipe, data={"source": "tasks", "split": None}, augment={"flip": True, "crop": "inception"}) == protocol
    )


def test_a_random_crop_can_be_had_for_tasks_with_one(protocol: Recipe) -> None:
    other = with_changes(protocol, augment={"crop": "random", "resize": 448, "flip": False})
    assert build_task_recipe(other, find("pets")).augment.resize == 448
    assert build_task_recipe(other, find("dmlab")).augment.crop == "none"
    assert not build_task_recipe(other, find("pets")).augment.flip


def test_departures_are_named(protocol: Recipe) -> None:
    short = with_changes(
        protocol,
        model={"image_size": 224},
        loader={"batch_size": 32, "num_workers": 1},
        optim={"warmup_steps": 5},
        total_steps=60,
        machine={"accumulation_steps": 1},
        seed=3,
        device="cpu",
    )
    assert list_departures(short, protocol, VtabConfig()) == [
        "model.image_size 224 instead of 384",
        "loader.batch_size 32 instead of 512",
        "optim.warmup_steps 5 instead of 500",
        "total_steps 60 instead of 2500",
    ]
    tested = list_departures(protocol, protocol, VtabConfig(test_images=500))
    assert tested == ["at most 500 test images instead of all"]


def test_what_a_sweep_chose_from_is_named() -> None:
    protocol = build_protocol("model", "root")
    config = VtabConfig(sweep=True, rates=(5.0, 0.1), lengths=(10,))
    named = list_departures(protocol, protocol, config)
    assert named == ["chosen from the rates 5, 0.1 and 10 steps, which the paper does not name"]


def test_tasks_with_too_few_images_are_named() -> None:
    protocol = build_protocol("model", "root")
    few = FoundTask(TASKS["pets"], "natural", "vtab:pets:root/pets", 37, 740, 444)
    named = list_departures(protocol, protocol, VtabConfig(), [few])
    assert named == ["pets with 740 images to learn from instead of 1,000"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"data": {"subset": "10%"}}, r"data\.subset is set for each task by VTAB itself"),
        ({"data": {"split": "train"}}, r"data\.split is set for each task"),
        ({"evaluation": {"num_times": 2}}, r"leave evaluation\.\* out"),
        ({"evaluation": {"test": False}}, r"leave evaluation\.\* out"),
        ({"total_steps": None, "epochs": 3.0}, r"a length in steps, as total_steps=2500"),
        ({"epochs": 3.0}, r"a length in steps, as total_steps=2500"),
        ({"objective": "masked-patches"}, "needs the supervised objective"),
    ],
)
def test_what_makes_it_vtab_cannot_be_changed(protocol: Recipe, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        check_recipe(with_changes(protocol, **changes), protocol)


def test_a_sweep_is_of_two_rates_and_two_lengths(protocol: Recipe) -> None:
    settings = list_settings(protocol, VtabConfig(sweep=True))
    assert settings == [Setting(0.003, 1000), Setting(0.003, 2500), Setting(0.01, 1000), Setting(0.01, 2500)]
    given = list_settings(protocol, VtabConfig(sweep=True, rates=(0.1,), lengths=(7, 8, 9)))
    assert given == [Setting(0.1, 7), Setting(0.1, 8), Setting(0.1, 9)]


def test_a_setting_keeps_the_share_of_warm_up(protocol: Recipe) -> None:
    recipe = apply_setting(protocol, Setting(0.003, 1000))
    assert (recipe.optim.learning_rate, recipe.total_steps, recipe.optim.warmup_steps) == (0.003, 1000, 200)
    assert apply_setting(protocol, Setting(0.01, 2500)) == protocol


OUT = Path("nowhere")


def make_arrays(path: Path, num_classes: int, num_train: int = 1250, num_test: int = 30) -> Path:
    """Small images, their class in their brightness."""
    arrays = {}
    for split, count in (("train", num_train), ("test", num_test)):
        labels = np.arange(count) % num_classes
        arrays |= {f"x_{split}": np.tile(labels.astype(np.uint8)[:, None, None], (1, 4, 4)), f"y_{split}": labels}
    np.savez(path, **arrays)
    return path


def make_folder(folder: Path, num_classes: int) -> Path:
    for split in ("train", "test"):
        for label in range(num_classes):
            (folder / split / f"{label:03}").mkdir(parents=True)
            for index in range(2):
                Image.new("RGB", (2, 2), (label, index, 0)).save(folder / split / f"{label:03}" / f"{index}.png")
    return folder


def survey(root: Path, **fields: object) -> TaskSurvey:
    return find_tasks(root, VtabConfig(**fields), OUT)


def test_tasks_of_any_kind_are_found(tmp_path: Path) -> None:
    make_arrays(tmp_path / "cifar.npz", 100)
    make_arrays(tmp_path / "photos.npz", 3)
    make_folder(tmp_path / "oxford-iiit-pet", 37)
    make_folder(tmp_path / "dsprites_loc", 16)
    (tmp_path / "notes.md").write_text("nothing")
    with pytest.warns(VitrineWarning, match="images to learn from instead of 1,000") as told:
        found = survey(tmp_path)
    assert [str(each.message).split()[0] for each in told] == ["cifar100", "pets", "dsprites_location"]
    assert [(each.task.name, each.group, each.num_classes) for each in found.found] == [
        ("cifar100", "natural", 100),
        ("pets", "natural", 37),
        ("dsprites_location", "structured", 16),
        ("photos", "other", 3),
    ]
    assert [(each.num_train_images, each.num_test_images) for each in found.found] == [
        (925, 30),
        (74, 74),
        (32, 32),
        (1000, 30),
    ]
    assert found.missing == tuple(name for name in TASKS if name not in ("cifar100", "pets", "dsprites_location"))
    source = find_data(found.found[1].source).open("train800val200")
    assert (len(source), source.class_names[36]) == (74, "036")


def test_lists_of_the_community_are_found(tmp_path: Path) -> None:
    """Four classes are not KITTI's by chance."""
    make_vtab(tmp_path / "kitti")
    with pytest.warns(VitrineWarning, match="kitti_distance has 6 images to learn from"):
        (found,) = survey(tmp_path).found
    assert (found.task.name, found.group, found.num_classes) == ("kitti_distance", "structured", 4)
    assert (found.num_train_images, found.num_test_images) == (6, 3)


def test_what_has_other_classes_does_not_count(tmp_path: Path) -> None:
    make_arrays(tmp_path / "cifar100.npz", 10, num_train=2000)
    with pytest.warns(
        VitrineWarning, match=r"cifar100 has 10 classes, and VTAB's has 100: it is run, and does not count in the score"
    ):
        (found,) = survey(tmp_path).found
    assert found.group == "other"


def test_generated_tasks_come_when_asked_for(tmp_path: Path) -> None:
    make_arrays(tmp_path / "svhn.npz", 10, num_train=2000)
    found = survey(tmp_path, generated=True, tasks=("shapes_count", "svhn")).found
    assert [(each.task.name, each.group, each.num_classes) for each in found] == [
        ("svhn", "natural", 10),
        ("shapes_count", "generated", 5),
    ]
    assert (found[1].num_train_images, found[1].num_test_images) == (1000, 2000)
    with pytest.raises(ValueError, match="--tasks shapes_count is no task of VTAB, and none of the data's"):
        survey(tmp_path, tasks=("shapes_count",))


def test_some_can_be_chosen(tmp_path: Path) -> None:
    for name, num_classes in (("svhn", 10), ("photos", 3), ("eurosat", 10)):
        make_arrays(tmp_path / f"{name}.npz", num_classes, num_train=2000)
    chosen = survey(tmp_path, tasks=("photos", "eurosat", "pets"))
    assert [each.task.name for each in chosen.found] == ["eurosat", "photos"]
    assert chosen.missing == ("pets",)
    with pytest.raises(ValueError, match=r"--tasks eurosatt is no task of VTAB, and none of the data's\. Nearest: eurosat"):
        survey(tmp_path, tasks=("eurosatt",))


def test_what_is_no_data_is_missing(tmp_path: Path) -> None:
    make_arrays(tmp_path / "svhn.npz", 10, num_train=2000)
    (tmp_path / "dtd").mkdir()
    with pytest.warns(
        VitrineWarning, match=r"dtd has the name of a task and is no data of a known kind: it is taken as missing"
    ):
        found = survey(tmp_path)
    assert "dtd" in found.missing
    assert len(found.found) == 1


def test_results_in_the_same_folder_are_no_task(tmp_path: Path) -> None:
    make_arrays(tmp_path / "svhn.npz", 10, num_train=2000)
    make_folder(tmp_path / "runs" / "vtab" / "pets", 2)
    found = find_tasks(tmp_path, VtabConfig(), tmp_path / "runs" / "vtab").found
    assert [each.task.name for each in found] == ["svhn"]


def test_real_folders_are_tasks(assets: Path, tmp_path: Path) -> None:
    """Class folders, of which Pets has too few images, and CIFAR-10 is none of the benchmark's."""
    for name, folder in (("flowers102", "flowers102"), ("pets", "pets"), ("cifar10", "cifar10-12k")):
        (tmp_path / name).symlink_to(assets / folder)
    with pytest.warns(VitrineWarning, match=r"pets has 740 images to learn from instead of 1,000"):
        found = survey(tmp_path).found
    assert [(each.task.name, each.group, each.num_classes, each.num_train_images, each.num_test_images) for each in found] == [
        ("flowers102", "natural", 102, 1000, 523),
        ("pets", "natural", 37, 740, 444),
        ("cifar10", "other", 10, 1000, 2000),
    ]


def test_mistakes_cost_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"There is no folder .*nothing, and one with a folder for each task was needed"
    ):
        survey(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match=r"has no task: put folders in it that are called as tasks, as pets or dtd"):
        survey(tmp_path)
    make_arrays(tmp_path / "svhn.npz", 10, num_train=2000)
    make_arrays(tmp_path / "svhn_cropped.npz", 10)
    with pytest.raises(ValueError, match=r"svhn\.npz and .*svhn_cropped\.npz are both the task svhn, and one was needed"):
        survey(tmp_path)
    (tmp_path / "svhn_cropped.npz").unlink()
    make_arrays(tmp_path / "photos.npz", 1)
    with pytest.raises(ValueError, match=r"photos\.npz do not have one label each, of two or more classes"):
        survey(tmp_path)


def test_a_folder_that_is_one_data_set_is_not_a_folder_of_tasks(tmp_path: Path) -> None:
    make_folder(tmp_path / "pets", 2)
    with pytest.raises(ValueError, match=r"pets is one data set, and a folder with one for each task was needed"):
        survey(tmp_path / "pets")


@pytest.mark.parametrize("name", ["foo@1", "a:b"])
def test_names_that_mean_something_else_are_refused(name: str, tmp_path: Path) -> None:
    make_arrays(tmp_path / f"{name}.npz", 3)
    with pytest.raises(ValueError, match="cannot be the name of a task"):
        survey(tmp_path)


def test_what_a_sweep_needs_is_opened_before_it(tmp_path: Path) -> None:
    make_vtab(tmp_path / "pets")
    for name in ("train800.txt", "val200.txt"):
        (tmp_path / "pets" / name).unlink()
    with pytest.warns(VitrineWarning):
        survey(tmp_path)
    with pytest.raises(ValueError, match="has the splits"):
        survey(tmp_path, sweep=True)
