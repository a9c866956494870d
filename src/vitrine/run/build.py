"""What a run starts with: its data, its initial model and its objective."""

import math
import os
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from vitrine.core.console import join_names, name_setting, progress_bar, warn_user
from vitrine.core.runtime import Runtime, explain_out_of_memory, require_memory, seed_generators
from vitrine.data.config import DataConfig
from vitrine.data.dataset_format import normalise_split
from vitrine.data.loader import Loader, build_eval_loader
from vitrine.data.open_data import DatasetHandle, find_data, open_train_data
from vitrine.data.preprocessing import Preprocessing, build_imagenet_preprocessing, build_inception_preprocessing
from vitrine.data.scan import reject_many_bad_images
from vitrine.data.source import Source
from vitrine.data.sources.vtab import WHOLE
from vitrine.data.subsets import select_subset
from vitrine.data.wrappers import load_into_memory
from vitrine.engines.engine import TorchEngine
from vitrine.evaluation.features import extract_features
from vitrine.evaluation.linear_heads import fit_discriminant_head, fit_ridge_head
from vitrine.evaluation.topk import evaluating
from vitrine.formats.checkpoint import Checkpoint
from vitrine.formats.config import Overrides
from vitrine.formats.load import load_checkpoint
from vitrine.models.config import ModelConfig
from vitrine.models.cost import compute_cost
from vitrine.models.model import Model
from vitrine.models.registry import build_meta_model, build_model
from vitrine.objectives.config import OBJECTIVES
from vitrine.objectives.objective import Objective, load_objective_class
from vitrine.recipe import Recipe
from vitrine.run.folder import RunFolder
from vitrine.training.state import select_own_weights

INITIALISATION = -1  # in place of a step, in the seed of everything drawn before the first step
HEAD_FITS = {"ridge": fit_ridge_head, "discriminant": fit_discriminant_head}
MAX_FITTED_IMAGES = 20_000  # more images change the solution little and cost a pass over all of them


@dataclass(frozen=True)
class RunData:
    """Images that a run trains, validates and tests on."""

    train: Source
    val: Source | None
    """Images evaluated during the run, which choose the best weights."""
    val_name: str
    """held_out or val."""
    test: Source | None
    """The test split. Without one, as on ImageNet, the val split, unless the weights were chosen on it."""

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.train.class_names


def open_run_data(recipe: Recipe, dataset: DatasetHandle | None = None) -> RunData:
    """Open the images that a recipe trains, validates and tests on, and check them; `dataset` is its data, if found already."""
    config, evaluation, spec = recipe.data, recipe.evaluation, OBJECTIVES[recipe.objective]
    dataset = find_data(config.source) if dataset is None else dataset
    train, held_out = open_train_data(config, dataset)
    load_objective_class(recipe.objective).check_data(train, getattr(recipe, spec.config_field), config.source)
    val, val_name = held_out, "held_out"
    if val is None:
        val, val_name = open_other_split(dataset, "val", config), "val"
    check_evaluation(val, train, recipe)
    test_split = "test" if "test" in dataset.splits else "val"
    # Weights chosen on some images must not be tested on the same images.
    chosen_on = val_name if evaluation.patience is not None else None
    is_tested = evaluation.test and test_split != chosen_on and spec.needs_labels
    test = open_other_split(dataset, test_split, config) if is_tested else None
    for source, split in ((val, val_name), (test, test_split)):
        if source is not None and source.class_names != train.class_names:
            counts = f"{len(source.class_names)} and {len(train.class_names)}, or in another order"
            raise ValueError(
                f"{config.source}: the classes of {split} and train differ ({counts}): use the same in all splits."
            )
    if spec.needs_labels:
        warn_about_few_images(train, config.source)
    return RunData(train, val, val_name, test)


