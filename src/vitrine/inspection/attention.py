"""Attention maps as they are made: a layer of a few images at a time, so that memory grows with neither.

Shapes: B images, H heads, T tokens (prefix and patches), R rows and S columns of patches, N = R * S.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from vitrine.models.config import HybridConfig, ResNetConfig, ViTConfig
from vitrine.models.model import Encoded, Model

NAME = re.compile(r"blocks\.(\d+)\.attention")
PLACE = re.compile(r"(\d+) *, *(\d+)")

Look = Callable[[int, Tensor], None]


def count_layers(model: Model[Any]) -> int:
    """Layers in which every token can read every other; a model without any is refused."""
    layers = sum(NAME.fullmatch(name) is not None for name in model.intermediates)
    if layers == 0:
        kind = "A ResNet has no attention" if isinstance(model.config, ResNetConfig) else "An axial model attends along lines"
        raise ValueError(f"{kind}, and maps from every token to every other were needed: take a ViT or a hybrid.")
    return layers


@torch.no_grad()
def stream_attention(model: Model[Any], images: Tensor, look: Look) -> Encoded:
    """Normalised images through the model; `look(layer, maps)` sees each layer's maps (B, H, T, T), from reader to read."""

    def observe(name: str, tensor: Tensor) -> None:
        found = NAME.fullmatch(name)
        if found is not None:
            look(int(found[1]), tensor)

    return model.encode(images, observe=observe)


def compute_attention(model: Model[Any], images: Tensor, layer: int) -> Tensor:
    """The maps of one layer (B, H, T, T), which are kept; of many images take `stream_attention`."""
    require_numbers("layer", (layer,), count_layers(model))
    name = f"blocks.{layer}.attention"
    with torch.no_grad():
        return model.encode(images, keep=(name,)).kept[name]


def choose_query(config: ViTConfig, query: str | None = None) -> str:
    """Whose attention is looked at: `query`, if it can be had of this model, else the class token, else the mean."""
    if query is None:
        return "class" if config.has_class_token else "mean"
    if query == "class" and not config.has_class_token:
        raise ValueError("query='class' needs a class token, and this model has none: take mean, or ROW,COLUMN of a patch.")
    place = PLACE.fullmatch(query)
    if place is None and query not in ("class", "mean"):
        raise ValueError(f"query={query!r} must be class, mean, or ROW,COLUMN of a patch, as 3,5.")
    rows, columns = config.grid
    if place is not None and not (int(place[1]) < rows and int(place[2]) < columns):
        raise ValueError(f"query={query!r} lies outside of the {rows} x {columns} patches: rows and columns count from 0.")
    return query


def read_query(maps: Tensor, config: ViTConfig, query: str) -> Tensor:
    """From maps (.., T, T) to what the query reads from each patch (.., R, S)."""
    first = config.num_prefix_tokens
    reads = maps[..., first:]  # (.., T, N)
    place = PLACE.fullmatch(query)
    if place is not None:
        chosen = reads[..., first + int(place[1]) * config.grid[1] + int(place[2]), :]
    else:
        chosen = reads[..., 0, :] if query == "class" else reads[..., first:, :].mean(dim=-2)
    return chosen.unflatten(-1, config.grid)


def compute_stride(config: ViTConfig) -> int:
    """Pixels from one patch to the next."""
    if isinstance(config, HybridConfig):
        return config.patch_size * 4 * 2 ** max(0, len(config.stem_stages) - 1)  # the root halves twice, later stages once
    return config.patch_size


def require_numbers(what: str, numbers: Iterable[int], count: int) -> None:
    """Each is the number of one of `count` layers or heads."""
    for number in numbers:
        if not 0 <= number < count:
            raise ValueError(f"{what} {number} does not exist: the model has {count}, numbered 0 to {count - 1}.")
