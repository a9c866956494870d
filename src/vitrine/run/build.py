"""Data, initial model and objective of a run.

The images of a run: what it learns from, what it is watched on, and what it is tested on once.
Where a run begins: a network with fresh weights, or a checkpoint's with a new head.
What a run trains: the objective of its recipe, made new or as a run left it.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from vitrine.core.runtime import seed_generators
from vitrine.data.config import DataConfig
from vitrine.data.dataset_format import normalise_split
from vitrine.data.loader import Loader, build_eval_loader
from vitrine.data.open_data import find_data, open_train_data
from vitrine.data.preprocessing import Preprocessing, build_imagenet_preprocessing, build_inception_preprocessing
from vitrine.data.source import Source
from vitrine.data.sources.vtab import WHOLE
from vitrine.data.subsets import select_subset
from vitrine.data.wrappers import load_into_memory
from vitrine.evaluation.features import build_featuriser, extract_features
from vitrine.evaluation.linear_heads import fit_discriminant_head, fit_ridge_head
from vitrine.evaluation.topk import evaluating
from vitrine.formats.checkpoint import Checkpoint
from vitrine.formats.config import Overrides
from vitrine.formats.load import load_checkpoint
from vitrine.models.config import ModelConfig
from vitrine.models.model import Model
from vitrine.models.registry import build_meta_model, build_model
from vitrine.objectives.masked_patches import MaskedPatches
from vitrine.objectives.objective import Objective
from vitrine.objectives.supervised import Supervised
from vitrine.recipe import Recipe
from vitrine.run.folder import RunFolder
from vitrine.training.state import select_beside


@dataclass(frozen=True)
class RunData:
    train: Source
    watched: Source | None
    """What is evaluated in the course of the run, and what the best is chosen by."""
    watched_name: str
    """held_out or val."""
    test: Source | None
    """The split test; where there is none, as on ImageNet, val, unless the weights were chosen by it."""

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.train.class_names


def open_run_data(recipe: Recipe) -> RunData:
    config, evaluation = recipe.data, recipe.evaluation
    train, held_out = open_train_data(config)
    if recipe.objective == "supervised":
        require_labels(train, recipe)
    splits = find_data(config.source).splits
    watched, watched_name = held_out, "held_out"
    if watched is None:
        watched, watched_name = open_other(config, "val", splits), "val"
    require_watched(watched, train, recipe)
    test_split = "test" if "test" in splits else "val"
    chosen_on = watched_name if evaluation.patience is not None else None  # what was chosen on some images says nothing on them
    is_tested = evaluation.test and test_split != chosen_on and recipe.objective == "supervised"
    test = open_other(config, test_split, splits) if is_tested else None
    for source, split in ((watched, watched_name), (test, test_split)):
        if source is not None and source.class_names != train.class_names:
            raise ValueError(
                f"The classes of {config.source} are not the same in {split} as in training "
                f"({len(source.class_names)} and {len(train.class_names)}, or in another order): give both the same."
            )
    return RunData(train, watched, watched_name, test)


def require_watched(watched: Source | None, train: Source, recipe: Recipe) -> None:
    """Before anything is trained: whatever is to be measured on the way can be."""
    shots = recipe.evaluation.few_shot
    if watched is None and (recipe.evaluation.patience is not None or shots > 0):
        raise ValueError(
            f"{recipe.data.source} has no images to watch, and evaluation.patience and evaluation.few_shot need some: give a "
            "share, as data.held_out=0.1, or a split val."
        )
    if shots == 0:
        return
    if len(train.class_names) < 2:
        raise ValueError(f"evaluation.few_shot={shots} needs labels of two or more classes: leave it out.")
    if train.labels.has_several:
        raise ValueError("evaluation.few_shot needs images with one label each: leave it out.")
    counts = np.bincount(train.labels.values, minlength=len(train.class_names))
    if counts.min() < shots:
        name = train.class_names[int(counts.argmin())]
        raise ValueError(f"evaluation.few_shot={shots} is more than the {counts.min()} images of the class {name}: lower it.")


def open_other(config: DataConfig, split: str, splits: tuple[str, ...]) -> Source | None:
    """A split that is not trained on, if there is one."""
    trained_on = None if config.split is None else normalise_split(config.split)
    is_within = split == "val" and config.split == WHOLE  # of VTAB-1k, where both are one split too
    if split not in splits or split in (config.split, trained_on) or is_within:
        return None
    source = find_data(config.source).open(split)
    return load_into_memory(source, config.bad_images) if config.in_memory else source


def require_labels(train: Source, recipe: Recipe) -> None:
    name = recipe.data.source
    if len(train.class_names) < 1:
        raise ValueError(f"{name} has no labels, and learning from labels needs them: give images in folders by class.")
    if len(train.class_names) < 2 and recipe.supervised.loss == "softmax":
        raise ValueError(f"{name} has one class only, {train.class_names[0]}, and nothing to tell it from: give two or more.")
    if train.labels.has_several and recipe.supervised.loss == "softmax":
        raise ValueError(f"{name} has several labels per image, of which supervised.loss=softmax knows one: take sigmoid.")


def build_evaluation_loader(
    source: Source, preprocessing: Preprocessing, recipe: Recipe, *, rank: int = 0, world_size: int = 1
) -> Loader:
    return build_eval_loader(
        source,
        preprocessing,
        batch_size=recipe.evaluation.batch_size,
        num_workers=recipe.loader.num_workers,
        bad_images=recipe.data.bad_images,
        rank=rank,
        world_size=world_size,
    )


INITIALISATION = -1  # in place of a step, in the seed of what is drawn before the first
HEAD_FITS = {"ridge": fit_ridge_head, "discriminant": fit_discriminant_head}
MAX_FITTED_IMAGES = 20_000  # more change the solution little and cost a pass over all of them


def build_initial_model(recipe: Recipe, class_names: tuple[str, ...]) -> Checkpoint:
    """The model before its first step, with the preprocessing and class names that will be saved with it; without names it
    has no head."""
    seed_generators(recipe.seed, INITIALISATION)
    start = load_initial_model(recipe, class_names) if recipe.model.checkpoint else build_fresh(recipe, class_names)
    resize = recipe.evaluation.resize
    if resize is None:
        return start
    if resize < min(start.preprocessing.crop):
        raise ValueError(f"evaluation.resize={resize} must be at least the size of the model, {min(start.preprocessing.crop)}.")
    return replace(start, preprocessing=replace(start.preprocessing, resize=resize))


def build_fresh(recipe: Recipe, class_names: tuple[str, ...]) -> Checkpoint:
    config = recipe.model.resolve(len(class_names))
    model = build_model(replace(config, gradient_checkpointing=recipe.machine.gradient_checkpointing))
    provenance = {"source": f"{recipe.model.name}, fresh weights"}
    return Checkpoint(model, build_preprocessing(recipe, config), class_names or None, provenance)


def build_preprocessing(recipe: Recipe, config: ModelConfig) -> Preprocessing:
    build = build_imagenet_preprocessing if recipe.model.preprocess == "imagenet" else build_inception_preprocessing
    return build(config.image_size, config.num_channels)


def load_initial_model(recipe: Recipe, class_names: tuple[str, ...]) -> Checkpoint:
    """A checkpoint at the recipe's resolution, its head replaced by one of zeros (section 3.2 of arXiv:2010.11929)."""
    settings = recipe.model
    assert settings.checkpoint is not None
    overrides = Overrides(gelu=settings.gelu, norm_eps=settings.norm_eps, preprocess=settings.preprocess)
    loaded = load_checkpoint(settings.checkpoint, image_size=settings.image_size, overrides=overrides)
    loaded.model.reset_head(len(class_names), settings.head_bias or 0.0)
    changes: dict[str, Any] = {"gradient_checkpointing": recipe.machine.gradient_checkpointing}
    for name in ("dropout_rate", "stochastic_depth_rate"):
        if getattr(settings, name) is not None:
            changes[name] = getattr(settings, name)
    model = rebuild(loaded.model, **changes)
    return Checkpoint(
        model, loaded.preprocessing, class_names or None, {"source": settings.checkpoint, "from": loaded.provenance}
    )


