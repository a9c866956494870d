"""The table of fields that have an effect only with others: what the user set is refused, what a recipe brought is dropped."""

import json
import re
import shlex
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.test_ledger import COMMANDS
from vitrine.cli import main
from vitrine.commands.train import Options, check_options
from vitrine.core.arguments import parse_options
from vitrine.core.console import VitrineWarning
from vitrine.data.config import AugmentConfig, DataConfig, LoaderConfig, MixupConfig
from vitrine.data.preprocessing import build_inception_preprocessing
from vitrine.field_effects import EFFECTS, drop_unused, find_unused, read_default, resolve_unused
from vitrine.formats.checkpoint import Checkpoint
from vitrine.models.config import ViTConfig
from vitrine.models.registry import build_meta_model
from vitrine.models.settings import ModelSettings
from vitrine.objectives.config import MaskedPatchesConfig, SupervisedConfig
from vitrine.recipe import Recipe, format_train_command, list_differences, parse_recipe, with_changes
from vitrine.recipes.finetune import FinetuneTask
from vitrine.recipes.registry import FINETUNE_RECIPES, RECIPES
from vitrine.run.build import build_objective
from vitrine.run.run import run_recipe
from vitrine.studies.sweeps import train
from vitrine.training.config import OptimConfig

CHECKPOINT = ModelSettings(checkpoint="somewhere")
VIT_RECIPES = [name for name, build in RECIPES.items() if type(build().model.resolve(2)) is ViTConfig]

# A field with a value that has no effect, and what gives it one.
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("optim.final_rate", {"optim": OptimConfig(final_rate=0.5)}, {"optim": OptimConfig(final_rate=1e-4, decay="linear")}),
    ("optim.decay_at", {"optim": OptimConfig(decay_at=(0.5,))}, {"optim": OptimConfig(decay_at=(0.5,), decay="piecewise")}),
    (
        "optim.rsqrt_timescale",
        {"optim": OptimConfig(rsqrt_timescale=5, decay="linear")},
        {"optim": OptimConfig(rsqrt_timescale=5, decay="rsqrt")},
    ),
    ("optim.momentum", {"optim": OptimConfig(momentum=0.5)}, {"optim": OptimConfig(momentum=0.5, kind="sgd")}),
    ("optim.beta1", {"optim": OptimConfig(beta1=0.5, kind="sgd")}, {"optim": OptimConfig(beta1=0.5)}),
    ("optim.beta2", {"optim": OptimConfig(beta2=0.5, kind="sgd")}, {"optim": OptimConfig(beta2=0.5)}),
    ("optim.eps", {"optim": OptimConfig(eps=1e-4, kind="sgd")}, {"optim": OptimConfig(eps=1e-4)}),
    ("optim.decay_mask", {"optim": OptimConfig(decay_mask="all", weight_decay=0)}, {"optim": OptimConfig(decay_mask="all")}),
    (
        "optim.layer_decay",
        {"optim": OptimConfig(layer_decay=0.5, frozen_blocks=-1)},
        {"optim": OptimConfig(layer_decay=0.5, frozen_blocks=1)},
    ),
    (
        "augment.crop_area",
        {"augment": AugmentConfig(crop="pad", crop_area=(0.5, 1.0))},
        {"augment": AugmentConfig(crop_area=(0.5, 1.0))},
    ),
    (
        "augment.crop_ratio",
        {"augment": AugmentConfig(crop="none", crop_ratio=(1.0, 1.0))},
        {"augment": AugmentConfig(crop_ratio=(1.0, 1.0))},
    ),
    ("augment.resize", {"augment": AugmentConfig(resize=64)}, {"augment": AugmentConfig(crop="random", resize=64)}),
    ("augment.padding", {"augment": AugmentConfig(padding=1)}, {"augment": AugmentConfig(crop="pad", padding=1)}),
    (
        "augment.interpolation",
        {"augment": AugmentConfig(crop="none", interpolation="bicubic")},
        {"augment": AugmentConfig(interpolation="bicubic")},
    ),
    (
        "augment.rand_augment_magnitude",
        {"augment": AugmentConfig(rand_augment_magnitude=5.0)},
        {"augment": AugmentConfig(rand_augment_magnitude=5.0, rand_augment_ops=1)},
    ),
    (
        "augment.erase_fill",
        {"augment": AugmentConfig(erase_fill="grey")},
        {"augment": AugmentConfig(erase_fill="grey", erase_rate=0.1)},
    ),
    ("data.subset_seed", {"data": DataConfig(subset_seed=1)}, {"data": DataConfig(subset_seed=1, held_out=0.1)}),
    (
        "loader.stuck_after_s",
        {"loader": LoaderConfig(stuck_after_s=3.0, num_workers=0)},
        {"loader": LoaderConfig(stuck_after_s=3.0)},
    ),
    ("loader.prefetch", {"loader": LoaderConfig(prefetch=3, num_workers=0)}, {"loader": LoaderConfig(prefetch=3)}),
    (
        "model.head_bias",
        {"model": replace(CHECKPOINT, head_bias=-1.0), "head_init": "ridge"},
        {"model": replace(CHECKPOINT, head_bias=-1.0)},
    ),
    (
        "model.readout_layers",
        {"model": replace(CHECKPOINT, readout_layers=(11,)), "head_init": "keep"},
        {"model": replace(CHECKPOINT, readout_layers=(11,))},
    ),
    (
        "model.readout",
        {"model": replace(CHECKPOINT, readout="mean"), "head_init": "keep"},
        {"model": replace(CHECKPOINT, readout="mean")},
    ),
    (
        "model.head_bias",
        {"model": ModelSettings(name="ViT-Ti/16", head_bias=-1.0), "objective": "masked-patches"},
        {"model": ModelSettings(name="ViT-Ti/16", head_bias=-1.0)},
    ),
    (
        "model.hidden_head",
        {"model": ModelSettings(name="ViT-Ti/16", hidden_head=True), "objective": "masked-patches"},
        {"model": ModelSettings(name="ViT-Ti/16", hidden_head=True)},
    ),
    ("mixing.mixup", {"mixing": MixupConfig(mixup=0.2), "objective": "masked-patches"}, {"mixing": MixupConfig(mixup=0.2)}),
    ("mixing.cutmix", {"mixing": MixupConfig(cutmix=1.0), "objective": "masked-patches"}, {"mixing": MixupConfig(cutmix=1.0)}),
    (
        "supervised.loss",
        {"supervised": SupervisedConfig(loss="sigmoid"), "objective": "masked-patches"},
        {"supervised": SupervisedConfig(loss="sigmoid")},
    ),
    (
        "supervised.label_smoothing",
        {"supervised": SupervisedConfig(label_smoothing=0.1), "objective": "masked-patches"},
        {"supervised": SupervisedConfig(label_smoothing=0.1)},
    ),
    (
        "head_init",
        {"model": CHECKPOINT, "head_init": "ridge", "objective": "masked-patches"},
        {"model": CHECKPOINT, "head_init": "ridge"},
    ),
    *(
        (
            f"masked_patches.{name}",
            {"masked_patches": MaskedPatchesConfig(**{name: value})},
            {"masked_patches": MaskedPatchesConfig(**{name: value}), "objective": "masked-patches"},
        )
        for name, value in {"target": "pixels", "corrupted_rate": 0.15, "masked_rate": 0.7, "replaced_rate": 0.2}.items()
    ),
]


