"""Models of equal cost are of their kind, for the same images, and cost the same within a quarter."""

import pytest

from vitrine.demo.matched_models import match_hybrid, match_resnet, match_vit
from vitrine.models.config import HybridConfig, ResNetConfig, ViTConfig
from vitrine.models.cost import compute_cost
from vitrine.models.registry import parse_model_name

VITS = {
    "demo": {"name": "ViT-Ti/4", "image_size": (48, 48), "width": 64, "depth": 4, "num_heads": 4, "mlp_dim": 128},
    "tiny": {"name": "ViT-Ti/16"},
    "base": {"name": "ViT-B/32"},
    "huge": {"name": "ViT-H/14"},
    "large images": {"name": "ViT-S/16", "image_size": (384, 384)},
    "grey": {"name": "ViT-Ti/4", "image_size": (16, 16), "num_channels": 1, "pool": "mean", "position": "sincos-2d"},
}


@pytest.fixture(params=VITS)
def vit(request: pytest.FixtureRequest) -> ViTConfig:
    config = parse_model_name(**VITS[request.param], num_classes=7)
    assert isinstance(config, ViTConfig)
    return config


@pytest.mark.parametrize(("match", "kind"), [(match_resnet, ResNetConfig), (match_hybrid, HybridConfig)])
def test_matched_models_cost_the_same_within_a_quarter(vit: ViTConfig, match: object, kind: type) -> None:
    config = match(vit).resolve(7)
    assert type(config) is kind
    assert (config.image_size, config.num_channels) == (vit.image_size, vit.num_channels)
    assert compute_cost(config).macs == pytest.approx(compute_cost(vit).macs, rel=0.25)


def test_matched_vit_is_the_same_vit(vit: ViTConfig) -> None:
    assert match_vit(vit).resolve(7) == vit


def test_hybrid_has_as_many_tokens_if_the_patch_size_is_a_power_of_two() -> None:
    vit = parse_model_name("ViT-Ti/16", num_classes=7)
    hybrid = match_hybrid(vit).resolve(7)
    assert hybrid.grid == vit.grid == (14, 14)
    assert (hybrid.depth, vit.depth) == (9, 12)
