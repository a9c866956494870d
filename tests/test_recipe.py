"""Recipes: checks of their fields, their JSON, differences that forbid a resume, and the command lines that make them."""

import json
import re
import subprocess
import sys
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.test_package import BLOCK_TORCH
from vitrine.commands.train import Options
from vitrine.core.arguments import parse_options
from vitrine.core.console import VitrineWarning
from vitrine.data.config import AugmentConfig, DataConfig, LoaderConfig, MixupConfig
from vitrine.evaluation.config import EvaluationConfig
from vitrine.field_effects import find_unused
from vitrine.models.settings import ModelSettings
from vitrine.objectives.config import MaskedPatchesConfig, SupervisedConfig
from vitrine.recipe import (
    RESUMABLE_FIELDS,
    Recipe,
    format_finetune_command,
    format_option,
    format_train_command,
    list_differences,
    list_fields,
    list_options,
    parse_recipe,
    with_changes,
)
from vitrine.recipes.registry import RECIPES
from vitrine.training.config import MachineConfig, OptimConfig, ReportConfig, SavingConfig

# No field has its default value, so that any field lost on the way to a file is noticed.
UNUSUAL = Recipe(
    model=ModelSettings(
        name="R50+ViT-B/16",
        preprocess="imagenet",
        image_size=64,
        num_channels=1,
        patch_size=2,
        width=24,
        depth=3,
        num_heads=2,
        mlp_dim=48,
        gelu="erf",
        norm_eps=1e-5,
        pool="mean",
        hidden_head=True,
        head_bias=-10.0,
        num_registers=2,
        position="learned-2d",
        position_insertion="every-layer",
        layer_scale=1e-4,
        dropout_rate=0.1,
        stochastic_depth_rate=0.2,
        stem_stages=(1, 2),
        stem_width_factor=0.5,
        stem_num_groups=4,
    ),
    data=DataConfig(
        source="digits",
        split="test",
        subset="5/class",
        subset_seed=3,
        exclude=Path("bad/names.txt"),
        held_out=0.25,
        bad_images="skip",
        in_memory=True,
        changed="accept",
    ),
    loader=LoaderConfig(batch_size=24, last="drop", num_workers=3, prefetch=5, stuck_after_s=9.0),
    augment=AugmentConfig(
        crop="random",
        crop_area=(0.1, 0.9),
        crop_ratio=(0.5, 1.5),
        resize=80,
        padding=2,
        interpolation="bicubic",
        flip=False,
        rand_augment_ops=2,
        rand_augment_magnitude=7.5,
        erase_rate=0.3,
        erase_fill="grey",
    ),
    mixing=MixupConfig(mixup=0.2, cutmix=0.5),
    supervised=SupervisedConfig(label_smoothing=0.1),
    optim=OptimConfig(
        kind="sgd",
        learning_rate=0.3,
        weight_decay=0.2,
        decay_mask="all",
        beta1=0.8,
        beta2=0.99,
        eps=1e-7,
        momentum=0.5,
        warmup_steps=4,
        decay="piecewise",
        final_rate=1e-4,
        decay_at=(0.5,),
        rsqrt_timescale=7,
        cooldown_steps=2,
        max_grad_norm=None,
        layer_decay=0.75,
        frozen_blocks=1,
    ),
    epochs=2.5,
    total_steps=40,
    polyak_factor=0.99,
    evaluation=EvaluationConfig(num_times=3, batch_size=8, resize=72, patience=2, test=False, few_shot=5),
    machine=MachineConfig(
        precision="bfloat16", compile=True, gradient_checkpointing=True, accumulation_steps=4, sharding="fsdp"
    ),
    saving=SavingConfig(every_minutes=1.5, every_steps=7, keep_last=3),
    report=ReportConfig(every_steps=3, tensorboard=True, page=False),
    seed=-5,
    device="cpu",
)
# Fields of other models and objectives than this one's.
DEFAULTS = {
    "model.checkpoint",
    "model.readout",
    "model.readout_layers",
    "model.stages",
    "model.width_factor",
    "model.num_groups",
    "supervised.loss",
    "head_init",
    "objective",
    "masked_patches.target",
    "masked_patches.corrupted_rate",
    "masked_patches.masked_rate",
    "masked_patches.replaced_rate",
}
DEFAULT = Recipe(epochs=1)


def as_written_and_read(recipe: Recipe) -> Recipe:
    return parse_recipe(json.loads(json.dumps(recipe.to_json(), allow_nan=False)), "recipe.json")