@pytest.mark.parametrize(("name", "unused", "used"), CASES, ids=lambda value: value if isinstance(value, str) else "")
def test_a_field_without_an_effect_is_refused(name: str, unused: dict[str, Any], used: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"^{name}="):
        resolve_unused(Recipe(epochs=1, **unused))
    recipe = Recipe(epochs=1, **used)
    assert resolve_unused(recipe) == recipe


def test_every_field_of_the_table_has_a_case() -> None:
    names = {name for effect in EFFECTS for name in effect.fields}
    assert names <= {name for name, _, _ in CASES} | {"mixing", "supervised", "masked_patches"}


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_bring_nothing_without_an_effect(name: str) -> None:
    recipe = RECIPES[name]()
    assert resolve_unused(recipe) == recipe
    assert drop_unused(recipe) == recipe


@pytest.mark.parametrize("name", FINETUNE_RECIPES)
@pytest.mark.parametrize("num_images", [100, 30_000, 600_000])
def test_fine_tuning_recipes_bring_nothing_without_an_effect(name: str, num_images: int) -> None:
    recipe = FINETUNE_RECIPES[name].build(FinetuneTask("model", "data", num_images, num_classes=2))
    assert resolve_unused(recipe) == recipe


def test_what_a_recipe_brings_along_is_dropped_with_one_notice() -> None:
    recipe = FINETUNE_RECIPES["hyperrule"].build(FinetuneTask("model", "data", 100, num_classes=2))
    with pytest.warns(VitrineWarning, match=r"augment\.resize=160.*optim\.decay_at") as notices:
        changed = with_changes(recipe, augment={"crop": "inception"}, optim={"decay": "cosine"})
    assert len(notices) == 1
    assert (changed.augment.crop, changed.augment.resize, changed.optim.decay_at) == ("inception", None, (0.3, 0.6, 0.9))
    with pytest.raises(ValueError, match=r"augment\.resize=448"):
        with_changes(recipe, augment={"crop": "inception", "resize": 448})


def test_the_default_is_never_refused() -> None:
    recipe = with_changes(RECIPES["digits"](), augment={"crop": "none", "padding": 4})
    assert recipe.augment == AugmentConfig(crop="none", flip=False)


