"""The plan of the demo: its steps, each with its recipe and the command that does the same.

Data and checkpoint are opened here, so that a mistake is found before anything is trained.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vitrine.core.files import make_folder
from vitrine.data.config import AugmentConfig, DataConfig
from vitrine.data.open_data import choose_test_split, find_data, open_train_data
from vitrine.data.source import Source
from vitrine.demo.config import DemoConfig
from vitrine.demo.matched_models import match_hybrid, match_resnet, match_vit
from vitrine.evaluation.predictor import require_single_labels
from vitrine.formats.load import load_checkpoint
from vitrine.models.config import ViTConfig
from vitrine.models.cost import compute_cost
from vitrine.recipe import Recipe, format_finetune_command, format_train_command, join_command, with_changes
from vitrine.recipes.finetune import FinetuneTask
from vitrine.recipes.registry import FINETUNE_RECIPES, RECIPES
from vitrine.run.folder import RunFolder
from vitrine.studies.runner import StudyRun

HELD_OUT = 0.2  # fraction to test on, of data without splits
MAX_IMAGES = 300  # training images of other data than digits, so that the demo takes minutes
IMAGE_SIZE = 56  # of the transfer to other data than digits
PHOTO_AUGMENT = AugmentConfig(crop="inception", crop_area=(0.35, 1.0), flip=True)
# Multiply-accumulates of the longest run, which takes two or three minutes on two CPU cores, and of those cores per second.
MAX_MACS, MIN_STEPS, MACS_PER_S = 6e12, 30, 25e9
WARMUP_FRACTION = 0.1
QUICK_PRETRAIN_STEPS, QUICK_STEPS = 700, 200

Family = Literal["vit", "resnet", "hybrid"]
FAMILIES: dict[Family, str] = {"vit": "ViT", "resnet": "ResNet", "hybrid": "hybrid"}
MATCHES = {"vit": match_vit, "resnet": match_resnet, "hybrid": match_hybrid}
Kind = Literal["pretrain", "transfer", "few-shot", "scratch", "inspect"]


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step of the demo: a training run, or a measurement of a trained model."""

    family: Family
    kind: Kind
    title: str
    command: str
    recipe: Recipe | None = None
    """None: nothing is trained."""

    @property
    def key(self) -> str:
        """Name of its folder and of its results."""
        return f"{self.family}-{self.kind}"


@dataclass(frozen=True)
class Plan:
    """Result of `plan_demo`: the steps, and the data they share."""

    config: DemoConfig
    steps: tuple[Step, ...]
    """In the order of the report, the inspection last."""
    checkpoint: str
    """The ViT that is transferred."""
    image_size: int
    """Resolution of the transfer."""
    data: DataConfig
    train: Source
    test: Source
    has_test: bool
    """True if the test images are a split, and not held out of the training images."""

    @property
    def runs(self) -> list[StudyRun]:
        """The training runs in the order in which they begin: pre-training first, because others wait for it."""
        trained = [step for step in self.steps if step.recipe is not None]
        return [self.build_run(step) for step in sorted(trained, key=lambda step: step.kind != "pretrain")]

    def build_run(self, step: Step) -> StudyRun:
        """Build the run of a step. It draws no page: the demo has one for all, and the step's command makes it later."""
        assert step.recipe is not None
        recipe = replace(step.recipe, report=replace(step.recipe.report, page=False))
        start = f"{step.family}-pretrain" if step.kind == "transfer" and self.config.model is None else None
        return StudyRun(
            label=step.title, recipe=recipe, folder=step.key, title=step.key, start=start, columns={"kind": step.kind}
        )

    @property
    def minutes(self) -> float:
        """Rough time of all runs on two CPU cores."""
        macs = 0.0
        for step in self.steps:
            if step.recipe is not None and step.recipe.total_steps is not None:
                num_seen = 3 * step.recipe.total_steps * step.recipe.loader.batch_size + len(self.test)
                macs += self.count_macs(step) * num_seen
        return macs / MACS_PER_S / 60

    def count_macs(self, step: Step) -> int:
        """Return the multiply-accumulates per image of a step's model; a transferred one costs as much as from scratch."""
        recipe = step.recipe if step.kind != "transfer" else self.find_step(step.family, "scratch").recipe
        assert recipe is not None
        return compute_cost(recipe.model.resolve(len(self.train.class_names))).macs

    def find_step(self, family: Family, kind: Kind) -> Step:
        """Return a step."""
        return next(step for step in self.steps if (step.family, step.kind) == (family, kind))


