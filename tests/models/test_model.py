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

# Three by two patches of the coarsest models, so that rows and columns cannot be mistaken for each other.
IMAGE_SIZE = (96, 64)


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
    torch.testing.assert_close(model(images[3:4]), together[3:4], rtol=0, atol=1e-5 * float(together.abs().max().clamp(min=1)))


def test_every_parameter_gets_a_gradient(model: Model[Any], images: Tensor) -> None:
    model.zero_grad()
    model(images[:2]).square().sum().backward()
    unused = [name for name, part in parts_with_an_effect(model) if part.grad is None or not part.grad.any()]
    model.zero_grad()
    assert unused == []


def parts_with_an_effect(model: Model[Any]) -> list[tuple[str, Tensor]]:
    """Parameters, packed biases taken apart: softmax cancels the key's, which is left out."""
    parts: list[tuple[str, Tensor]] = []
    for name, parameter in model.named_parameters():
        if name.endswith(("qkv.bias", "key_value.bias")):
            *others, key_value = parameter.chunk(3 if name.endswith("qkv.bias") else 2)
            grads = parameter.grad.chunk(len(others) + 1) if parameter.grad is not None else None
            chosen = {"value": -1, "query": 0} if name.endswith("qkv.bias") else {"value": -1}
            for part, index in chosen.items():
                tensor = key_value.detach().clone()
                tensor.grad = None if grads is None else grads[index]
                parts.append((f"{name} ({part})", tensor))
        else:
            parts.append((name, parameter))
    return parts


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
    with pytest.raises(ValueError, match=r"model\.resize\(\(96, 60\)\)"):
        model(images[:1, :, :, :60])
    with pytest.raises(ValueError, match=r"\(batch, channels, height, width\)"):
        model(images[0])
    with pytest.raises(ValueError, match="2 channels"):
        model.embed(images[:1, :2])
    with pytest.raises(ValueError, match="names no intermediate"):
        model.encode(images[:1], keep=("block.0.output",))
