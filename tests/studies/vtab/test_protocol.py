"""The protocol of VTAB against table 4 of the paper, departures from it, and the tasks that are found in a folder."""

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
    FoundTasks,
    Setting,
    apply_setting,
    build_protocol,
    build_task_recipe,
    check_recipe,
    describe_protocol,
    find_tasks,
    list_departures,
    list_settings,
)


@pytest.fixture
def protocol() -> Recipe:
    return build_protocol("a-model", "tasks")


def make_task(name: str) -> FoundTask:
    task = find_task(name)
    return FoundTask(task, task.group, f"vtab:{name}:tasks/{name}", task.num_classes or 0, 1000, 100)


def test_settings_are_the_paper_s(protocol: Recipe) -> None:
    optim = protocol.optim
    assert (protocol.model.checkpoint, protocol.model.image_size, protocol.loader.batch_size) == ("a-model", 384, 512)
    assert (optim.learning_rate, protocol.total_steps, optim.kind, optim.momentum) == (0.01, 2500, "sgd", 0.9)
    assert (optim.decay, optim.max_grad_norm, optim.weight_decay) == ("cosine", 1.0, 0.0)
    assert (protocol.evaluation.num_times, protocol.evaluation.test) == (0, True)
    assert list_departures(protocol, protocol, VtabConfig()) == []
    check_recipe(protocol, protocol)
    text = describe_protocol(protocol, [], is_swept=False)
    assert text.startswith("The paper's protocol")
    assert all(number in text for number in ("0.01", "2,500", "512", "384"))


@pytest.mark.parametrize("name", TASKS)
def test_task_trains_on_1000_images_without_augmentation_that_changes_labels(protocol: Recipe, name: str) -> None:
    recipe, task = build_task_recipe(protocol, make_task(name)), TASKS[name]
    assert (recipe.data.source, recipe.data.split) == (f"vtab:{name}:tasks/{name}", "train800val200")
    assert recipe.augment.flip == task.flip
    assert recipe.augment.crop == ("inception" if task.crop else "none")
    assert (
        with_changes(recipe, data={"source": "tasks", "split": None}, augment={"flip": True, "crop": "inception"}) == protocol
    )


def test_other_crops_apply_only_to_tasks_that_are_cropped(protocol: Recipe) -> None:
    other = with_changes(protocol, augment={"crop": "random", "resize": 448, "flip": False})
    assert build_task_recipe(other, make_task("pets")).augment.resize == 448
    assert build_task_recipe(other, make_task("dmlab")).augment.crop == "none"
    assert not build_task_recipe(other, make_task("pets")).augment.flip


def test_departures_are_listed(protocol: Recipe) -> None:
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


def test_sweep_is_a_departure() -> None:
    protocol = build_protocol("model", "root")
    config = VtabConfig(sweep=True, rates=(5.0, 0.1), lengths=(10,))
    (departure,) = list_departures(protocol, protocol, config)
    assert "5, 0.1 and 10 steps" in departure


