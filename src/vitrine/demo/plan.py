"""Steps of the demo, models of equal cost, StepResult.

Networks to compare a ViT with: the same with fresh weights, and a ResNet and a hybrid of like cost. No torch here.
What the demo will do, step by step, each with the command that does the same; all that can be wrong is found here.
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
from vitrine.formats.load import load_checkpoint
from vitrine.models.config import ViTConfig
from vitrine.models.cost import compute_cost
from vitrine.models.settings import ModelSettings
from vitrine.recipe import Recipe, format_finetune_command, format_train_command, join_command, with_changes
from vitrine.recipes.finetune import FinetuneTask
from vitrine.recipes.registry import FINETUNE_RECIPES, RECIPES

SMALLEST_FACTOR, LARGEST_FACTOR = 12, 800  # in hundredths: the widths that are tried, from 8 channels at the root
NUM_GROUPS = 8  # not 32, which would leave the norms of few channels little to compare
HYBRID_SHARE = 0.75  # of the blocks, that stay behind a stem
SMALLEST_FOR_FOUR_STAGES = 64  # pixels; of less, a fourth stage would leave a single place
MOST_STAGES = 4


def match_vit(config: ViTConfig) -> ModelSettings:
    """The same network, to be trained from scratch."""
    return ModelSettings(
        name="ViT-Ti/16",
        patch_size=config.patch_size,
        depth=config.depth,
        norm_eps=say_unless_usual(config, "norm_eps"),
        **list_common(config),
    )


def match_resnet(config: ViTConfig) -> ModelSettings:
    """A ResNet of two units in a stage, as wide as the ViT's multiply-accumulates allow."""
    stages = (2, 2, 2, 2) if config.image_size[0] >= SMALLEST_FOR_FOUR_STAGES else (2, 2, 2)

    def build(factor: float) -> ModelSettings:
        return ModelSettings(
            name=f"R26x{factor:g}",
            image_size=config.image_size[0],
            num_channels=say_unless_usual(config, "num_channels"),
            stages=stages,
            num_groups=NUM_GROUPS,
        )

    return fit_width(build, config)


def match_hybrid(config: ViTConfig) -> ModelSettings:
    """Three quarters of the ViT's blocks, behind a ResNet that takes what the others cost and as large a step in pixels."""
    num_stages = min(MOST_STAGES, max(1, 1 + round(math.log2(config.patch_size / 4))))

    def build(factor: float) -> ModelSettings:
        return ModelSettings(
            name=f"R26x{factor:g}+ViT-Ti/16",
            stem_stages=(1,) * num_stages,
            stem_num_groups=NUM_GROUPS,
            patch_size=1,
            depth=max(1, round(HYBRID_SHARE * config.depth)),
            **list_common(config),
        )

    return fit_width(build, config)


def list_common(config: ViTConfig) -> dict[str, Any]:
    """What a hybrid shares with the ViT."""
    same = {name: getattr(config, name) for name in ("width", "num_heads", "mlp_dim", "pool", "gelu")}
    usual = {name: say_unless_usual(config, name) for name in ("num_channels", "position")}
    return {"image_size": config.image_size[0], **same, **usual}


def say_unless_usual(config: ViTConfig, name: str) -> Any:
    """A field, or None where it is as it would be anyway: commands are long enough."""
    usual = next(field.default for field in fields(config) if field.name == name)
    value = getattr(config, name)
    return None if value == usual else value


def fit_width(build: Callable[[float], ModelSettings], config: ViTConfig) -> ModelSettings:
    """The one whose cost is nearest, of widths in hundredths."""

    def count(hundredths: int) -> int:
        return compute_cost(build(hundredths / 100).resolve(config.num_classes)).macs

    wanted = compute_cost(config).macs
    factors = range(SMALLEST_FACTOR, LARGEST_FACTOR + 1)
    place = bisect_left(factors, wanted, key=count)
    nearest = min(factors[max(0, place - 1) : place + 1], key=lambda hundredths: abs(count(hundredths) - wanted))
    return build(nearest / 100)


HELD_OUT = 0.2  # of data that is not divided, to test on
MOST_IMAGES = 300  # to learn from, of anyone's data: the demo shows the way, and the whole of it may take a night
IMAGE_SIZE = 48  # of what is pre-trained here, on images that are larger than digits
PHOTOS = AugmentConfig(crop="inception", crop_area=(0.35, 1.0), padding=2, flip=True)
# Multiply-accumulates of the longest run, two or three minutes of two processor cores; and of how many in a second.
MOST_MACS, LEAST_STEPS, MACS_PER_S = 6e12, 30, 25e9
WARMUP_SHARE = 0.1


