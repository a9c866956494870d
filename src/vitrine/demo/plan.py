"""The plan of the demo: its steps, each with its recipe and the command that does the same, and models of equal cost.

Data and checkpoint are opened here, so that a mistake is found before anything is trained.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from vitrine.core.files import make_folder
from vitrine.data.config import AugmentConfig, DataConfig
from vitrine.data.open_data import choose_test_split, find_data, open_train_data
from vitrine.data.source import Source
from vitrine.demo.config import DemoConfig
from vitrine.evaluation.intervals import Estimate
from vitrine.evaluation.predictor import require_single_labels
from vitrine.formats.load import load_checkpoint
from vitrine.models.config import ViTConfig
from vitrine.models.cost import compute_cost
from vitrine.models.settings import ModelSettings
from vitrine.recipe import Recipe, format_finetune_command, format_train_command, join_command, with_changes
from vitrine.recipes.finetune import FinetuneTask
from vitrine.recipes.registry import FINETUNE_RECIPES, RECIPES

HELD_OUT = 0.2  # fraction to test on, of data without splits
MAX_IMAGES = 300  # training images of other data than digits, so that the demo takes minutes
IMAGE_SIZE = 48  # of the ViT that is pre-trained here, on other data than digits
PHOTO_AUGMENT = AugmentConfig(crop="inception", crop_area=(0.35, 1.0), flip=True)
# Multiply-accumulates of the longest run, which takes two or three minutes on two CPU cores, and of those cores per second.
MAX_MACS, MIN_STEPS, MACS_PER_S = 6e12, 30, 25e9
WARMUP_FRACTION = 0.1

MIN_WIDTH, MAX_WIDTH = 12, 800  # width factors that are tried, in hundredths; the least has 8 channels at the root
NUM_GROUPS = 8  # 32 groups would be too many for norms of few channels
HYBRID_DEPTH = 0.75  # fraction of the ViT's blocks that follow the hybrid's stem
MIN_SIDE_FOR_FOUR_STAGES = 64  # pixels; a fourth stage would reduce a smaller image to a single position
MAX_STEM_STAGES = 4


@dataclass(frozen=True)
class Step:
    """A step of the demo: a training run, or a measurement of a trained model."""

    key: str
    """Name of its folder and of its results."""
    title: str
    command: str
    recipe: Recipe | None = None
    """None: nothing is trained."""


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """Result of a step and what it cost."""

    key: str
    title: str
    command: str
    seconds: float
    """Computing time, over all attempts."""
    accuracy: Estimate | None = None
    """Top-1 on the test images, with its 95 % interval; None: nothing was tested."""
    num_test_images: int | None = None
    num_parameters: int | None = None
    macs: int | None = None
    """Multiply-accumulates per image."""
    num_images: int | None = None
    """Images seen in training, or whose features were extracted."""
    exaflops: float | None = None


@dataclass(frozen=True)
class Plan:
    """Result of `plan_demo`: the steps, and the data they share."""

    config: DemoConfig
    steps: tuple[Step, ...]
    checkpoint: str
    """The checkpoint that is transferred."""
    image_size: int
    """Resolution of the transfer."""
    data: DataConfig
    train: Source
    test: Source
    has_test: bool
    """True if the test images are a split, and not held out of the training images."""

    @property
    def minutes(self) -> float:
        """Rough time of all steps on two CPU cores."""
        macs = 0.0
        for step in self.steps:
            if step.recipe is not None and step.recipe.total_steps is not None:
                num_seen = 3 * step.recipe.total_steps * step.recipe.loader.batch_size + len(self.test)
                macs += self.count_macs(step.recipe) * num_seen
        return macs / MACS_PER_S / 60

    def count_macs(self, recipe: Recipe) -> int:
        """Return the multiply-accumulates per image of a recipe's model; the transferred one costs as much as from scratch."""
        if recipe.model.name is not None:
            return compute_cost(recipe.model.resolve(len(self.train.class_names))).macs
        scratch = next(step.recipe for step in self.steps if step.key == "scratch")
        assert scratch is not None
        return self.count_macs(scratch)