def test_tasks_with_too_few_images_are_departures() -> None:
    protocol = build_protocol("model", "root")
    few = FoundTask(TASKS["pets"], "natural", "vtab:pets:root/pets", 37, 740, 444)
    (departure,) = list_departures(protocol, protocol, VtabConfig(), [few])
    assert departure.startswith("pets with 740 ")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"subset": "10%"}}, r"data\.subset"),
        ({"data": {"split": "train"}}, r"data\.split"),
        ({"evaluation": {"num_times": 2}}, "evaluation"),
        ({"evaluation": {"test": False}}, "evaluation"),
        ({"total_steps": None, "epochs": 3.0}, r"total_steps"),
        ({"epochs": 3.0}, r"total_steps"),
        ({"objective": "masked-patches"}, "needs the supervised objective"),
    ],
)
def test_fields_that_define_vtab_cannot_be_changed(protocol: Recipe, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_recipe(with_changes(protocol, **changes), protocol)


def test_sweep_has_two_learning_rates_and_two_lengths(protocol: Recipe) -> None:
    settings = list_settings(protocol, VtabConfig(sweep=True))
    assert settings == [Setting(0.003, 1000), Setting(0.003, 2500), Setting(0.01, 1000), Setting(0.01, 2500)]
    given = list_settings(protocol, VtabConfig(sweep=True, rates=(0.1,), lengths=(7, 8, 9)))
    assert given == [Setting(0.1, 7), Setting(0.1, 8), Setting(0.1, 9)]


def test_setting_keeps_the_fraction_of_warm_up(protocol: Recipe) -> None:
    recipe = apply_setting(protocol, Setting(0.003, 1000))
    assert (recipe.optim.learning_rate, recipe.total_steps, recipe.optim.warmup_steps) == (0.003, 1000, 200)
    assert apply_setting(protocol, Setting(0.01, 2500)) == protocol


OUT = Path("nowhere")


def make_arrays(path: Path, num_classes: int, num_train: int = 1250, num_test: int = 30) -> Path:
    """Write small images whose brightness is their class."""
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


def find(root: Path, **fields: object) -> FoundTasks:
    return find_tasks(root, VtabConfig(**fields), OUT)


def test_tasks_of_any_format_are_found(tmp_path: Path) -> None:
    make_arrays(tmp_path / "cifar.npz", 100)
    make_arrays(tmp_path / "photos.npz", 3)
    make_folder(tmp_path / "oxford-iiit-pet", 37)
    make_folder(tmp_path / "dsprites_loc", 16)
    (tmp_path / "notes.md").write_text("nothing")
    with pytest.warns(VitrineWarning, match="instead of 1,000") as warned:
        found = find(tmp_path)
    assert [str(each.message).split()[0] for each in warned] == ["cifar100", "pets", "dsprites_location"]
    assert [(each.task.name, each.group, each.num_classes) for each in found.tasks] == [
        ("cifar100", "natural", 100),
        ("pets", "natural", 37),
        ("dsprites_location", "structured", 16),
        ("photos", "other", 3),
    ]
    assert [(each.num_train_images, each.num_test_images) for each in found.tasks] == [
        (925, 30),
        (74, 74),
        (32, 32),
        (1000, 30),
    ]
    assert found.missing == tuple(name for name in TASKS if name not in ("cifar100", "pets", "dsprites_location"))
    source = find_data(found.tasks[1].source).open("train800val200")
    assert (len(source), source.class_names[36]) == (74, "036")


def test_published_image_lists_are_found(tmp_path: Path) -> None:
    make_vtab(tmp_path / "kitti")
    with pytest.warns(VitrineWarning, match="kitti_distance has 6"):
        (found,) = find(tmp_path).tasks
    assert (found.task.name, found.group, found.num_classes) == ("kitti_distance", "structured", 4)
    assert (found.num_train_images, found.num_test_images) == (6, 3)


def test_task_with_another_number_of_classes_is_left_out_of_the_score(tmp_path: Path) -> None:
    make_arrays(tmp_path / "cifar100.npz", 10, num_train=2000)
    with pytest.warns(VitrineWarning, match="cifar100 has 10 classes"):
        (found,) = find(tmp_path).tasks
    assert found.group == "other"


def test_generated_tasks_are_added_on_request(tmp_path: Path) -> None:
    make_arrays(tmp_path / "svhn.npz", 10, num_train=2000)
    found = find(tmp_path, generated=True, tasks=("shapes_count", "svhn")).tasks
    assert [(each.task.name, each.group, each.num_classes) for each in found] == [
        ("svhn", "natural", 10),
        ("shapes_count", "generated", 5),
    ]
    assert (found[1].num_train_images, found[1].num_test_images) == (1000, 2000)
    with pytest.raises(ValueError, match="shapes_count"):
        find(tmp_path, tasks=("shapes_count",))


def test_some_tasks_can_be_chosen(tmp_path: Path) -> None:
    for name, num_classes in (("svhn", 10), ("photos", 3), ("eurosat", 10)):
        make_arrays(tmp_path / f"{name}.npz", num_classes, num_train=2000)
    chosen = find(tmp_path, tasks=("photos", "eurosat", "pets"))
    assert [each.task.name for each in chosen.tasks] == ["eurosat", "photos"]
    assert chosen.missing == ("pets",)
    with pytest.raises(ValueError, match=r"eurosatt.* eurosat\b"):
        find(tmp_path, tasks=("eurosatt",))


def test_folder_that_is_not_a_dataset_counts_as_missing(tmp_path: Path) -> None:
    make_arrays(tmp_path / "svhn.npz", 10, num_train=2000)
    (tmp_path / "dtd").mkdir()
    with pytest.warns(VitrineWarning, match="dtd"):
        found = find(tmp_path)
    assert "dtd" in found.missing
    assert len(found.tasks) == 1


def test_results_in_the_same_folder_are_not_a_task(tmp_path: Path) -> None:
    make_arrays(tmp_path / "svhn.npz", 10, num_train=2000)
    make_folder(tmp_path / "runs" / "vtab" / "pets", 2)
    found = find_tasks(tmp_path, VtabConfig(), tmp_path / "runs" / "vtab").tasks
    assert [each.task.name for each in found] == ["svhn"]


def test_real_folders_are_tasks(assets: Path, tmp_path: Path) -> None:
    """Pets has too few images, and CIFAR-10 is not in the benchmark."""
    for name, folder in (("flowers102", "flowers102"), ("pets", "pets"), ("cifar10", "cifar10-12k")):
        (tmp_path / name).symlink_to(assets / folder)
    with pytest.warns(VitrineWarning, match="pets has 740"):
        found = find(tmp_path).tasks
    assert [(each.task.name, each.group, each.num_classes, each.num_train_images, each.num_test_images) for each in found] == [
        ("flowers102", "natural", 102, 1000, 523),
        ("pets", "natural", 37, 740, 444),
        ("cifar10", "other", 10, 1000, 2000),
    ]


def test_invalid_folders_of_tasks(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing"):
        find(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="no task"):
        find(tmp_path)
    make_arrays(tmp_path / "svhn.npz", 10, num_train=2000)
    make_arrays(tmp_path / "svhn_cropped.npz", 10)
    with pytest.raises(ValueError, match=r"svhn\.npz and .*svhn_cropped\.npz"):
        find(tmp_path)
    (tmp_path / "svhn_cropped.npz").unlink()
    make_arrays(tmp_path / "photos.npz", 1)
    with pytest.raises(ValueError, match=r"photos\.npz.*one class"):
        find(tmp_path)


def test_single_dataset_is_not_a_folder_of_tasks(tmp_path: Path) -> None:
    make_folder(tmp_path / "pets", 2)
    with pytest.raises(ValueError, match="single dataset"):
        find(tmp_path / "pets")


@pytest.mark.parametrize("name", ["foo@1", "a:b"])
def test_task_names_cannot_contain_separators(name: str, tmp_path: Path) -> None:
    make_arrays(tmp_path / f"{name}.npz", 3)
    with pytest.raises(ValueError, match=name):
        find(tmp_path)


def test_splits_of_a_sweep_are_opened_first(tmp_path: Path) -> None:
    make_vtab(tmp_path / "pets")
    for name in ("train800.txt", "val200.txt"):
        (tmp_path / "pets" / name).unlink()
    with pytest.warns(VitrineWarning):
        find(tmp_path)
    with pytest.raises(ValueError, match="train"):
        find(tmp_path, sweep=True)