def test_the_unusual_recipe_has_no_default_values() -> None:
    usual = dict(list_fields(DEFAULT.to_json()))
    assert {name for name, value in list_fields(UNUSUAL.to_json()) if usual[name] == value} == DEFAULTS


def test_every_field_is_restored_from_json() -> None:
    assert as_written_and_read(UNUSUAL) == UNUSUAL
    assert as_written_and_read(DEFAULT) == DEFAULT
    for model in (
        ModelSettings(name="R50x1", stages=(1, 2), width_factor=0.5, num_groups=4),
        ModelSettings(checkpoint="here", readout_layers=(1, 3), readout="both"),
    ):
        recipe = replace(DEFAULT, model=model)
        assert as_written_and_read(recipe) == recipe
    masked = MaskedPatchesConfig(target="pixels", corrupted_rate=0.15, masked_rate=0.7, replaced_rate=0.2)
    recipe = replace(DEFAULT, objective="masked-patches", masked_patches=masked)
    assert as_written_and_read(recipe) == recipe


def test_missing_fields_of_older_recipes_get_their_defaults() -> None:
    content = DEFAULT.to_json()
    del content["report"], content["optim"]["layer_decay"]
    assert parse_recipe(content, "recipe.json") == DEFAULT


def list_leaves(config: Any, prefix: str = "") -> set[str]:
    names: set[str] = set()
    for field in fields(config):
        value = getattr(config, field.name)
        names |= list_leaves(value, f"{prefix}{field.name}.") if is_dataclass(value) else {f"{prefix}{field.name}"}
    return names


def test_fields_have_the_names_of_the_command_line() -> None:
    assert {name for name, _ in list_fields(UNUSUAL.to_json())} == list_leaves(UNUSUAL)


def read_or_complain(content: object) -> Recipe | str:
    try:
        return parse_recipe(content, "recipe.json")
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("name", sorted(list_leaves(UNUSUAL) - DEFAULTS))
def test_a_differing_field_is_named_unless_a_run_may_be_resumed_with_it(name: str) -> None:
    """One field at a time gets its default value; where that makes no valid recipe, the error names the field."""
    *groups, leaf = name.split(".")
    content, other = UNUSUAL.to_json(), DEFAULT.to_json()
    place, usual = content, other
    for group in groups:
        place, usual = place[group], usual[group]
    before, place[leaf] = place[leaf], usual[leaf]
    changed = read_or_complain(content)
    if isinstance(changed, str):
        assert leaf in changed or name == "model.name"
        return
    is_free = any(name == free or name.startswith(f"{free}.") for free in RESUMABLE_FIELDS)
    has_effect = name not in find_unused(UNUSUAL)
    expected = [] if is_free or not has_effect else [f"{name} was {before!r} and is {usual[leaf]!r}"]
    assert list_differences(UNUSUAL, changed) == expected


def test_a_run_may_be_resumed_with_other_values_of_these_fields_only() -> None:
    free = {
        name for name in list_leaves(UNUSUAL) if any(name == free or name.startswith(f"{free}.") for free in RESUMABLE_FIELDS)
    }
    assert free == {
        "device",
        "loader.num_workers",
        "data.bad_images",
        "data.changed",
        "loader.prefetch",
        "loader.stuck_after_s",
        "evaluation.batch_size",
        "machine.accumulation_steps",
        "machine.compile",
        "machine.gradient_checkpointing",
        "machine.precision",
        "machine.sharding",
        "report.every_steps",
        "report.page",
        "report.tensorboard",
        "saving.every_minutes",
        "saving.every_steps",
        "saving.keep_last",
    }


def test_equal_numbers_of_other_types_do_not_differ() -> None:
    assert list_differences(replace(DEFAULT, epochs=3), as_written_and_read(replace(DEFAULT, epochs=3.0))) == []


def test_every_field_that_differs_is_listed() -> None:
    assert list_differences(DEFAULT, with_changes(DEFAULT, seed=1, optim={"learning_rate": 0.5}, epochs=2)) == [
        "optim.learning_rate was 0.001 and is 0.5",
        "epochs was 1 and is 2",
        "seed was 0 and is 1",
    ]


