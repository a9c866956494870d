"""The protocol against table 4 and section 4 of the paper's facts, and whatever departs from it by name."""

from typing import Any

import pytest

from vitrine.data.vtab_tasks import TASKS, find_task
from vitrine.recipe import Recipe, with_changes
from vitrine.studies.config import VtabConfig
from vitrine.studies.vtab_protocol import (
    Setting,
    apply_setting,
    build_protocol,
    build_task_recipe,
    check_recipe,
    list_departures,
    list_settings,
)
from vitrine.studies.vtab_survey import FoundTask


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
