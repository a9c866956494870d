"""Networks to compare a ViT with: the same with fresh weights, and a ResNet and a hybrid of like cost. No torch here."""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from vitrine.models.config import ViTConfig
from vitrine.models.cost import compute_cost
from vitrine.models.settings import ModelSettings

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
