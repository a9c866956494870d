"""Names: the grammar, what it refuses and what it offers instead."""

import pytest
import torch

from tests.filling import build_filled
from vitrine.models.config import AxialConfig, HybridConfig, ModelConfig, ResNetConfig, ViTConfig
from vitrine.models.registry import FAMILIES, MODELS, build_model, parse_model_name, resolve_config


@pytest.mark.parametrize("name", MODELS)
def test_listed_names_parse(name: str) -> None:
    assert type(parse_model_name(name)) in FAMILIES


def test_every_family_is_listed() -> None:
    assert {type(parse_model_name(name)) for name in MODELS} == set(FAMILIES)


@pytest.mark.parametrize(
    ("name", "kind", "fields"),
    [
        ("ViT-S/8", ViTConfig, {"patch_size": 8, "width": 384, "num_heads": 6}),
        ("ViT-b/16", ViTConfig, {"width": 384, "depth": 12, "mlp_dim": 1536, "num_heads": 12}),
        ("ViT-B/16", ViTConfig, {"width": 768, "pool": "class", "position": "learned-1d", "gelu": "tanh", "norm_eps": 1e-6}),
        ("ViT-L/7", ViTConfig, {"patch_size": 7, "depth": 24}),
        ("Axial-ViT-S/8", AxialConfig, {"patch_size": 8, "pool": "mean"}),
        ("R26x3", ResNetConfig, {"stages": (2, 2, 2, 2), "width_factor": 3.0}),
        ("R50x0.5", ResNetConfig, {"width_factor": 0.5}),
        ("R26x2+ViT-S/16", HybridConfig, {"stem_stages": (2, 2, 4), "stem_width_factor": 2.0}),
        ("R+ViT-S/32", HybridConfig, {"stem_stages": (), "patch_size": 16}),
    ],
)
def test_the_grammar_goes_beyond_the_list(name: str, kind: type[ModelConfig], fields: dict[str, object]) -> None:
    config = parse_model_name(name)
    assert type(config) is kind
    assert {field: getattr(config, field) for field in fields} == fields


@pytest.mark.parametrize(
    ("name", "offered"),
    [
        ("vit-b/16", "ViT-B/16"),
        ("ViT-B16", "ViT-B/16"),
        ("ViT-X/16", "ViT-B/16"),
        ("ViT-B/0", "ViT-B/8"),
        ("R51x1", "R50x1"),
        ("R50", "R50x1"),
        ("R50+ViT-B/8", "R50+ViT-B/16"),
        ("resnet", "R50x1"),
        ("", "ViT-B/16"),
    ],
)
def test_a_wrong_name_offers_the_nearest(name: str, offered: str) -> None:
    with pytest.raises(ValueError, match=r"Unknown model .* All names: `vitrine models`\.") as error:
        build_model(name)
    assert offered in str(error.value)


def test_a_wrong_field_offers_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"ViTConfig has no field 'head_count'; nearest: .*num_heads"):
        build_model("ViT-B/16", head_count=3)
    with pytest.raises(ValueError, match="ResNetConfig has no field 'pool'"):
        resolve_config(parse_model_name("R50x1"), pool="mean")


def test_neither_name_nor_configuration_is_refused() -> None:
    for model in (None, 16, ["ViT-B/16"], ViTConfig):
        with pytest.raises(ValueError, match="is no model: give a name such as 'ViT-B/16', or a configuration"):
            build_model(model)


def test_a_large_patch_needs_only_a_large_image() -> None:
    assert resolve_config("ViT-B/256", image_size=512).grid == (2, 2)
    with pytest.raises(ValueError, match="at least one patch of 256 x 256 pixels"):
        resolve_config("ViT-B/256")


def test_a_configuration_builds_as_its_name_does() -> None:
    with torch.device("meta"):
        by_name = build_model("ViT-Ti/16", num_classes=7, image_size=(32, 48), depth=1)
        by_config = build_model(parse_model_name("ViT-Ti/16"), num_classes=7, image_size=(32, 48), depth=1)
    assert by_name.config == by_config.config
    assert by_name.config.image_size == (32, 48)


@pytest.mark.full
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_every_listed_model_runs_at_full_size(name: str) -> None:
    logits = build_filled(name, num_classes=10)(torch.randn(1, 3, 224, 224))
    assert logits.shape == (1, 10)
    assert logits.isfinite().all()
    assert logits.std() > 0