@dataclass(frozen=True)
class Step:
    key: str
    """Its folder, and what it is called in the results."""
    title: str
    command: str
    recipe: Recipe | None = None
    """What is trained; None: something is measured of what was."""


@dataclass(frozen=True)
class Plan:
    config: DemoConfig
    steps: tuple[Step, ...]
    checkpoint: str
    """What is transferred."""
    image_size: int
    """That it is transferred at."""
    data: DataConfig
    train: Source
    test: Source
    has_test: bool
    """Whether the images to test on are a split of their own, and not held out of the others."""

    @property
    def minutes(self) -> float:
        """All trainings and tests, roughly, on two processor cores."""
        macs = 0.0
        for step in self.steps:
            if step.recipe is not None and step.recipe.total_steps is not None:
                cost = self.count_macs(step.recipe)
                macs += cost * (3 * step.recipe.total_steps * step.recipe.loader.batch_size + len(self.test))
        return macs / MACS_PER_S / 60

    def count_macs(self, recipe: Recipe) -> int:
        if recipe.model.name is not None:
            return compute_cost(recipe.model.resolve(len(self.train.class_names))).macs
        scratch = next(step.recipe for step in self.steps if step.key == "scratch")
        assert scratch is not None
        return self.count_macs(scratch)


def plan_story(config: DemoConfig) -> Plan:
    """Opens the data and the checkpoint, so that a wrong path costs no training."""
    data, train, test = look_at_data(config)
    vit = look_at_model(config, len(train.class_names))
    make_folder(config.out)
    checkpoint = config.model or str(config.out / "pretrain" / "model")
    transfer = plan_transfer(config, checkpoint, vit, data, len(train))
    assert transfer.recipe is not None
    compared = plan_rivals(config, vit, data, transfer.recipe.total_steps)
    size = vit.image_size[0]
    sizes = ["--image-size", size] if config.model is None else []
    some = ["--subset", data.subset] if data.subset != "all" else []
    seen = ["--held-out", data.held_out] if data.held_out else []
    few_shot = join_command("vitrine", "few-shot", checkpoint, config.data, "--shots", "all", *some, *seen, *sizes)
    inspect = join_command(
        *("vitrine", "inspect", config.out / "transfer" / "model", config.out / "images", "--out", config.out / "inspect"),
        *("--num-drawn", config.num_drawn, "--num-measured", config.num_measured),
    )
    steps = (
        *plan_pretraining(config),
        transfer,
        Step("few-shot", "few-shot on frozen features", few_shot),
        *compared,
        Step("inspect", "a look inside the transferred ViT", inspect),
    )
    return Plan(config, steps, checkpoint, size, data, train, test, data.held_out == 0)


def look_at_data(config: DemoConfig) -> tuple[DataConfig, Source, Source]:
    """How it is opened, and the images to learn from and to test on."""
    found = find_data(config.data)
    whole = found.open_train()
    require_classes(whole, config.data)
    subset = config.subset or ("10/class" if config.is_built_in else choose_subset(whole))
    held_out = 0.0 if found.splits else HELD_OUT
    data = DataConfig(source=config.data, subset=subset, held_out=held_out, in_memory=config.is_built_in)
    train, test = open_train_data(data)
    return data, train, test or found.open(choose_test_split(found))


def require_classes(source: Source, name: str) -> None:
    if len(source.class_names) < 2:
        found = f"one class only, {source.class_names[0]}" if source.class_names else "no labels"
        raise ValueError(f"{name} has {found}, and two classes or more were needed: give images in folders by class.")
    if source.labels.has_several:
        raise ValueError(f"{name} has several labels for each image, and one was needed: give other data.")