def plan_demo(config: DemoConfig) -> Plan:
    """Open data and checkpoint, check them, and plan all steps of the demo."""
    data, train, test = open_demo_data(config)
    vit = None if config.model is None else load_vit_config(config.model, len(train.class_names))
    make_folder(config.out)
    steps = plan_own_models(config, data) if vit is None else plan_checkpoint(config, vit, data, len(train))
    transfer = next(step.recipe for step in steps if step.kind == "transfer")
    assert transfer is not None
    image_size = transfer.model.image_size if vit is None else vit.image_size[0]
    assert transfer.model.checkpoint is not None
    assert image_size is not None
    steps.append(plan_inspection(config))
    return Plan(config, tuple(steps), transfer.model.checkpoint, image_size, data, train, test, has_test=data.held_out == 0)


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


def load_vit_config(model: str, num_classes: int) -> ViTConfig:
    """Return the config of the user's ViT with the classes of the data."""
    vit = load_checkpoint(model).model.config
    if type(vit) is not ViTConfig or vit.image_size[0] != vit.image_size[1]:
        height, width = vit.image_size
        kind = type(vit).__name__.removesuffix("Config")
        raise ValueError(f"{model} is a {kind} for {height} x {width} pixels; --model needs a ViT for square images.")
    return replace(vit, num_classes=num_classes)


def plan_own_models(config: DemoConfig, data: DataConfig) -> list[Step]:
    """Plan the demo's own models: each is pre-trained on glyphs, transferred, measured frozen, and trained from scratch."""
    steps = []
    for family in FAMILIES:
        pretraining = plan_pretraining(config, family)
        checkpoint = str(RunFolder(config.out / pretraining.key).model)
        name, default = "demo-transfer", FINETUNE_RECIPES["demo-transfer"]
        recipe = default.build(FinetuneTask(checkpoint, config.data, 0, num_classes=0))
        changed = change_data_run(recipe, config, data, choose_steps(config, recipe), choose_size(config))
        steps += [
            pretraining,
            build_transfer(config, family, name, recipe, changed),
            plan_few_shot(config, family, checkpoint, data),
            plan_scratch(config, family, data, changed.total_steps, choose_size(config)),
        ]
    return steps


def choose_size(config: DemoConfig) -> dict[str, Any]:
    """Return the resolution of the transfer as a change of the recipe's model; none on digits."""
    return {} if config.is_built_in else {"image_size": IMAGE_SIZE}


def choose_steps(config: DemoConfig, recipe: Recipe) -> int | None:
    """Return the steps of a run on the data with the demo's own models."""
    return config.steps or (QUICK_STEPS if config.quick else recipe.total_steps)


def plan_checkpoint(config: DemoConfig, vit: ViTConfig, data: DataConfig, num_images: int) -> list[Step]:
    """Plan the transfer of the user's ViT, and training from scratch of models that cost as much."""
    assert config.model is not None
    task = FinetuneTask(config.model, config.data, num_images, num_classes=vit.num_classes)
    recipe = FINETUNE_RECIPES["folder"].build(task)
    total_steps = choose_total_steps(config, recipe, vit, num_images)
    changed = change_data_run(recipe, config, data, total_steps, {"image_size": vit.image_size[0]})
    return [
        build_transfer(config, "vit", "folder", recipe, changed),
        plan_few_shot(config, "vit", config.model, data),
        *(plan_scratch(config, family, data, total_steps, vars(MATCHES[family](vit))) for family in FAMILIES),
    ]