def warn_about_few_images(train: Source, source: str) -> None:
    """Warn, before anything is trained, about classes with a single training image or none."""
    if train.labels.has_several:
        return
    counts = np.bincount(train.labels.values, minlength=len(train.class_names))
    few = [f"{train.class_names[label]} ({counts[label]})" for label in np.flatnonzero(counts < 2)]
    if few:
        needed = "one to learn from and one to measure on, and more are better"
        warn_user(f"{source} has too few training images of {join_names(few)}: each class needs at least 2, {needed}.")


def check_evaluation(val: Source | None, train: Source, recipe: Recipe) -> None:
    """Raise ValueError, before anything is trained, if an evaluation that the recipe asks for is impossible."""
    shots = recipe.evaluation.few_shot
    if val is None and (recipe.evaluation.patience is not None or shots > 0):
        needs = "evaluation.patience and evaluation.few_shot need validation images"
        raise ValueError(f"{needs}, and {recipe.data.source} has none: set e.g. data.held_out=0.1, or add a split val.")
    if shots == 0:
        return
    if len(train.class_names) < 2:
        raise ValueError(f"evaluation.few_shot={shots} needs labels of at least two classes: leave it out.")
    if train.labels.has_several:
        raise ValueError(f"evaluation.few_shot={shots} needs images with one label each: leave it out.")
    counts = np.bincount(train.labels.values, minlength=len(train.class_names))
    if counts.min() < shots:
        name = train.class_names[int(counts.argmin())]
        raise ValueError(f"evaluation.few_shot={shots} exceeds the {counts.min()} images of class {name}: lower it.")


def open_other_split(dataset: DatasetHandle, split: str, config: DataConfig) -> Source | None:
    """Open a split if it exists and the run does not train on it."""
    train_split = None if config.split is None else normalise_split(config.split)
    is_part_of_train = split == "val" and config.split == WHOLE  # VTAB-1k's 1000 images include its 200 of val
    if split not in dataset.splits or split in (config.split, train_split) or is_part_of_train:
        return None
    source = dataset.open(split)
    bad_images = "error" if config.bad_images == "error" else "skip"
    return load_into_memory(source, bad_images) if config.in_memory else source


def build_evaluation_loader(source: Source, preprocessing: Preprocessing, recipe: Recipe, runtime: Runtime) -> Loader:
    """Build the loader of an evaluation during the run; with several ranks, of this rank's part of the images.

    Training ends if many images are bad (skip-few); an evaluation at its end counts the ones that can be read.
    """
    return build_eval_loader(
        source,
        preprocessing,
        batch_size=recipe.evaluation.batch_size,
        num_workers=recipe.loader.num_workers,
        bad_images="error" if recipe.data.bad_images == "error" else "skip",
        rank=runtime.rank,
        world_size=runtime.world_size,
        pin_memory=runtime.device.type == "cuda",
    )


def explain_evaluation_memory(recipe: Recipe, device: torch.device) -> AbstractContextManager[None]:
    """Return a context that turns a lack of memory while a run evaluates into an error with advice."""
    batch_size = recipe.evaluation.batch_size
    advice = f"lower {name_setting('evaluation.batch_size', batch_size)}"
    return explain_out_of_memory(f"A batch of {batch_size} images in evaluation", device, advice)


def build_initial_model(recipe: Recipe, class_names: tuple[str, ...], checkpoint: Checkpoint | None = None) -> Checkpoint:
    """Build the model before its first step, with a head if there are class names; `checkpoint` is the recipe's, if loaded."""
    seed_generators(recipe.seed, INITIALISATION)
    if recipe.model.checkpoint is None:
        start = build_fresh_model(recipe, class_names)
    else:
        start = load_initial_model(recipe, class_names, checkpoint)
    resize, side = recipe.evaluation.resize, min(start.preprocessing.crop)
    if resize is None:
        return start
    if resize < side:
        raise ValueError(f"evaluation.resize={resize} must be at least the model's image size, {side}.")
    return replace(start, preprocessing=replace(start.preprocessing, resize=resize))