def choose_subset(source: Source) -> str:
    """As many of each class as make a few hundred, if all classes have them."""
    if len(source) <= MOST_IMAGES:
        return "all"
    each = max(2, MOST_IMAGES // len(source.class_names))
    counts = np.bincount(source.labels.values, minlength=len(source.class_names))
    return f"{each}/class" if counts.min() >= each else str(min(len(source), max(MOST_IMAGES, 2 * len(source.class_names))))


def look_at_model(config: DemoConfig, num_classes: int) -> ViTConfig:
    """The ViT that the story is of, at the size that it is transferred at and with the classes of the data."""
    if config.model is None:
        size = None if config.is_built_in else IMAGE_SIZE
        found = replace(RECIPES["demo-vit"]().model, **({} if size is None else {"image_size": size})).resolve(num_classes)
    else:
        found = load_checkpoint(config.model).model.config
    if type(found) is not ViTConfig or found.image_size[0] != found.image_size[1]:
        height, width = found.image_size
        raise ValueError(
            f"{config.model} is a {type(found).__name__.removesuffix('Config')} for {height} x {width} pixels, and a ViT for "
            "square images was needed: give the checkpoint of one, or leave --model out."
        )
    return replace(found, num_classes=num_classes)


def plan_pretraining(config: DemoConfig) -> list[Step]:
    if config.model is not None:
        return []
    usual = RECIPES["demo-shapes"]()
    recipe = adapt(usual, config, config.pretrain_steps or usual.total_steps, {})
    out = config.out / "pretrain"
    return [Step("pretrain", "a small ViT on generated shapes", format_train_command("demo-shapes", usual, recipe, out), recipe)]


def plan_transfer(config: DemoConfig, checkpoint: str, vit: ViTConfig, data: DataConfig, num_images: int) -> Step:
    base = "demo-transfer" if config.model is None else "folder"
    found = FinetuneTask(checkpoint, config.data, num_images, num_classes=vit.num_classes)  # which rules ask of
    usual = FINETUNE_RECIPES[base].build(found)
    size = None if config.model is not None else vit.image_size[0]
    recipe = adapt_to_data(usual, config, data, count_steps(config, usual, vit, num_images), {"image_size": size})
    title = f"the pre-trained ViT to {name_data(config)}, at {vit.image_size[0]} pixels"
    out = config.out / "transfer"
    return Step("transfer", title, format_finetune_command(base, usual, recipe, out), recipe)


def count_steps(config: DemoConfig, usual: Recipe, vit: ViTConfig, num_images: int) -> int:
    """As the recipe has it, if that is minutes; fewer of a network that is large."""
    step_macs = 3 * compute_cost(vit).macs * usual.loader.batch_size
    affordable = max(LEAST_STEPS, round(MOST_MACS / step_macs))
    return config.steps or min(affordable, usual.compute_total_steps(num_images))


def plan_rivals(config: DemoConfig, vit: ViTConfig, data: DataConfig, total_steps: int | None) -> list[Step]:
    """Networks with fresh weights, on the same images for as many steps."""
    is_usual = config.model is None and config.is_built_in  # then the recipes have the networks already
    steps = []
    for key, base, match, title in (
        ("scratch", "demo-vit", match_vit, "the same ViT from scratch"),
        ("resnet", "demo-resnet", match_resnet, "a ResNet of like cost from scratch"),
        ("hybrid", "demo-hybrid", match_hybrid, "a hybrid of like cost from scratch"),
    ):
        usual = RECIPES[base]()
        model = usual.model if is_usual else match(vit)
        recipe = adapt_to_data(usual, config, data, total_steps, vars(model))
        steps.append(Step(key, title, format_train_command(base, usual, recipe, config.out / key), recipe))
    return steps


def adapt_to_data(
    usual: Recipe, config: DemoConfig, data: DataConfig, total_steps: int | None, model: dict[str, Any]
) -> Recipe:
    """The recipe on this data; what is held out of it is looked at once, at the end."""
    augment = RECIPES["demo-vit"]().augment if config.is_built_in else PHOTOS
    evaluation = {} if config.is_built_in else {"num_times": 1 if data.held_out else 0}
    recipe = adapt(usual, config, total_steps, model)
    return with_changes(recipe, data=vars(data), augment=augment, evaluation=evaluation)


def adapt(usual: Recipe, config: DemoConfig, total_steps: int | None, model: dict[str, Any]) -> Recipe:
    assert total_steps is not None
    warmup_steps = min(usual.optim.warmup_steps, round(WARMUP_SHARE * total_steps))
    return with_changes(
        usual,
        model=model,
        optim={"warmup_steps": warmup_steps},
        total_steps=total_steps,
        seed=config.seed,
        device=config.device,
    )


def name_data(config: DemoConfig) -> str:
    return "handwritten digits" if config.is_built_in else Path(config.data).name or config.data


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What a step came to."""

    key: str
    title: str
    command: str
    seconds: float
    """Of the computation itself, all attempts together."""
    accuracy: Estimate | None = None
    """First answers that are right, with the interval that as many test images leave; None: nothing was tested."""
    num_test_images: int | None = None
    num_parameters: int | None = None
    macs: int | None = None
    """Multiply-accumulates of one image."""
    num_images: int | None = None
    """Seen in training, or featurised."""
    exaflops: float | None = None