def plan_demo(config: DemoConfig) -> Plan:
    """Open data and checkpoint, check them, and plan all steps of the demo."""
    data, train, test = open_demo_data(config)
    vit = load_vit_config(config, len(train.class_names))
    make_folder(config.out)
    checkpoint = config.model or str(config.out / "pretrain" / "model")
    transfer = plan_transfer(config, checkpoint, vit, data, len(train))
    assert transfer.recipe is not None
    few_shot = join_command(
        *("vitrine", "few-shot", checkpoint, config.data, "--shots", "all"),
        *(["--subset", data.subset] if data.subset != "all" else []),
        *(["--held-out", data.held_out] if data.held_out else []),
        *(["--image-size", vit.image_size[0]] if config.model is None else []),
    )
    inspect = join_command(
        *("vitrine", "inspect", config.out / "transfer" / "model", config.out / "images", "--out", config.out / "inspect"),
        *("--num-drawn", config.num_drawn, "--num-measured", config.num_measured),
    )
    steps = (
        *plan_pretraining(config),
        transfer,
        Step("few-shot", "few-shot on features of the pre-trained ViT", few_shot),
        *plan_rivals(config, vit, data, transfer.recipe.total_steps),
        Step("inspect", "figures of the transferred ViT", inspect),
    )
    return Plan(config, steps, checkpoint, vit.image_size[0], data, train, test, has_test=data.held_out == 0)


def open_demo_data(config: DemoConfig) -> tuple[DataConfig, Source, Source]:
    """Open the data; return how to open it again, its training images, and its test images."""
    dataset = find_data(config.data)
    everything = dataset.open_train()
    require_single_labels(everything, config.data)
    subset = config.subset or ("10/class" if config.is_built_in else choose_subset(everything))
    held_out = 0.0 if dataset.splits else HELD_OUT
    data = DataConfig(source=config.data, subset=subset, held_out=held_out, in_memory=config.is_built_in)
    train, test = open_train_data(data, dataset)
    return data, train, test or dataset.open(choose_test_split(dataset))


