"""What every listed model must honour, so a new model is tested by being named."""

import copy
import re
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.filling import build_filled
from vitrine.models.config import HybridConfig, ResNetConfig
from vitrine.models.model import Encoded, Model
from vitrine.models.registry import MODELS, build_model, resolve_config

# Four by three patches of the coarsest models, so that rows and columns cannot be mistaken for each other; 48 of /16.
IMAGE_SIZE = (128, 96)
# Layers that hold several matrices, in the order of their rows.
PACKED = {"qkv": ("query", "key", "value"), "key_value": ("key", "value"), "gate_hidden": ("gate", "hidden")}
OPTIONS: dict[str, dict[str, Any]] = {
    "hidden head": {"hidden_head": True},
    "registers and layer scale": {"num_registers": 2, "layer_scale": 1},
    "distillation": {"distillation_token": True},
    "attention pool": {"pool": "map"},
    "norm after pool": {"pool": "mean", "norm_after_pool": True, "class_token": True},
    "swiglu": {"mlp": "swiglu"},
    "relative": {"position": "relative"},
    # With the class pool, nothing would read the last block's offsets between patches.
    "relative without the class token": {"position": "relative", "pool": "mean"},
    "2-D in every layer": {"position": "learned-2d", "position_insertion": "every-layer"},
    "1-D shared": {"position_insertion": "shared"},
    "sin-cos": {"position": "sincos-2d"},
}


