"""Models of equal cost: the ViT of a checkpoint with fresh weights, and a ResNet and a hybrid that cost as much."""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from vitrine.models.config import ViTConfig
from vitrine.models.cost import compute_cost
from vitrine.models.settings import ModelSettings

MIN_WIDTH, MAX_WIDTH = 12, 800  # width factors that are tried, in hundredths; the least has 8 channels at the root
NUM_GROUPS = 8  # 32 groups would be too many for norms of few channels
HYBRID_DEPTH = 0.75  # fraction of the ViT's blocks that follow the hybrid's stem
MIN_SIDE_FOR_FOUR_STAGES = 64  # pixels; a fourth stage would reduce a smaller image to a single position
MAX_STEM_STAGES = 4


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