@pytest.mark.parametrize(
    ("epochs", "num_images", "batch_size", "steps"),
    [
        (1, 1000, 10, 100),
        (3, 1437, 64, 67),  # 67.36
        (90, 1_281_167, 1024, 112_603),  # 112602.6
        (7, 303_000_000, 4096, 517_822),
        (0.5, 100, 10, 5),
        (1, 3, 256, 1),  # fewer images than a batch: still a step
        (0.001, 10, 10, 1),
    ],
)
def test_epochs_become_steps(epochs: float, num_images: int, batch_size: int, steps: int) -> None:
    recipe = Recipe(epochs=epochs, loader=LoaderConfig(batch_size=batch_size))
    assert recipe.compute_total_steps(num_images) == steps


def test_total_steps_take_precedence_over_epochs() -> None:
    assert Recipe(epochs=3, total_steps=7).compute_total_steps(10_000) == 7


def test_a_warm_up_of_the_base_is_shortened_to_a_tenth() -> None:
    base = Recipe(epochs=9, optim=OptimConfig(warmup_steps=500, cooldown_steps=30, decay="constant"))
    with pytest.warns(VitrineWarning, match=r"warmup_steps=500 to 20, .*cooldown_steps=30 to 20"):
        changed = with_changes(base, total_steps=200)
    assert changed == replace(base, total_steps=200, optim=replace(base.optim, warmup_steps=20, cooldown_steps=20))
    assert with_changes(base, total_steps=531).optim == base.optim  # fits: not a word


def test_a_warm_up_that_was_set_is_not_shortened() -> None:
    base = Recipe(epochs=9, optim=OptimConfig(warmup_steps=500))
    with pytest.raises(ValueError, match=r"warmup_steps=300 .*total_steps=200"):
        with_changes(base, total_steps=200, optim={"warmup_steps": 300})
    with pytest.raises(ValueError, match=r"warmup_steps=100.*cooldown_steps=100.*total_steps=200"):
        with_changes(base, total_steps=200, optim={"warmup_steps": 100, "cooldown_steps": 100, "decay": "constant"})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "epochs and total_steps"),
        ({"epochs": 0}, "epochs=0 must be above 0."),
        ({"epochs": -1.5}, "epochs=-1.5 must be above 0."),
        ({"epochs": float("inf")}, "epochs=inf must be a number."),
        ({"epochs": "3"}, "epochs='3' must be a number."),
        ({"total_steps": 0}, "total_steps=0 must be at least 1."),
        ({"total_steps": 2.0}, "total_steps=2.0 must be a whole number."),
        ({"epochs": 1, "seed": 1.0}, "seed=1.0 must be a whole number."),
        ({"epochs": 1, "seed": None}, "seed=None must be a whole number."),
        ({"epochs": 1, "polyak_factor": 1.0}, "polyak_factor=1.0"),
        ({"epochs": 1, "polyak_factor": 0.0}, "polyak_factor=0.0"),
        ({"epochs": 1, "head_init": "random"}, "head_init='random' must be one of zero, ridge, discriminant, keep."),
        ({"epochs": 1, "head_init": "ridge"}, "head_init='ridge'"),
        ({"epochs": 1, "head_init": "discriminant"}, "head_init='discriminant'"),
        (
            {"epochs": 1, "machine": MachineConfig(accumulation_steps=3)},
            "accumulation_steps=3",
        ),
        (
            {"epochs": 1, "loader": LoaderConfig(batch_size=3), "mixing": MixupConfig(mixup=0.2)},
            "batch_size=3",
        ),
        (
            {
                "epochs": 1,
                "loader": LoaderConfig(batch_size=6),
                "mixing": MixupConfig(cutmix=1.0),
                "machine": MachineConfig(accumulation_steps=2),
            },
            "batch_size=6",
        ),
    ],
)
def test_wrong_settings_are_rejected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Recipe(**settings)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "Recipe"),
        (None, "Recipe"),
        ({}, "epochs and total_steps are both None"),
        ({"epochs": 1, "epoch": 2}, "Recipe has no field 'epoch'."),
        ({"epochs": 1, "optim": {"rate": 0.1}}, "OptimConfig has no field 'rate'."),
        ({"epochs": 1, "optim": None}, "OptimConfig must be an object, not None."),
        ({"epochs": 1, "optim": [1]}, "OptimConfig must be an object, not [1]."),
        ({"epochs": [1]}, "epochs=(1,) must be a number."),
        ({"epochs": {"number": 1}}, "epochs={'number': 1} must be a number."),
        ({"epochs": True}, "epochs=True must be a number."),
        ({"epochs": 1, "model": {}}, "model.checkpoint"),
        ({"epochs": 1, "model": {"name": "ViT-Ti/16", "image_size": [8, 8]}}, "image_size=(8, 8) must be a whole number."),
        ({"epochs": 1, "optim": {"decay_at": "0.3"}}, "decay_at"),
        ({"epochs": 1, "optim": {"decay_at": ["x"]}}, ""),
        ({"epochs": 1, "augment": {"crop_area": [0.5]}}, "crop_area=(0.5,)"),
        ({"epochs": 1, "data": {"exclude": 3}}, "exclude=3"),
        ({"epochs": 1, "data": {"subset": 5}}, "subset=5"),
    ],
)
def test_json_that_is_not_a_recipe_is_rejected(content: object, message: str) -> None:
    with pytest.raises(ValueError, match=rf"^old\.json .*{re.escape(message)}") as error:
        parse_recipe(content, "old.json")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "name"),
    [({"device": 3}, "device"), ({"data": {"source": 3}}, "source"), ({"model": {"checkpoint": 3}}, "checkpoint")],
)
def test_a_number_in_place_of_text_is_rejected(content: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=rf"^old\.json .*{name}=3"):
        parse_recipe({"epochs": 1, **content}, "old.json")