def test_of_two_lengths_the_one_that_was_given_counts() -> None:
    assert with_changes(RECIPES["cifar10-vit"](), epochs=3).total_steps is None
    changed = with_changes(RECIPES["digits"](), total_steps=70)
    assert changed.compute_total_steps(10_000) == 70
    with pytest.raises(ValueError, match=r"epochs=3 .*total_steps=70"):
        with_changes(RECIPES["digits"](), epochs=3, total_steps=70)


def parse(name: str, *words: str) -> Recipe:
    """Return the recipe that `vitrine train` makes of a name and options."""
    defaults = Options(out=Path("out"), rates=(), recipe=RECIPES[name]())
    return check_options(parse_options(f"train {name}", Options, list(words), defaults), defaults)


@pytest.mark.filterwarnings("ignore:Dropped settings")
@pytest.mark.parametrize("name", VIT_RECIPES)
def test_any_vit_recipe_can_predict_masked_patches(name: str) -> None:
    recipe = parse(name, "--objective", "masked-patches")
    assert (recipe.objective, recipe.mixing, recipe.supervised) == ("masked-patches", MixupConfig(), SupervisedConfig())
    assert recipe.model.head_bias is None
    assert recipe.model.hidden_head is None
    config = recipe.model.resolve(0)
    preprocessing = build_inception_preprocessing(config.image_size, config.num_channels)
    with torch.device("meta"):
        start = Checkpoint(build_meta_model(config), preprocessing, None, {})
        objective = build_objective(recipe, start)
    assert objective.metric_names == ("accuracy",)


def test_recipes_whose_labels_are_dropped_say_so() -> None:
    assert len(VIT_RECIPES) == 26
    with pytest.warns(VitrineWarning, match=r"supervised\.loss='sigmoid'") as notices:
        parse("jft-vit-b16", "--objective", "masked-patches")
    assert len(notices) == 1
    with pytest.warns(VitrineWarning, match=r"mixing\.mixup=0\.2"):
        parse("imagenet-vit-s16", "--objective", "masked-patches")


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--objective", "masked-patches", "--model.head-bias", "-10"], "head_bias"),
        (["--objective", "masked-patches", "--mixing.mixup", "0.2"], "mixup"),
        (["--optim.momentum", "0.5"], "momentum"),
        (["--augment.crop-area", "0.5", "1"], "crop_area"),
        (["--optim.kind", "sgd", "--optim.beta1", "0.5"], "beta1"),
    ],
)
def test_options_without_an_effect_end_with_status_2(words: list[str], name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["train", "digits", *words, "--out", "never-made"])
    assert stop.value.code == 2
    assert name in capsys.readouterr().err
    assert not Path("never-made").exists()


@pytest.mark.filterwarnings("ignore:Dropped settings")
@pytest.mark.parametrize("command", [each for each in COMMANDS if re.match(r"vitrine train [a-z0-9-]+ --", each)])
def test_commands_of_the_ledger_are_accepted(command: str) -> None:
    _, _, name, *words = shlex.split(command.replace("DIR", "somewhere"))
    if words[0] not in ("--select-rate", "--seeds"):
        assert parse(name, *words) is not None


def test_new_runs_in_python_are_refused_too(tmp_path: Path) -> None:
    recipe = replace(RECIPES["digits"](), optim=OptimConfig(momentum=0.5))
    for start in (run_recipe, train):
        with pytest.raises(ValueError, match="momentum"):
            start(recipe, tmp_path / "run")
    with pytest.raises(ValueError, match="momentum"):
        train("digits", tmp_path / "run", optim={"momentum": 0.5})
    assert not (tmp_path / "run").exists()


def test_stored_recipes_may_hold_fields_without_an_effect() -> None:
    recipe = replace(RECIPES["digits"](), optim=OptimConfig(momentum=0.5), augment=AugmentConfig(resize=99))
    read = parse_recipe(json.loads(json.dumps(recipe.to_json())), "recipe.json")
    assert read == recipe
    assert list_differences(read, drop_unused(read)) == []
    assert list_differences(read, replace(read, seed=1)) == ["seed was 0 and is 1"]


def test_commands_leave_out_fields_without_an_effect() -> None:
    base = RECIPES["digits"]()
    recipe = drop_unused(replace(base, augment=AugmentConfig(crop="none", flip=False, padding=1)))
    assert format_train_command("digits", base, recipe, Path("out")) == "vitrine train digits --augment.crop none --out out"


def test_defaults_are_those_of_the_dataclasses() -> None:
    recipe = RECIPES["digits"]()
    assert read_default(recipe, "optim.decay_at") == OptimConfig().decay_at
    assert read_default(recipe, "head_init") == "zero"
    assert {name: read_default(recipe, name) for name in find_unused(recipe)} == {
        name: attrgetter(name)(drop_unused(recipe)) for name in find_unused(recipe)
    }
