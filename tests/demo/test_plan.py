"""Steps of the demo use the same data and length, their commands give the same recipes, and compared models cost the same."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from tests.demo.stage import CLASSES, SIDE, make_checkpoint, make_images
from vitrine.cli import main
from vitrine.data.config import LoaderConfig
from vitrine.data.source import ArraySource, Labels
from vitrine.demo.config import DemoConfig
from vitrine.demo.plan import (
    FAMILIES,
    MAX_IMAGES,
    MIN_STEPS,
    QUICK_PRETRAIN_STEPS,
    QUICK_STEPS,
    Plan,
    choose_subset,
    choose_total_steps,
    plan_demo,
)
from vitrine.models.config import ViTConfig
from vitrine.models.registry import parse_model_name
from vitrine.recipe import Recipe
from vitrine.recipes.registry import RECIPES
from vitrine.studies import sweeps


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("work")
    make_checkpoint(folder / "tiny")
    make_images(folder / "images")
    make_images(folder / "undivided", splits=("",))
    return folder


@pytest.fixture(autouse=True)
def working_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


CONFIGS: dict[str, dict[str, Any]] = {
    "digits": {},
    "quick": {"quick": True, "jobs": 2},
    "short": {"steps": 3, "pretrain_steps": 4, "seed": 5, "device": "cpu", "subset": "2/class"},
    "own data": {"data": "images"},
    "own data, undivided": {"data": "undivided"},
    "own checkpoint": {"model": "tiny"},
    "both": {"data": "images", "model": "tiny"},
    "both, undivided": {"data": "undivided", "model": "tiny"},
}


@pytest.fixture(scope="module", params=CONFIGS)
def plan(request: pytest.FixtureRequest, folder: Path) -> Plan:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return plan_demo(DemoConfig(out=Path("out"), **CONFIGS[request.param]))


class Recorded(Exception):
    """Ends a command with the recipe and folder of the run that it would start."""


def read_command(command: str) -> tuple[Recipe, Path]:
    """Return the recipe that `vitrine train` or `vitrine finetune` would run, and its folder."""
    program, *words = shlex.split(command)
    assert program == "vitrine"

    def record(recipe: Recipe, out: Path, **arguments: object) -> NoReturn:
        raise Recorded(recipe, out)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweeps, "train", record)
        with pytest.raises(Recorded) as recorded:
            main(words)
    recipe, out = recorded.value.args
    return recipe, out


def test_command_of_each_step_gives_its_recipe(plan: Plan) -> None:
    trained = [step for step in plan.steps if step.recipe is not None]
    for step in trained:
        assert read_command(step.command) == (step.recipe, Path("out") / step.key)


def test_own_models_are_pretrained_and_a_checkpoint_is_not(plan: Plan) -> None:
    keys = [step.key for step in plan.steps]
    kinds = ("pretrain", "transfer", "few-shot", "scratch")
    own = [f"{family}-{kind}" for family in FAMILIES for kind in kinds]
    given = ["vit-transfer", "vit-few-shot", "vit-scratch", "resnet-scratch", "hybrid-scratch"]
    assert keys == [*(own if plan.config.model is None else given), "vit-inspect"]
    assert plan.checkpoint == (plan.config.model or str(Path("out/vit-pretrain/model")))


def test_a_transfer_waits_for_its_own_pretraining(plan: Plan) -> None:
    runs = plan.runs
    starts = {run.folder: run.start for run in runs if run.start is not None}
    families = FAMILIES if plan.config.model is None else ()
    assert starts == {f"{family}-transfer": f"{family}-pretrain" for family in families}
    assert [run.columns["kind"] for run in runs][: len(families)] == ["pretrain"] * len(families)
    assert not any(run.recipe.report.page for run in runs)


def test_all_runs_have_the_same_images_and_length(plan: Plan) -> None:
    runs = [step.recipe for step in plan.steps if step.recipe is not None and step.kind != "pretrain"]
    for field in ("data", "augment", "total_steps", "seed"):
        assert len({getattr(recipe, field) for recipe in runs}) == 1
    assert not runs[0].augment.flip or not plan.config.is_built_in  # a mirrored digit is not a digit
    assert not {plan.train.name(index) for index in range(len(plan.train))} & {
        plan.test.name(index) for index in range(len(plan.test))
    }


def test_compared_models_have_similar_cost(plan: Plan) -> None:
    macs = {step.family: plan.count_macs(step) for step in plan.steps if step.kind == "scratch"}
    assert max(macs.values()) <= 1.25 * macs["vit"]
    assert min(macs.values()) >= 0.75 * macs["vit"]


def test_digits_are_transferred_to_at_a_higher_resolution() -> None:
    plan = plan_demo(DemoConfig(out=Path("out")))
    assert plan.image_size > (RECIPES["demo-glyphs-vit"]().model.image_size or 0)
    assert (len(plan.train), len(plan.test), plan.has_test) == (100, 360, True)
    few_shot = [step.command for step in plan.steps if step.kind == "few-shot"]
    subset = f"--subset {RECIPES['demo-vit']().data.subset}"
    assert all(subset in command for command in few_shot)  # the command gives the accuracy of the report
    names = {"pretrain": "demo-glyphs-", "scratch": "demo-"}
    for step in plan.steps:
        if step.kind in names:
            assert step.recipe == RECIPES[f"{names[step.kind]}{step.family}"]()


def test_quick_means_fewer_steps() -> None:
    plan = plan_demo(DemoConfig(out=Path("out"), quick=True))
    lengths = {step.kind: step.recipe.total_steps for step in plan.steps if step.recipe is not None}
    assert lengths == {"pretrain": QUICK_PRETRAIN_STEPS, "transfer": QUICK_STEPS, "scratch": QUICK_STEPS}
    assert (RECIPES["demo-glyphs-vit"]().total_steps or 0) / 3 > QUICK_PRETRAIN_STEPS
    given = DemoConfig(out=Path("out"), data="images", model="tiny", quick=True)
    whole, quick = (plan_demo(config).find_step("vit", "transfer").recipe for config in (replace(given, quick=False), given))
    assert (whole.total_steps or 0) > 2 * (quick.total_steps or 0)


def test_data_without_splits_is_tested_on_a_held_out_part() -> None:
    plan = plan_demo(DemoConfig(out=Path("out"), data="undivided", model="tiny"))
    assert (len(plan.train), len(plan.test), plan.has_test) == (19, 5, False)
    assert plan.image_size == SIDE
    assert "--held-out 0.2" in next(step.command for step in plan.steps if step.kind == "few-shot")
    assert plan.train.class_names == CLASSES


def test_large_models_are_trained_for_fewer_steps() -> None:
    config, recipe = (
        DemoConfig(out=Path("out"), data="images", model="tiny"),
        Recipe(epochs=7, loader=LoaderConfig(batch_size=32)),
    )
    tiny, huge = (parse_model_name(name) for name in ("ViT-Ti/32", "ViT-H/14"))
    assert isinstance(tiny, ViTConfig)
    assert isinstance(huge, ViTConfig)
    assert choose_total_steps(config, recipe, tiny, num_images=300) == round(7 * 300 / 32)
    assert choose_total_steps(config, recipe, huge, num_images=300) == MIN_STEPS
    assert choose_total_steps(replace(config, steps=5), recipe, huge, num_images=300) == 5


def test_estimated_time(plan: Plan) -> None:
    assert 0 < plan.minutes < 5


@pytest.mark.parametrize(
    ("counts", "subset"),
    [
        ([100, 200], "all"),
        ([1000, 1000], f"{MAX_IMAGES // 2}/class"),
        ([1000, 10], str(MAX_IMAGES)),
        ([3] * 400, "2/class"),
        ([1, *([3] * 400)], "802"),
    ],
)
def test_a_few_hundred_training_images_are_chosen(counts: list[int], subset: str) -> None:
    labels = np.repeat(np.arange(len(counts)), counts)
    pixels = np.zeros((len(labels), 1, 1, 3), dtype=np.uint8)
    names = tuple(map(str, range(len(counts))))
    assert choose_subset(ArraySource(pixels, Labels.one_each(labels), names, "images")) == subset


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"data": "nowhere"}, "nowhere"),
        ({"model": "nowhere"}, "nowhere"),
        ({"data": "images/train/dark"}, "one class|no labels"),
        ({"model": "resnet"}, "ResNet for 16 x 16 pixels"),
    ],
)
def test_mistakes_are_found_before_anything_is_written(folder: Path, config: dict[str, Any], message: str) -> None:
    if config.get("model") == "resnet":
        make_checkpoint(folder / "resnet", "R26x1")
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        plan_demo(DemoConfig(out=Path("never"), **config))
    assert not Path("never").exists()