def test_changes_go_into_their_groups_and_leave_the_rest() -> None:
    changed = with_changes(DEFAULT, optim={"learning_rate": 0.5, "beta1": 0.1}, seed=3, mixing=MixupConfig(mixup=0.2))
    assert (changed.optim.learning_rate, changed.optim.beta1, changed.seed, changed.mixing.mixup) == (0.5, 0.1, 3, 0.2)
    assert replace(changed, optim=DEFAULT.optim, seed=0, mixing=MixupConfig()) == DEFAULT
    with pytest.raises(ValueError, match="learning_rate=-1 must be above 0"):
        with_changes(DEFAULT, optim={"learning_rate": -1})


def test_recipes_are_frozen_and_named() -> None:
    with pytest.raises(FrozenInstanceError):
        DEFAULT.seed = 3  # pyright: ignore
    with pytest.raises(TypeError):
        Recipe(ModelSettings(name="ViT-Ti/16"))


def test_default_recipes_are_equal() -> None:
    assert Recipe(epochs=1) == DEFAULT
    assert Recipe(epochs=1).model == ModelSettings(name="ViT-Ti/16")


def test_recipes_need_no_torch() -> None:
    code = f"{BLOCK_TORCH}\nfrom vitrine.recipe import *; print(parse_recipe(Recipe(epochs=3).to_json(), 'x').epochs)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "3\n"), result.stderr


CHANGES: list[dict[str, Any]] = [
    {},
    {"model": {"stages": (1, 2), "width_factor": 0.25}},
    {"augment": {"flip": True}, "data": {"in_memory": False, "source": "a folder", "subset": "3/class"}},
    {"total_steps": None, "epochs": 2.5},
    {"optim": {"learning_rate": 1e-05, "decay": "piecewise", "decay_at": (0.5,)}, "seed": 3, "device": "cpu"},
]


@pytest.mark.parametrize("changes", CHANGES)
def test_options_make_the_recipe(changes: dict[str, Any]) -> None:
    usual = RECIPES["demo-resnet"]()
    recipe = with_changes(usual, **changes)
    defaults = Options(out=Path("out"), rates=(), recipe=usual)
    words = list_options(usual, recipe)
    assert parse_options("train demo-resnet", Options, words, defaults).recipe == recipe
    assert (words == []) == (changes == {})


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("augment.flip", False, ["--augment.no-flip"]),
        ("augment.flip", True, ["--augment.flip"]),
        ("model.stem_stages", [2, 3], ["--model.stem-stages", "2", "3"]),
        ("model.width", None, ["--model.width", "None"]),
        ("model.hidden_head", False, ["--model.hidden-head", "False"]),
        ("data.source", "my photos", ["--data.source", "my photos"]),
    ],
)
def test_fields_are_formatted_as_options(name: str, value: object, words: list[str]) -> None:
    assert format_option(name, value) == words


def test_commands_are_quoted_for_a_shell() -> None:
    usual = Recipe(epochs=1)
    recipe = with_changes(usual, data={"source": "my photos"}, seed=2)
    command = format_train_command("shapes", usual, recipe, Path("a b"))
    assert command == "vitrine train shapes --data.source 'my photos' --seed 2 --out 'a b'"
    transfer = with_changes(recipe, model=ModelSettings(checkpoint="m"))
    assert (
        format_finetune_command("folder", transfer, transfer, Path("out"))
        == "vitrine finetune m 'my photos' --recipe folder --out out"
    )
