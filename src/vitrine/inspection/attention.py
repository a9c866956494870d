"""Attention maps: which layers a model has, the maps of one layer, and what a chosen query token attends to.

`vitrine.engines.engine.stream_attention` gives the maps of all layers without keeping them.
Shapes: B images, H heads, T tokens (prefix and patches), R rows and S columns of patches, N = R * S.
"""

import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from vitrine.engines.engine import ATTENTION_NAME
from vitrine.models.config import ResNetConfig, ViTConfig
from vitrine.models.model import Model

PATCH_QUERY = re.compile(r"(\d+) *, *(\d+)")


def has_attention_maps(model: Model[Any]) -> bool:
    """Return whether a model has layers in which every token attends to every other."""
    return any(map(ATTENTION_NAME.fullmatch, model.intermediates))


def count_layers(model: Model[Any]) -> int:
    """Return the number of self-attention layers; raise ValueError for a model without attention maps."""
    if not has_attention_maps(model):
        kind = "A ResNet has no attention" if isinstance(model.config, ResNetConfig) else "An axial model attends along lines"
        raise ValueError(f"{kind}; attention maps between all tokens need a ViT or a hybrid.")
    return sum(ATTENTION_NAME.fullmatch(name) is not None for name in model.intermediates)


def compute_attention(model: Model[Any], images: Tensor, layer: int) -> Tensor:
    """Return one layer's attention maps (B, H, T, T) of normalised images; for many images use `stream_attention`."""
    check_numbers("layer", (layer,), count_layers(model))
    name = f"blocks.{layer}.attention"
    with torch.no_grad():
        return model.encode(images, keep=(name,)).kept[name]


def choose_query(config: ViTConfig, query: str | None = None) -> str:
    """Return the query whose attention is shown: the given one if the model has it; by default the class token, else mean."""
    if query is None:
        return "class" if config.has_class_token else "mean"
    if query == "class" and not config.has_class_token:
        raise ValueError("query='class' needs a class token, which this model does not have: use mean, or ROW,COLUMN.")
    patch = PATCH_QUERY.fullmatch(query)
    if patch is None and query not in ("class", "mean"):
        raise ValueError(f"query={query!r} must be class, mean, or ROW,COLUMN of a patch, e.g. 3,5.")
    rows, columns = config.grid
    if patch is not None and not (int(patch[1]) < rows and int(patch[2]) < columns):
        raise ValueError(f"query={query!r} is outside the {rows} x {columns} patches: rows and columns count from 0.")
    return query


def read_query(maps: Tensor, config: ViTConfig, query: str) -> Tensor:
    """Return how much the query token attends to each patch, (.., R, S), from maps (.., T, T)."""
    check_full_grid(maps, config)
    first = config.num_prefix_tokens
    to_patches = maps[..., first:]  # (.., T, N)
    patch = PATCH_QUERY.fullmatch(query)
    if patch is not None:
        attention = to_patches[..., first + int(patch[1]) * config.grid[1] + int(patch[2]), :]
    else:
        attention = to_patches[..., 0, :] if query == "class" else to_patches[..., first:, :].mean(dim=-2)
    return attention.unflatten(-1, config.grid)


def check_full_grid(maps: Tensor, config: ViTConfig) -> None:
    """Raise ValueError unless attention maps (.., T, T) have a token for every patch, as figures on the grid need."""
    rows, columns = config.grid
    expected = config.num_prefix_tokens + rows * columns
    if maps.shape[-1] != expected:
        raise ValueError(f"Attention maps have {maps.shape[-1]} tokens, but {rows} x {columns} patches have {expected}.")


def check_numbers(what: str, numbers: Iterable[int], count: int) -> None:
    """Raise ValueError unless each number is one of `count` layers or heads."""
    for number in numbers:
        if not 0 <= number < count:
            raise ValueError(f"{what} {number} does not exist: the model has {count}, numbered 0 to {count - 1}.")