def shorten(name: str) -> dict[str, Any]:
    """Two blocks of each ViT at its full width; of a ResNet one unit a stage, a quarter as wide."""
    config = resolve_config(name)
    if isinstance(config, ResNetConfig):
        return {"stages": (1,) * len(config.stages), "width_factor": config.width_factor / 4}
    if isinstance(config, HybridConfig):
        return {"depth": 2, "stem_stages": (1,) * len(config.stem_stages), "stem_width_factor": 0.25}
    return {"depth": 2}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> Model[Any]:
    return build_filled(request.param, num_classes=5, image_size=IMAGE_SIZE, **shorten(request.param))


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.randn(8, 3, *IMAGE_SIZE, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def test_an_image_alone_equals_the_image_in_a_batch(model: Model[Any], images: Tensor) -> None:
    together = model(images)
    assert together.shape == (8, 5)
    assert together.std() > 0.05
    torch.testing.assert_close(model(images[3:4]), together[3:4], rtol=0, atol=1e-5)


def test_every_parameter_gets_a_gradient(model: Model[Any], images: Tensor) -> None:
    assert find_unused(model, images[:2]) == []


@pytest.mark.parametrize("option", OPTIONS)
def test_every_parameter_of_every_option_gets_a_gradient(option: str) -> None:
    model = build_filled("ViT-Ti/16", depth=2, image_size=(64, 48), num_classes=5, **OPTIONS[option])
    assert find_unused(model, torch.randn(2, 3, 64, 48)) == []


def find_unused(model: Model[Any], images: Tensor) -> list[str]:
    """Parameters without a gradient, packed ones taken apart. Softmax cancels the key's bias, which is left out."""
    model.zero_grad()
    model(images).square().sum().backward()
    gradients: dict[str, Tensor | None] = {}
    for name, parameter in model.named_parameters():
        layer = name.split(".")[-2] if "." in name else name
        parts = PACKED.get(layer, ("",))
        pieces = (None,) * len(parts) if parameter.grad is None else parameter.grad.chunk(len(parts))
        gradients |= {f"{name} {part}": piece for part, piece in zip(parts, pieces, strict=True)}
    model.zero_grad()
    return [name for name, piece in gradients.items() if not name.endswith("bias key") and (piece is None or not piece.any())]


@torch.no_grad()
def test_state_and_configuration_rebuild_the_model(model: Model[Any], images: Tensor) -> None:
    with torch.device("meta"):
        empty = build_model(model.config)
    twin = empty.to_empty(device="cpu").eval()
    twin.load_state_dict(model.state_dict())
    assert torch.equal(twin(images[:2]), model(images[:2]))


@torch.no_grad()
def test_encode_returns_tokens_grid_and_what_was_asked_for(model: Model[Any], images: Tensor) -> None:
    plain = model.encode(images[:2])
    kept = model.encode(images[:2], keep=("blocks.*.output",))
    rows, columns = plain.grid
    assert plain.kept == {}
    assert plain.patches.shape == (2, rows * columns, model.config.feature_dim)
    assert torch.equal(plain.tokens, kept.tokens)
    expected = [name for name in model.intermediates if re.fullmatch(r"blocks\..*output", name)]
    assert list(kept.kept) == expected
    assert len(expected) >= 2


@torch.no_grad()
def test_observe_sees_every_intermediate_without_changing_the_tokens(model: Model[Any], images: Tensor) -> None:
    seen: list[str] = []
    observed = model.encode(images[:1], observe=lambda name, tensor: seen.append(name))
    assert tuple(seen) == model.intermediates
    assert torch.equal(observed.tokens, model.encode(images[:1]).tokens)


@torch.no_grad()
def test_edit_changes_the_patch_tokens_of_embed(model: Model[Any], images: Tensor) -> None:
    embedded, grid = model.embed(images[:1])
    assert embedded.shape[:2] == (1, grid[0] * grid[1])
    given: list[Tensor] = []

    def swap(tokens: Tensor) -> Tensor:
        given.append(tokens)
        return tokens.flip(1)

    edited = model.encode(images[:1], edit=swap)
    assert torch.equal(given[0], embedded)
    assert not torch.allclose(edited.tokens, model.encode(images[:1]).tokens)
    with pytest.raises(ValueError, match="must keep the shape"):
        model.encode(images[:1], edit=lambda tokens: tokens[:, 1:])


@torch.no_grad()
def test_logits_are_the_head_of_the_pooled_features(model: Model[Any], images: Tensor) -> None:
    features = model.pool(model.encode(images[:2]))
    assert features.shape == (2, model.config.feature_dim)
    torch.testing.assert_close(model.head(features), model(images[:2]))


@torch.no_grad()
def test_a_new_head_starts_at_zero(model: Model[Any], images: Tensor) -> None:
    changed = copy.deepcopy(model)
    features = changed.pool(changed.encode(images[:1]))
    changed.reset_head(7)
    assert changed.config.num_classes == 7
    assert torch.equal(changed(images[:1]), torch.zeros(1, 7))
    with pytest.raises(ValueError, match="num_classes=-1"):
        changed.reset_head(-1)
    assert changed.config.num_classes == 7
    changed.reset_head(3, head_bias=-10.0)
    assert torch.equal(changed(images[:1]), torch.full((1, 3), -10.0))
    changed.reset_head(0)
    torch.testing.assert_close(changed(images[:1]), features)


@torch.no_grad()
def test_resize_takes_other_images(model: Model[Any], images: Tensor) -> None:
    changed = copy.deepcopy(model)
    changed.resize(IMAGE_SIZE)
    assert torch.equal(changed(images[:1]), model(images[:1]))
    changed.resize((64, 128))
    wide = torch.randn(1, 3, 64, 128, generator=torch.Generator().manual_seed(2))
    encoded = changed.encode(wide)
    assert isinstance(encoded, Encoded)
    assert encoded.grid == changed.config.grid == resolve_config(model.config, image_size=(64, 128)).grid
    assert changed(wide).isfinite().all()
    with pytest.raises(ValueError, match="64 x 128"):
        changed(images[:1])


def test_wrong_images_are_refused_in_a_sentence(model: Model[Any], images: Tensor) -> None:
    with pytest.raises(ValueError, match="2 channels, the model takes 3"):
        model(images[:1, :2])
    with pytest.raises(ValueError, match=r"model\.resize\(\(128, 60\)\)"):
        model(images[:1, :, :, :60])
    with pytest.raises(ValueError, match=r"\(batch, channels, height, width\)"):
        model(images[0])
    with pytest.raises(ValueError, match=r"images are of torch\.uint8; normalise them to floating point first"):
        model(images[:1].to(torch.uint8))
    with pytest.raises(ValueError, match="2 channels"):
        model.embed(images[:1, :2])
    with pytest.raises(ValueError, match="names no intermediate"):
        model.encode(images[:1], keep=("block.0.output",))
