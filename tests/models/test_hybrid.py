"""Hybrids: a post-activation ResNet as stem, then a ViT; names give the paper's shapes."""

import pytest
import torch

from tests.filling import build_filled
from vitrine.models.config import HybridConfig
from vitrine.models.registry import build_model, resolve_config


@pytest.mark.parametrize(
    ("name", "stages", "patch_size", "grid"),
    [
        ("R+ViT-Ti/16", (), 8, (7, 7)),
        ("R26+ViT-S/32", (2, 2, 2, 2), 1, (7, 7)),
        ("R26+ViT-B/32", (2, 2, 2, 2), 1, (7, 7)),
        ("R50+ViT-B/32", (3, 4, 6, 3), 1, (7, 7)),
        ("R50+ViT-B/16", (3, 4, 9), 1, (14, 14)),
        ("R50+ViT-L/32", (3, 4, 6, 3), 1, (7, 7)),
        ("R50x1+ViT-L/16", (3, 4, 9), 1, (14, 14)),
        ("R101x2+ViT-L/16", (3, 4, 26), 1, (14, 14)),
    ],
)
def test_names_give_the_papers_stems(name: str, stages: tuple[int, ...], patch_size: int, grid: tuple[int, int]) -> None:
    config = resolve_config(name)
    assert isinstance(config, HybridConfig)
    assert (config.stem_stages, config.patch_size, config.grid) == (stages, patch_size, grid)
    assert config.stem.style == "post-activation"
    assert config.stem.epsilons == (1e-6, 1e-5)


@torch.no_grad()
def test_a_hybrid_is_a_vit_on_the_stems_map() -> None:
    hybrid = build_filled("R26+ViT-Ti/32", depth=2, stem_width_factor=0.25, image_size=(96, 64), num_classes=4)
    images = torch.randn(2, 3, 96, 64)
    features = hybrid.stem.encode(images)
    assert features.grid == (3, 2)
    feature_map = features.tokens.transpose(1, 2).unflatten(2, features.grid)
    vit = build_model("ViT-Ti/1", depth=2, num_channels=hybrid.stem.config.feature_dim, image_size=(3, 2), num_classes=4).eval()
    vit.load_state_dict({name: value for name, value in hybrid.state_dict().items() if not name.startswith("stem.")})
    torch.testing.assert_close(hybrid(images), vit(feature_map))


@torch.no_grad()
def test_feature_maps_of_the_stem_are_intermediates() -> None:
    hybrid = build_filled("R26+ViT-Ti/32", depth=1, stem_width_factor=0.25, image_size=64)
    kept = hybrid.encode(torch.randn(1, 3, 64, 64), keep=("stem.*",)).kept
    assert {name: tuple(value.shape[1:]) for name, value in kept.items()} == {
        "stem.root": (16, 16, 16),
        "stem.blocks.0.output": (64, 16, 16),
        "stem.blocks.1.output": (128, 8, 8),
        "stem.blocks.2.output": (256, 4, 4),
        "stem.blocks.3.output": (512, 2, 2),
    }


def test_small_hybrids() -> None:
    model = build_filled("R26+ViT-Ti/32", depth=1, stem_stages=(1,), stem_width_factor=0.5, patch_size=2, image_size=30)
    assert model.config.grid == (4, 4)
    assert model(torch.randn(1, 3, 30, 30)).shape == (1, 1000)
    with pytest.raises(ValueError, match=r"2 x 2.*8 x 8"):
        build_model("R+ViT-Ti/16", image_size=8)
