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
    MAX_IMAGES,
    MIN_STEPS,
    Plan,
    choose_subset,
    choose_total_steps,
    match_hybrid,
    match_resnet,
    match_vit,
    plan_demo,
)
from vitrine.models.config import HybridConfig, ResNetConfig, ViTConfig
from vitrine.models.cost import compute_cost
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
    assert {"transfer", "scratch", "resnet", "hybrid"} <= {step.key for step in trained}
    for step in trained:
        assert read_command(step.command) == (step.recipe, Path("out") / step.key)


def test_own_checkpoint_is_not_pretrained(plan: Plan) -> None:
    keys = [step.key for step in plan.steps]
    assert ("pretrain" in keys) == (plan.config.model is None)
    assert keys[-6:] == ["transfer", "few-shot", "scratch", "resnet", "hybrid", "inspect"]
    assert plan.checkpoint == (plan.config.model or str(Path("out/pretrain/model")))


def test_all_runs_have_the_same_images_and_length(plan: Plan) -> None:
    runs = [step.recipe for step in plan.steps if step.recipe is not None and step.key != "pretrain"]
    for field in ("data", "augment", "total_steps", "seed"):
        assert len({getattr(recipe, field) for recipe in runs}) == 1
    assert not runs[0].augment.flip or not plan.config.is_built_in  # a mirrored digit is not a digit
    assert not {plan.train.name(index) for index in range(len(plan.train))} & {
        plan.test.name(index) for index in range(len(plan.test))
    }


def test_compared_models_have_similar_cost(plan: Plan) -> None:
    macs = {
        step.key: compute_cost(step.recipe.model.resolve(10)).macs
        for step in plan.steps
        if step.key in ("scratch", "resnet", "hybrid") and step.recipe is not None
    }
    assert max(macs.values()) <= 1.25 * macs["scratch"]
    assert min(macs.values()) >= 0.75 * macs["scratch"]


def test_digits_are_transferred_to_at_a_higher_resolution() -> None:
    plan = plan_demo(DemoConfig(out=Path("out")))
    assert plan.image_size > (RECIPES["demo-shapes"]().model.image_size or 0)
    assert (len(plan.train), len(plan.test), plan.has_test) == (100, 360, True)
    few_shot = next(step.command for step in plan.steps if step.key == "few-shot")
    assert f"--subset {RECIPES['demo-vit']().data.subset}" in few_shot  # the command gives the accuracy of the report
    names = {"pretrain": "demo-shapes", "scratch": "demo-vit", "resnet": "demo-resnet", "hybrid": "demo-hybrid"}
    assert all(step.recipe == RECIPES[names[step.key]]() for step in plan.steps if step.key in names)


def test_data_without_splits_is_tested_on_a_held_out_part() -> None:
    plan = plan_demo(DemoConfig(out=Path("out"), data="undivided", model="tiny"))
    assert (len(plan.train), len(plan.test), plan.has_test) == (19, 5, False)
    assert plan.image_size == SIDE
    assert "--held-out 0.2" in next(step.command for step in plan.steps if step.key == "few-shot")
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


VITS = {
    "demo": {"name": "ViT-Ti/4", "image_size": (48, 48), "width": 64, "depth": 4, "num_heads": 4, "mlp_dim": 128},
    "tiny": {"name": "ViT-Ti/16"},
    "base": {"name": "ViT-B/32"},
    "huge": {"name": "ViT-H/14"},
    "large images": {"name": "ViT-S/16", "image_size": (384, 384)},
    "grey": {"name": "ViT-Ti/4", "image_size": (16, 16), "num_channels": 1, "pool": "mean", "position": "sincos-2d"},
}


@pytest.fixture(params=VITS)
def vit(request: pytest.FixtureRequest) -> ViTConfig:
    config = parse_model_name(**VITS[request.param], num_classes=7)
    assert isinstance(config, ViTConfig)
    return config


@pytest.mark.parametrize(("match", "kind"), [(match_resnet, ResNetConfig), (match_hybrid, HybridConfig)])
def test_matched_models_cost_the_same_within_a_quarter(vit: ViTConfig, match: object, kind: type) -> None:
    config = match(vit).resolve(7)
    assert type(config) is kind
    assert (config.image_size, config.num_channels) == (vit.image_size, vit.num_channels)
    assert compute_cost(config).macs == pytest.approx(compute_cost(vit).macs, rel=0.25)


def test_matched_vit_is_the_same_vit(vit: ViTConfig) -> None:
    assert match_vit(vit).resolve(7) == vit


def test_hybrid_has_as_many_tokens_if_the_patch_size_is_a_power_of_two() -> None:
    vit = parse_model_name("ViT-Ti/16", num_classes=7)
    hybrid = match_hybrid(vit).resolve(7)
    assert hybrid.grid == vit.grid == (14, 14)
    assert (hybrid.depth, vit.depth) == (9, 12)