def check_memory(config: ModelConfig, recipe: Recipe, runtime: Runtime) -> None:
    """Raise ValueError if a step needs more than twice the memory of the device, by a closed-form lower bound.

    Weights, gradients, averages and saved activations are counted; frozen parts and a compiler may need less than that.
    """
    optim, machine, num_ranks = recipe.optim, recipe.machine, runtime.world_size
    num_states = {"adamw": 2, "sgd": int(optim.momentum > 0)}[optim.kind]
    num_images = recipe.loader.batch_size // (num_ranks * machine.accumulation_steps)
    cost = compute_cost(replace(config, gradient_checkpointing=machine.gradient_checkpointing))
    is_frozen = optim.frozen_blocks != 0
    needed = cost.compute_step_bytes(
        0 if is_frozen else num_images,
        1 if is_frozen else 2 + num_states + int(recipe.polyak_factor is not None),
        num_ranks if machine.sharding == "fsdp" else 1,
        is_half=machine.compile or machine.precision != "float32",
    )
    if runtime.device.type == "cpu":  # its memory is shared by the ranks, and holds the whole batch, a byte for each value
        batch_bytes = recipe.loader.batch_size // num_ranks * math.prod(config.image_size) * config.num_channels
        needed = (needed + batch_bytes) * int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    step = f"A training step of {cost.num_parameters:,} parameters with {num_images:,} images at once"
    advice = "use a smaller model or image size, lower loader.batch_size, or raise machine.accumulation_steps"
    require_memory(needed, runtime.device, step, advice)


def check_mps(config: ModelConfig, recipe: Recipe, runtime: Runtime) -> None:
    """Raise ValueError for what is silently wrong on mps: recomputed blocks draw other dropout masks.

    torch saves and restores the generators of CPU and CUDA around a recomputed block, and not that of mps.
    """
    if runtime.device.type != "mps" or not recipe.machine.gradient_checkpointing:
        return
    for name in ("dropout_rate", "stochastic_depth_rate"):
        if getattr(config, name, 0.0) > 0:
            raise ValueError(
                f"machine.gradient_checkpointing computes wrong gradients on mps with {name}={getattr(config, name)}: leave it "
                f"out, or set {name_setting(f'model.{name}', 0)}."
            )


def build_fresh_model(recipe: Recipe, class_names: tuple[str, ...]) -> Checkpoint:
    """Build the recipe's model with fresh weights."""
    config = recipe.model.resolve(len(class_names))
    model = build_model(replace(config, gradient_checkpointing=recipe.machine.gradient_checkpointing))
    build = build_imagenet_preprocessing if recipe.model.preprocess == "imagenet" else build_inception_preprocessing
    preprocessing, provenance = build(config.image_size, config.num_channels), {"source": f"{recipe.model.name}, fresh weights"}
    return Checkpoint(model, preprocessing, class_names or None, provenance)


def load_initial_model(recipe: Recipe, class_names: tuple[str, ...], checkpoint: Checkpoint | None = None) -> Checkpoint:
    """Load a checkpoint at the recipe's resolution, with a new head of zeros (section 3.2 of arXiv:2010.11929)."""
    settings = recipe.model
    assert settings.checkpoint is not None
    overrides = Overrides(gelu=settings.gelu, norm_eps=settings.norm_eps, preprocess=settings.preprocess)
    source = settings.checkpoint if checkpoint is None else deepcopy(checkpoint)  # it is changed below
    loaded = load_checkpoint(source, image_size=settings.image_size, overrides=overrides)
    if recipe.head_init == "keep":
        keep_head(loaded, class_names)
    else:
        loaded.model.reset_head(len(class_names), settings.head_bias or 0.0, **settings.readout_changes)
    changes: dict[str, Any] = {"gradient_checkpointing": recipe.machine.gradient_checkpointing}
    for name in ("dropout_rate", "stochastic_depth_rate"):
        if getattr(settings, name) is not None:
            changes[name] = getattr(settings, name)
    provenance = {"source": settings.checkpoint, "from": loaded.provenance}
    return Checkpoint(rebuild(loaded.model, **changes), loaded.preprocessing, class_names or None, provenance)