def choose_subset(source: Source) -> str:
    """Choose about MAX_IMAGES training images, equally many of each class if every class has enough."""
    if len(source) <= MAX_IMAGES:
        return "all"
    num_classes = len(source.class_names)
    per_class = max(2, MAX_IMAGES // num_classes)
    if np.bincount(source.labels.values, minlength=num_classes).min() >= per_class:
        return f"{per_class}/class"
    return str(min(len(source), max(MAX_IMAGES, 2 * num_classes)))


def load_vit_config(config: DemoConfig, num_classes: int) -> ViTConfig:
    """Return the config of the ViT that is transferred, at its resolution and with the classes of the data."""
    if config.model is None:
        settings = RECIPES["demo-vit"]().model
        vit = (settings if config.is_built_in else replace(settings, image_size=IMAGE_SIZE)).resolve(num_classes)
    else:
        vit = load_checkpoint(config.model).model.config
    if type(vit) is not ViTConfig or vit.image_size[0] != vit.image_size[1]:
        height, width = vit.image_size
        kind = type(vit).__name__.removesuffix("Config")
        raise ValueError(f"{config.model} is a {kind} for {height} x {width} pixels; --model needs a ViT for square images.")
    return replace(vit, num_classes=num_classes)


def plan_pretraining(config: DemoConfig) -> list[Step]:
    """Plan the pre-training on shapes, unless there is a checkpoint."""
    if config.model is not None:
        return []
    default = RECIPES["demo-shapes"]()
    recipe = change_run(default, config, config.pretrain_steps or default.total_steps, {})
    command = format_train_command("demo-shapes", default, recipe, config.out / "pretrain")
    return [Step("pretrain", "small ViT on generated shapes", command, recipe)]


def plan_transfer(config: DemoConfig, checkpoint: str, vit: ViTConfig, data: DataConfig, num_images: int) -> Step:
    """Plan the fine-tuning of the pre-trained ViT on the data."""
    name = "demo-transfer" if config.model is None else "folder"
    default = FINETUNE_RECIPES[name].build(FinetuneTask(checkpoint, config.data, num_images, num_classes=vit.num_classes))
    image_size = None if config.model is not None else vit.image_size[0]
    total_steps = choose_total_steps(config, default, vit, num_images)
    recipe = change_data_run(default, config, data, total_steps, {"image_size": image_size})
    command = format_finetune_command(name, default, recipe, config.out / "transfer")
    return Step("transfer", f"pre-trained ViT on {name_data(config)} at {vit.image_size[0]} pixels", command, recipe)


def choose_total_steps(config: DemoConfig, recipe: Recipe, vit: ViTConfig, num_images: int) -> int:
    """Return the steps of the runs on the data: the recipe's, or fewer if the model is too large for a few minutes."""
    step_macs = 3 * compute_cost(vit).macs * recipe.loader.batch_size
    affordable = max(MIN_STEPS, round(MAX_MACS / step_macs))
    return config.steps or min(affordable, recipe.compute_total_steps(num_images))


def plan_rivals(config: DemoConfig, vit: ViTConfig, data: DataConfig, total_steps: int | None) -> list[Step]:
    """Plan training from scratch of ViT, ResNet and hybrid, on the same images for as many steps as the transfer."""
    has_recipes = config.model is None and config.is_built_in  # the demo's recipes have matched models already
    steps = []
    for key, name, match, title in (
        ("scratch", "demo-vit", match_vit, "same ViT from scratch"),
        ("resnet", "demo-resnet", match_resnet, "ResNet of similar cost from scratch"),
        ("hybrid", "demo-hybrid", match_hybrid, "hybrid of similar cost from scratch"),
    ):
        default = RECIPES[name]()
        model = default.model if has_recipes else match(vit)
        recipe = change_data_run(default, config, data, total_steps, vars(model))
        steps.append(Step(key, title, format_train_command(name, default, recipe, config.out / key), recipe))
    return steps


def change_data_run(
    recipe: Recipe, config: DemoConfig, data: DataConfig, total_steps: int | None, model: dict[str, Any]
) -> Recipe:
    """Change a recipe to the demo's data and length; held-out images are evaluated once, at the end."""
    augment = RECIPES["demo-vit"]().augment if config.is_built_in else PHOTO_AUGMENT
    evaluation = {} if config.is_built_in else {"num_times": 1 if data.held_out else 0}
    recipe = change_run(recipe, config, total_steps, model)
    return with_changes(recipe, data=vars(data), augment=augment, evaluation=evaluation)


def change_run(recipe: Recipe, config: DemoConfig, total_steps: int | None, model: dict[str, Any]) -> Recipe:
    """Change model, length, seed and device of a recipe."""
    assert total_steps is not None
    optim = {"warmup_steps": min(recipe.optim.warmup_steps, round(WARMUP_FRACTION * total_steps))}
    return with_changes(recipe, model=model, optim=optim, total_steps=total_steps, seed=config.seed, device=config.device)


def name_data(config: DemoConfig) -> str:
    return "handwritten digits" if config.is_built_in else Path(config.data).name or config.data


def match_vit(config: ViTConfig) -> ModelSettings:
    """Return the settings of the same ViT, to train it from scratch."""
    norm_eps, shared = none_if_default(config, "norm_eps"), list_vit_settings(config)
    return ModelSettings(name="ViT-Ti/16", patch_size=config.patch_size, depth=config.depth, norm_eps=norm_eps, **shared)


def match_resnet(config: ViTConfig) -> ModelSettings:
    """Return the settings of a ResNet with two units per stage, as wide as the ViT's cost allows."""
    stages = (2, 2, 2, 2) if config.image_size[0] >= MIN_SIDE_FOR_FOUR_STAGES else (2, 2, 2)
    channels = none_if_default(config, "num_channels")
    shared: dict[str, Any] = {"image_size": config.image_size[0], "num_channels": channels, "stages": stages}
    return choose_width(lambda factor: ModelSettings(name=f"R26x{factor:g}", num_groups=NUM_GROUPS, **shared), config)


def match_hybrid(config: ViTConfig) -> ModelSettings:
    """Return the settings of a hybrid: three quarters of the ViT's blocks, and a ResNet stem that costs as much as the rest."""
    # A stem of n stages divides the resolution by 4, 8, 16 or 32: as close to the patch size as possible.
    num_stages = min(MAX_STEM_STAGES, max(1, 1 + round(math.log2(config.patch_size / 4))))
    stem: dict[str, Any] = {"stem_stages": (1,) * num_stages, "stem_num_groups": NUM_GROUPS, "patch_size": 1}
    shared = {**stem, "depth": max(1, round(HYBRID_DEPTH * config.depth)), **list_vit_settings(config)}
    return choose_width(lambda factor: ModelSettings(name=f"R26x{factor:g}+ViT-Ti/16", **shared), config)


def list_vit_settings(config: ViTConfig) -> dict[str, Any]:
    """Return the settings that a ViT and its hybrid share."""
    same = {name: getattr(config, name) for name in ("width", "num_heads", "mlp_dim", "pool", "gelu")}
    optional = {name: none_if_default(config, name) for name in ("num_channels", "position")}
    return {"image_size": config.image_size[0], **same, **optional}


def none_if_default(config: ViTConfig, name: str) -> Any:
    """Return a field, or None if it has its default value, which keeps commands short."""
    default = next(field.default for field in fields(config) if field.name == name)
    value = getattr(config, name)
    return None if value == default else value


def choose_width(build: Callable[[float], ModelSettings], config: ViTConfig) -> ModelSettings:
    """Return the model whose width factor, in hundredths, brings its cost closest to that of a ViT."""

    def count_macs(hundredths: int) -> int:
        return compute_cost(build(hundredths / 100).resolve(config.num_classes)).macs

    macs = compute_cost(config).macs
    factors = range(MIN_WIDTH, MAX_WIDTH + 1)
    index = bisect_left(factors, macs, key=count_macs)
    nearest = min(factors[max(0, index - 1) : index + 1], key=lambda hundredths: abs(count_macs(hundredths) - macs))
    return build(nearest / 100)