def choose_total_steps(config: DemoConfig, recipe: Recipe, vit: ViTConfig, num_images: int) -> int:
    """Return the steps of the runs on the data: the recipe's, or fewer if the model is too large for a few minutes."""
    step_macs = 3 * compute_cost(vit).macs * recipe.loader.batch_size
    affordable = max(MIN_STEPS, round(MAX_MACS / step_macs))
    total_steps = min(affordable, recipe.compute_total_steps(num_images))
    return config.steps or (max(1, total_steps // 3) if config.quick else total_steps)


def plan_pretraining(config: DemoConfig, family: Family) -> Step:
    """Plan the pre-training of a model on glyphs."""
    name = f"demo-glyphs-{family}"
    default = RECIPES[name]()
    total_steps = config.pretrain_steps or (QUICK_PRETRAIN_STEPS if config.quick else default.total_steps)
    recipe = change_run(default, config, total_steps, {})
    command = format_train_command(name, default, recipe, config.out / f"{family}-pretrain")
    return Step(family=family, kind="pretrain", title=f"{FAMILIES[family]} on glyphs", command=command, recipe=recipe)


def build_transfer(config: DemoConfig, family: Family, name: str, default: Recipe, recipe: Recipe) -> Step:
    """Build the fine-tuning of a pre-trained model on the data."""
    command = format_finetune_command(name, default, recipe, config.out / f"{family}-transfer")
    title = f"pre-trained {FAMILIES[family]} on {name_data(config)}"
    return Step(family=family, kind="transfer", title=title, command=command, recipe=recipe)


def plan_few_shot(config: DemoConfig, family: Family, checkpoint: str, data: DataConfig) -> Step:
    """Plan a linear classifier on the frozen features of a pre-trained model."""
    command = join_command(
        *("vitrine", "few-shot", checkpoint, config.data, "--shots", "all"),
        *(["--subset", data.subset] if data.subset != "all" else []),
        *(["--held-out", data.held_out] if data.held_out else []),
    )
    return Step(family=family, kind="few-shot", title=f"few-shot on features of the {FAMILIES[family]}", command=command)


def plan_scratch(config: DemoConfig, family: Family, data: DataConfig, total_steps: int | None, model: dict[str, Any]) -> Step:
    """Plan training a model from scratch, on the same images for as many steps as the transfer."""
    name = f"demo-{family}"
    default = RECIPES[name]()
    recipe = change_data_run(default, config, data, total_steps, model)
    command = format_train_command(name, default, recipe, config.out / f"{family}-scratch")
    title = f"{FAMILIES[family]} from scratch on {name_data(config)}"
    return Step(family=family, kind="scratch", title=title, command=command, recipe=recipe)


def plan_inspection(config: DemoConfig) -> Step:
    """Plan the figures of the transferred ViT."""
    command = join_command(
        *("vitrine", "inspect", config.out / "vit-transfer" / "model", config.out / "images", "--out", config.out / "inspect"),
        *("--num-drawn", config.num_drawn, "--num-measured", config.num_measured),
    )
    return Step(family="vit", kind="inspect", title="figures of the transferred ViT", command=command)


def change_data_run(
    recipe: Recipe, config: DemoConfig, data: DataConfig, total_steps: int | None, model: dict[str, Any]
) -> Recipe:
    """Change a recipe to the demo's data and length; held-out images are evaluated once, at the end."""
    augment = RECIPES["demo-vit"]().augment if config.is_built_in else PHOTO_AUGMENT
    evaluation = {"num_times": 1 if data.held_out else 0}
    recipe = change_run(recipe, config, total_steps, model)
    return with_changes(recipe, data=vars(data), augment=augment, evaluation=evaluation)


def change_run(recipe: Recipe, config: DemoConfig, total_steps: int | None, model: dict[str, Any]) -> Recipe:
    """Change model, length, seed and device of a recipe."""
    assert total_steps is not None
    optim = {"warmup_steps": min(recipe.optim.warmup_steps, round(WARMUP_FRACTION * total_steps))}
    return with_changes(recipe, model=model, optim=optim, total_steps=total_steps, seed=config.seed, device=config.device)


def name_data(config: DemoConfig) -> str:
    return "handwritten digits" if config.is_built_in else Path(config.data).name or config.data