def keep_head(checkpoint: Checkpoint, class_names: tuple[str, ...]) -> None:
    """Prepare the head of a checkpoint to be trained further: its temperature goes into its weights."""
    if checkpoint.class_names != class_names:
        found = f"{checkpoint.model.config.num_classes} classes" if checkpoint.class_names is None else "other classes"
        raise ValueError(f"head_init='keep' needs a checkpoint with the classes of the data, and it has {found}: leave it out.")
    with torch.no_grad():
        for name in checkpoint.model.heads:
            head = getattr(checkpoint.model, name, None)
            if isinstance(head, nn.Linear):
                head.weight.div_(checkpoint.calibration.temperature)
                head.bias.div_(checkpoint.calibration.temperature)


def rebuild(model: Model[Any], **changes: Any) -> Model[Any]:
    """Return the model with the same weights and changes to its config that do not affect their shapes."""
    unknown = [name for name in changes if not hasattr(model.config, name)]
    if unknown:
        raise ValueError(f"The checkpoint's model has no {', '.join(sorted(unknown))}: leave it out.")
    config = replace(model.config, **changes)
    if config == model.config:
        return model
    changed = build_meta_model(config)
    changed.load_state_dict(model.state_dict(), assign=True)
    return changed


def set_fitted_head(start: Checkpoint, source: Source, recipe: Recipe, runtime: Runtime) -> None:
    """Set the new head to a closed-form solution on the frozen features, so that fine-tuning starts from a linear probe."""
    images = select_subset(source, str(MAX_FITTED_IMAGES)) if len(source) > MAX_FITTED_IMAGES else source
    if images.labels.has_several:
        raise ValueError(f"head_init={recipe.head_init!r} needs images with one label each: use head_init='zero'.")
    alone = replace(runtime, rank=0, world_size=1)  # every rank computes all features
    loader = build_evaluation_loader(images, start.preprocessing, recipe, alone)
    model, device = start.model, runtime.device
    with evaluating(model), explain_evaluation_memory(recipe, device):
        engine = TorchEngine(start, device, recipe.machine.precision)
        batches = progress_bar(loader.read_epoch(), loader.steps_per_epoch, "fitting the head")
        features = extract_features(engine.features, batches, device)
    if recipe.data.bad_images == "skip-few":
        reject_many_bad_images(loader.skipped, len(images))
    weight, bias = HEAD_FITS[recipe.head_init](features.values, features.labels, len(source.class_names))
    with torch.no_grad():
        for head in (model.head, getattr(model, "head_distillation", None)):
            if isinstance(head, nn.Linear):
                head.weight.copy_(weight)
                head.bias.copy_(bias)


def build_objective(recipe: Recipe, start: Checkpoint) -> Objective:
    """Build the recipe's objective around a model."""
    settings = {name: getattr(recipe, name) for name in OBJECTIVES[recipe.objective].recipe_fields}
    return load_objective_class(recipe.objective).build(start.model, start.preprocessing, settings, recipe.seed)


def load_objective(out: str | Path) -> Objective:
    """Load the objective of the run in `out` from its last checkpoint, e.g. to see what masked patch prediction predicts."""
    folder = RunFolder(Path(out))
    if not folder.recipe.is_file():
        raise FileNotFoundError(f"{out} is not the folder of a run (no recipe.json): give the --out of `vitrine train`.")
    resume_point = folder.find_last()
    if resume_point is None:
        raise FileNotFoundError(f"{out} has no checkpoint yet: let `vitrine train` run until it has saved one.")
    objective = build_objective(folder.read_recipe(), resume_point.checkpoint)
    objective.load_state_dict({**objective.state_dict(), **select_own_weights(resume_point.training)})
    return objective.eval()
