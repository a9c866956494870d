"""Where a run begins: a network with fresh weights, or a checkpoint's with a new head."""

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from vitrine.core.runtime import seed_generators
from vitrine.data.preprocessing import Preprocessing, build_imagenet_preprocessing, build_inception_preprocessing
from vitrine.data.source import Source
from vitrine.data.subset import select
from vitrine.evaluate.classification import evaluating
from vitrine.evaluate.features import build_featuriser, extract_features
from vitrine.evaluate.head_start import fit_discriminant_head, fit_ridge_head
from vitrine.formats.checkpoint import Checkpoint
from vitrine.formats.config import Facts
from vitrine.formats.load import load_checkpoint
from vitrine.models.config import ModelConfig
from vitrine.models.model import Model
from vitrine.models.registry import build_empty, build_model
from vitrine.recipe import Recipe
from vitrine.run.data import build_evaluation_loader

INITIALISATION = -1  # in place of a step, in the seed of what is drawn before the first
HEAD_FITS = {"ridge": fit_ridge_head, "discriminant": fit_discriminant_head}
MAX_FITTED_IMAGES = 20_000  # more change the solution little and cost a pass over all of them


def build_start(recipe: Recipe, class_names: tuple[str, ...]) -> Checkpoint:
    """The model before its first step, with the preprocessing and class names that will be saved with it; without names it
    has no head."""
    seed_generators(recipe.seed, INITIALISATION)
    start = load_start(recipe, class_names) if recipe.model.checkpoint else build_fresh(recipe, class_names)
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


def load_start(recipe: Recipe, class_names: tuple[str, ...]) -> Checkpoint:
    """A checkpoint at the recipe's resolution, its head replaced by one of zeros (section 3.2 of arXiv:2010.11929)."""
    settings = recipe.model
    assert settings.checkpoint is not None
    facts = Facts(gelu=settings.gelu, norm_eps=settings.norm_eps, preprocess=settings.preprocess)
    loaded = load_checkpoint(settings.checkpoint, image_size=settings.image_size, facts=facts)
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
    changed = build_empty(config)
    changed.load_state_dict(model.state_dict(), assign=True)
    return changed


def set_fitted_head(start: Checkpoint, source: Source, recipe: Recipe, device: torch.device) -> None:
    """Give the new head a closed-form solution on the frozen features, so that fine-tuning begins from a linear probe."""
    model = start.model.to(device)
    some = select(source, str(MAX_FITTED_IMAGES)) if len(source) > MAX_FITTED_IMAGES else source
    if some.labels.has_several:
        raise ValueError(f"head_init={recipe.head_init!r} needs images with one label each: take head_init='zero'.")
    loader = build_evaluation_loader(some, start.preprocessing, recipe)
    with evaluating(model):
        features = extract_features(build_featuriser(model, start.preprocessing), loader.read_once(), device)
    weight, bias = HEAD_FITS[recipe.head_init](features.values, features.labels, len(source.class_names))
    with torch.no_grad():
        for head in (model.head, getattr(model, "head_distillation", None)):
            if isinstance(head, nn.Linear):
                head.weight.copy_(weight)
                head.bias.copy_(bias)
