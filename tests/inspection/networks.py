"""Small networks: every kind that has attention maps, and a ResNet."""

from typing import Any

import torch
from torch import Tensor

from tests.filling import fill_randomly
from vitrine.models.model import Model
from vitrine.models.registry import build_model

SMALL: dict[str, Any] = {"width": 16, "depth": 3, "num_heads": 2, "mlp_dim": 32, "num_classes": 4}
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("ViT-Ti/8", SMALL | {"image_size": 32}),
    "oblong": ("ViT-Ti/8", SMALL | {"image_size": (24, 48)}),
    "mean pooled": ("ViT-Ti/8", SMALL | {"image_size": 32, "pool": "mean"}),
    "registers": ("ViT-Ti/8", SMALL | {"image_size": (16, 48), "num_registers": 3}),
    "distilled": ("ViT-Ti/8", SMALL | {"image_size": 32, "distillation_token": True}),
    "relative": ("ViT-Ti/8", SMALL | {"image_size": 32, "position": "relative"}),
    "many tokens": ("ViT-Ti/4", SMALL | {"image_size": 40}),
    "hybrid": (
        "R26+ViT-Ti/32",
        SMALL | {"image_size": 64, "stem_stages": (1, 1), "stem_width_factor": 0.25, "stem_num_groups": 4},
    ),
}
RESNET: dict[str, Any] = {"image_size": 32, "stages": (1, 1), "width_factor": 0.25, "num_groups": 4}


def build(kind: str, **changes: Any) -> Model[Any]:
    """Build a network with weights far from their initial values, so that attention differs between patches."""
    name, settings = NETWORKS[kind]
    model = build_model(name, **(settings | changes))
    fill_randomly(model)
    return model.eval()


def draw_images(model: Model[Any], count: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, model.config.num_channels, *model.config.image_size, generator=generator)