def rebuild(model: Model[Any], **changes: Any) -> Model[Any]:
    """The same weights in a network that differs in what weights do not show."""
    known = {name: value for name, value in changes.items() if hasattr(model.config, name)}
    unknown = changes.keys() - known.keys()
    if unknown:
        raise ValueError(f"{', '.join(sorted(unknown))} cannot be had from this checkpoint's network: leave it out.")
    config = replace(model.config, **known)
    if config == model.config:
        return model
    changed = build_meta_model(config)
    changed.load_state_dict(model.state_dict(), assign=True)
    return changed


def set_fitted_head(start: Checkpoint, source: Source, recipe: Recipe, device: torch.device) -> None:
    """Give the new head a closed-form solution on the frozen features, so that fine-tuning begins from a linear probe."""
    model = start.model.to(device)
    some = select_subset(source, str(MAX_FITTED_IMAGES)) if len(source) > MAX_FITTED_IMAGES else source
    if some.labels.has_several:
        raise ValueError(f"head_init={recipe.head_init!r} needs images with one label each: take head_init='zero'.")
    loader = build_evaluation_loader(some, start.preprocessing, recipe)
    with evaluating(model):
        features = extract_features(build_featuriser(model, start.preprocessing), loader.read_epoch(), device)
    weight, bias = HEAD_FITS[recipe.head_init](features.values, features.labels, len(source.class_names))
    with torch.no_grad():
        for head in (model.head, getattr(model, "head_distillation", None)):
            if isinstance(head, nn.Linear):
                head.weight.copy_(weight)
                head.bias.copy_(bias)


def build_objective(recipe: Recipe, start: Checkpoint) -> Objective:
    if recipe.objective == "masked-patches":
        return MaskedPatches(start.model, start.preprocessing, recipe.masked_patches, recipe.seed)
    mixing = recipe.mixing if recipe.mixing.is_on else None
    return Supervised(start.model, start.preprocessing, recipe.supervised, mixing, recipe.seed)


def load_objective(out: str | Path) -> Objective:
    """Of the last checkpoint of the run in `out`, with the weights that its model comes without, as those of a prediction."""
    folder = RunFolder(Path(out))
    if not folder.recipe.is_file():
        raise FileNotFoundError(
            f"{out} is no folder of a run, and one with its recipe.json was needed: give `vitrine train`'s --out."
        )
    saved = folder.find_last()
    if saved is None:
        raise FileNotFoundError(f"{out} has no checkpoint yet: let `vitrine train` go on until it has saved one.")
    objective = build_objective(folder.read_recipe(), saved.checkpoint)
    objective.load_state_dict({**objective.state_dict(), **select_beside(saved.training)})
    return objective.eval()
