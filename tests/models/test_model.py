"""Contract of every listed model: a new model is tested by being in MODELS."""

import copy
import re
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.filling import build_filled
from vitrine.models.config import HybridConfig, ResNetConfig, ViTConfig
from vitrine.models.model import Model, PatchSubset
from vitrine.models.registry import MODELS, build_meta_model, build_model, resolve_config

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
    "readout of two layers": {"readout_layers": (0, 1), "readout": "both"},
}


def shrink(name: str) -> dict[str, Any]:
    """Two narrow blocks of each ViT; one unit a stage of a ResNet, an eighth as wide."""
    config = resolve_config(name)
    if isinstance(config, ResNetConfig):
        return {"stages": (1,) * len(config.stages), "width_factor": config.width_factor / 8}
    assert isinstance(config, ViTConfig)
    sizes: dict[str, Any] = {"depth": 2, "width": 8 * config.num_heads, "mlp_dim": 24 * config.num_heads}
    if isinstance(config, HybridConfig):
        sizes |= {"stem_stages": (1,) * len(config.stem_stages), "stem_width_factor": 0.25}
    return sizes


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> Model[Any]:
    return build_filled(request.param, num_classes=5, image_size=IMAGE_SIZE, **shrink(request.param))


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.randn(8, 3, *IMAGE_SIZE, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def test_logits_are_the_head_of_the_pooled_features_of_each_image(model: Model[Any], images: Tensor) -> None:
    logits = model(images)
    assert logits.shape == (8, 5)
    assert logits.std() > 0.05
    torch.testing.assert_close(model(images[3:4]), logits[3:4], rtol=0, atol=1e-5)
    features = model.pool(model.encode(images))
    assert features.shape == (8, model.config.feature_dim)
    torch.testing.assert_close(model.head(features), logits)


def test_every_parameter_gets_a_gradient(model: Model[Any], images: Tensor) -> None:
    assert find_unused(model, images[:2]) == []


@pytest.mark.parametrize("option", OPTIONS)
def test_every_parameter_of_every_option_gets_a_gradient(option: str) -> None:
    model = build_filled("ViT-Ti/16", depth=2, image_size=(64, 48), num_classes=5, **OPTIONS[option])
    assert find_unused(model, torch.randn(2, 3, 64, 48)) == []


def find_unused(model: Model[Any], images: Tensor) -> list[str]:
    """List parameters without a gradient, packed ones taken apart. Softmax cancels the key's bias, which is left out."""
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
def test_state_and_config_rebuild_the_model(model: Model[Any], images: Tensor) -> None:
    twin = build_meta_model(model.config).to_empty(device="cpu").eval()
    twin.load_state_dict(model.state_dict())
    assert torch.equal(twin(images[:2]), model(images[:2]))


@torch.no_grad()
def test_encode_returns_tokens_and_intermediates_and_shows_all_of_them(model: Model[Any], images: Tensor) -> None:
    plain = model.encode(images[:2])
    rows, columns = plain.grid
    assert plain.kept == {}
    assert plain.patches.shape[:2] == (2, rows * columns)
    assert torch.equal(plain.grid_patches.flatten(1, 2), plain.patches)
    seen: list[str] = []
    observed = model.encode(images[:2], keep=("blocks.*.output",), observe=lambda name, tensor: seen.append(name))
    assert tuple(seen) == model.intermediates
    assert torch.equal(observed.tokens, plain.tokens)
    outputs = [name for name in model.intermediates if re.fullmatch(r"blocks\..*output", name)]
    assert list(observed.kept) == outputs
    assert len(outputs) >= 2


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
    with pytest.raises(ValueError, match="PatchSubset"):
        model.encode(images[:1], edit=lambda tokens: tokens[:, 1:])


@torch.no_grad()
def test_patches_can_be_dropped_or_the_model_says_that_it_needs_all(model: Model[Any], images: Tensor) -> None:
    def drop_first(tokens: Tensor) -> PatchSubset:
        left = torch.arange(1, tokens.shape[1])
        return PatchSubset(tokens[:, left], left.expand(len(tokens), -1))

    if not model.config.can_drop_patches:
        with pytest.raises(ValueError, match="needs every patch"):
            model.encode(images[:2], edit=drop_first)
        return
    encoded = model.encode(images[:2], edit=drop_first)
    rows, columns = encoded.grid
    assert encoded.patches.shape[1] == rows * columns - 1
    assert model.forward_heads(encoded)[0].shape == (2, 5)
    with pytest.raises(ValueError, match=f"{rows * columns - 1} patch tokens do not fill the {rows} x {columns} grid"):
        _ = encoded.grid_patches


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
    assert encoded.grid == changed.config.grid == resolve_config(model.config, image_size=(64, 128)).grid
    assert changed(wide).isfinite().all()
    with pytest.raises(ValueError, match="64 x 128"):
        changed(images[:1])


@pytest.mark.parametrize("name", MODELS)
def test_parameters_have_a_layer_and_only_kernels_decay(name: str) -> None:
    model = build_meta_model(resolve_config(name, **shrink(name)))
    layers = {part: model.block_index(part) for part, _ in model.named_parameters()}
    last = len(model.blocks) + 1
    assert {layer for part, layer in layers.items() if part.startswith("blocks.")} == set(range(1, last))
    assert {part.split(".")[0] for part, layer in layers.items() if layer == last} == {"norm", "head"}
    assert {part for part in layers if model.is_head(part)} == {"head.weight", "head.bias"}
    before = {part.split(".")[0] for part, layer in layers.items() if layer == 0}
    assert before in ({"root"}, {"patches", "positions"}, {"patches", "positions", "class_token"}) or "stem" in before
    undecayed = model.no_weight_decay()
    for part, parameter in model.named_parameters():
        is_kernel = parameter.ndim >= 2 and part.endswith("weight")
        assert (part in undecayed) == (not is_kernel), part


def test_layers_and_decay_of_tokens_pool_and_second_head() -> None:
    model = build_model("ViT-Ti/16", depth=2, image_size=32, distillation_token=True, num_registers=1, layer_scale=0.1)
    layers = {name: model.block_index(name) for name in ("class_token", "registers", "distillation_token", "norm.bias")}
    assert layers == {"class_token": 0, "registers": 0, "distillation_token": 0, "norm.bias": 3}
    assert model.block_index("positions.0.table") == 0
    assert model.block_index("blocks.1.branch_mlp.scale") == 2
    assert model.is_head("head_distillation.weight")
    assert not model.is_head("norm.bias")
    expected = {"class_token", "registers", "distillation_token", "positions.0.table", "blocks.1.branch_mlp.scale"}
    assert expected | {"head_distillation.bias", "norm.weight"} <= model.no_weight_decay()
    assert "head_distillation.weight" not in model.no_weight_decay()
    assert build_meta_model(resolve_config("ViT-Ti/16", pool="map", depth=2)).block_index("attention_pool.norm.bias") == 3


def test_wrong_images_and_names_are_refused() -> None:
    model = build_filled("ViT-Ti/16", depth=1, image_size=IMAGE_SIZE)
    images = torch.randn(1, 3, *IMAGE_SIZE)
    for wrong, message in (
        (images[:, :2], "2 channels, the model takes 3"),
        (images[:, :, :, :60], r"model\.resize\(\(128, 60\)\)"),
        (images[0], r"\(batch, channels, height, width\)"),
        (images.to(torch.uint8), r"torch\.uint8"),
    ):
        with pytest.raises(ValueError, match=message):
            model(wrong)
        with pytest.raises(ValueError, match=message):
            model.embed(wrong)
    with pytest.raises(ValueError, match=r"block\.0\.output"):
        model.encode(images, keep=("block.0.output",))
    with pytest.raises(ValueError, match="no field readout_layers"):
        build_filled("R26x0.25", image_size=32).reset_head(3, readout_layers=(1,))


@pytest.mark.parametrize(
    "wrong",
    [
        PatchSubset(torch.zeros(2, 3, 192), torch.zeros(2, 4, dtype=torch.int64)),
        PatchSubset(torch.zeros(1, 3, 192), torch.zeros(1, 3, dtype=torch.int64)),
        PatchSubset(torch.zeros(2, 0, 192), torch.zeros(2, 0, dtype=torch.int64)),
        PatchSubset(torch.zeros(2, 3, 192), torch.zeros(2, 3)),
    ],
)
def test_a_wrong_subset_of_patches_is_refused(wrong: PatchSubset) -> None:
    model = build_filled("ViT-Ti/16", depth=1, image_size=32)
    with pytest.raises(ValueError, match="indices"):
        model.encode(torch.randn(2, 3, 32, 32), edit=lambda tokens: wrong)
