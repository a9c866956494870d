"""The ViT against Hugging Face's, with the same random weights, and its options against closed forms."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    CLIPVisionConfig,
    CLIPVisionModel,
    DeiTConfig,
    DeiTForImageClassificationWithTeacher,
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersForImageClassification,
)
from transformers import ViTConfig as PeerConfig
from transformers import ViTForImageClassification as PeerViT

from tests.filling import build_filled, fill_randomly
from tests.peers import copy_peer_weights
from vitrine.models.model import Model
from vitrine.models.registry import build_model


def build_peer(**changes: Any) -> PeerViT:
    settings: dict[str, Any] = {"image_size": (96, 112), "patch_size": 16, "hidden_size": 96, "num_hidden_layers": 3}
    settings |= {"num_attention_heads": 4, "intermediate_size": 200, "layer_norm_eps": 1e-6, "num_labels": 7}
    peer = PeerViT(PeerConfig(**{**settings, **changes})).eval()
    fill_randomly(peer)
    return peer


def load_peer_weights(model: Model[Any], peer: nn.Module) -> Model[Any]:
    model.load_state_dict(copy_peer_weights(peer))
    return model.eval()


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.randn(2, 3, 96, 112, generator=torch.Generator().manual_seed(3))


# 42 patches, enough for fused attention on CPUs.
SIZES: dict[str, Any] = {"width": 96, "depth": 3, "num_heads": 4, "mlp_dim": 200, "num_classes": 7, "image_size": (96, 112)}


@pytest.mark.parametrize(("gelu", "peer_gelu"), [("erf", "gelu"), ("tanh", "gelu_pytorch_tanh"), ("quick", "quick_gelu")])
@torch.no_grad()
def test_logits_equal_hugging_face(gelu: str, peer_gelu: str, images: Tensor) -> None:
    peer = build_peer(hidden_act=peer_gelu)
    model = load_peer_weights(build_model("ViT-B/16", gelu=gelu, **SIZES), peer)
    torch.testing.assert_close(model(images), peer(images).logits, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_projections_without_bias_equal_hugging_face(images: Tensor) -> None:
    peer = build_peer(qkv_bias=False)
    model = load_peer_weights(build_model("ViT-B/16", gelu="erf", qkv_bias=False, **SIZES), peer)
    torch.testing.assert_close(model(images), peer(images).logits, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_the_norm_before_the_blocks_equals_hugging_faces_clip() -> None:
    config = CLIPVisionConfig(
        hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=100, image_size=96, patch_size=16
    )
    peer = CLIPVisionModel(config).eval()
    fill_randomly(peer)
    sizes = {"width": 48, "depth": 2, "num_heads": 4, "mlp_dim": 100, "image_size": 96, "num_classes": 0}
    options = {"pre_norm": True, "patch_bias": False, "gelu": "quick", "norm_eps": 1e-5}
    model = load_peer_weights(build_model("ViT-B/16", **sizes, **options), peer)
    images = torch.randn(2, 3, 96, 96)
    theirs = peer(images, output_hidden_states=True)
    torch.testing.assert_close(model(images), theirs.pooler_output, rtol=1e-5, atol=1e-5)
    embedding = model.encode(images, keep=("embedding",)).kept["embedding"]
    torch.testing.assert_close(embedding, theirs.hidden_states[0], rtol=1e-5, atol=1e-5)
    assert model.block_index("pre_norm.weight") == 0


@torch.no_grad()
def test_the_distilled_model_equals_hugging_faces_deit() -> None:
    config = DeiTConfig(
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=100,
        image_size=96,
        num_labels=5,
        layer_norm_eps=1e-6,
    )
    peer = DeiTForImageClassificationWithTeacher(config).eval()
    fill_randomly(peer)
    sizes = {"width": 48, "depth": 2, "num_heads": 4, "mlp_dim": 100, "image_size": 96, "num_classes": 5}
    model = load_peer_weights(build_model("ViT-B/16", distillation_token=True, gelu="erf", **sizes), peer)
    images = torch.randn(2, 3, 96, 96)
    torch.testing.assert_close(model(images), peer(images).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mlp", ["gelu", "swiglu"])
@torch.no_grad()
def test_registers_layer_scale_and_swiglu_equal_hugging_faces_dinov2(mlp: str) -> None:
    config = Dinov2WithRegistersConfig(
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        mlp_ratio=4,
        use_swiglu_ffn=mlp == "swiglu",
        image_size=98,
        patch_size=14,
        num_register_tokens=3,
        num_labels=0,
    )
    peer = Dinov2WithRegistersForImageClassification(config).eval()
    fill_randomly(peer)
    mlp_dim = 128 if mlp == "swiglu" else 192
    model = build_model(
        "ViT-B/14",
        width=48,
        depth=2,
        num_heads=4,
        mlp_dim=mlp_dim,
        mlp=mlp,
        image_size=98,
        num_classes=0,
        num_registers=3,
        layer_scale=1.0,
        gelu="erf",
    )
    load_peer_weights(model, peer)
    images = torch.randn(2, 3, 98, 98)
    expected = peer.base_model(images).last_hidden_state
    torch.testing.assert_close(model.encode(images).tokens, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model(images), expected[:, 0], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_gelu_kind_and_epsilon_are_not_ignored(images: Tensor) -> None:
    logits = [build_filled("ViT-B/16", **SIZES, **changes)(images) for changes in ({}, {"gelu": "erf"}, {"norm_eps": 1e-2})]
    assert not torch.allclose(logits[0], logits[1], rtol=0, atol=1e-6)
    assert not torch.allclose(logits[0], logits[2], rtol=0, atol=1e-6)


@torch.no_grad()
def test_hidden_states_and_attention_equal_hugging_face(images: Tensor) -> None:
    peer = build_peer(attn_implementation="eager")
    model = load_peer_weights(build_model("ViT-B/16", gelu="erf", **SIZES), peer)
    theirs = peer(images, output_attentions=True, output_hidden_states=True)
    kept = model.encode(images, keep=("embedding", "blocks.*")).kept
    outputs = [kept["embedding"], *(kept[f"blocks.{index}.output"] for index in range(3))]
    for ours, expected in zip(outputs[:3], theirs.hidden_states[:3], strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
    for index, expected in enumerate(theirs.attentions):
        torch.testing.assert_close(kept[f"blocks.{index}.attention"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("pool", ["class", "mean", "map"])
@torch.no_grad()
def test_pools_read_class_token_mean_or_attention(pool: str, images: Tensor) -> None:
    model = build_filled("ViT-B/16", pool=pool, class_token=True, num_registers=2, **SIZES)
    encoded = model.encode(images)
    assert encoded.tokens.shape == (2, 1 + 2 + 42, 96)
    features = model.pool(encoded)
    if pool == "class":
        torch.testing.assert_close(features, encoded.tokens[:, 0])
    elif pool == "mean":
        torch.testing.assert_close(features, encoded.tokens[:, 3:].mean(dim=1))
    else:
        torch.testing.assert_close(features, model.attention_pool(encoded.tokens[:, 3:]))


@torch.no_grad()
def test_the_first_patch_is_read_by_its_pool(images: Tensor) -> None:
    model = build_filled("ViT-B/16", pool="first", num_registers=2, **SIZES)
    encoded = model.encode(images)
    torch.testing.assert_close(model(images), encoded.tokens[:, 2] @ model.head.weight.T + model.head.bias)


@torch.no_grad()
def test_positions_of_registers_are_added_to_the_registers(images: Tensor) -> None:
    model = build_filled("ViT-B/16", num_registers=2, register_position=True, **SIZES)
    folded = build_filled("ViT-B/16", num_registers=2, **SIZES)
    state = model.state_dict()
    table = state["positions.0.table"]
    assert table.shape == (1 + 2 + 42, 96)
    folded.load_state_dict(
        state | {"positions.0.table": torch.cat([table[:1], table[3:]])} | {"registers": state["registers"] + table[1:3]}
    )
    torch.testing.assert_close(model(images), folded(images), rtol=0, atol=0)


@torch.no_grad()
def test_norm_after_pool_normalises_the_mean(images: Tensor) -> None:
    before = build_filled("ViT-B/16", pool="mean", **SIZES)
    after = build_filled("ViT-B/16", pool="mean", norm_after_pool=True, **SIZES)
    after.load_state_dict(before.state_dict())
    last = before.encode(images, keep=("blocks.2.output",)).kept["blocks.2.output"]
    torch.testing.assert_close(before.pool(before.encode(images)), before.norm(last).mean(dim=1))
    torch.testing.assert_close(after.pool(after.encode(images)), before.norm(last.mean(dim=1)))


@torch.no_grad()
def test_the_hidden_head_is_a_layer_and_tanh_and_goes_with_the_head(images: Tensor) -> None:
    model = build_filled("ViT-B/16", hidden_head=True, **SIZES)
    encoded = model.encode(images)
    dense = model.hidden_head.dense
    expected = torch.tanh(encoded.tokens[:, 0] @ dense.weight.T + dense.bias)
    torch.testing.assert_close(model.pool(encoded), expected)
    model.reset_head(4)
    assert model.config.hidden_head is False
    assert not any(name.startswith("hidden_head") for name in model.state_dict())
    torch.testing.assert_close(model.pool(encoded), encoded.tokens[:, 0])


@torch.no_grad()
def test_the_hidden_head_may_have_another_width(images: Tensor) -> None:
    model = build_filled("ViT-B/16", hidden_head=True, hidden_head_dim=50, **SIZES)
    encoded = model.encode(images)
    dense = model.hidden_head.dense
    hidden = torch.tanh(encoded.tokens[:, 0] @ dense.weight.T + dense.bias)
    assert model.config.feature_dim == hidden.shape[1] == 50
    torch.testing.assert_close(model(images), hidden @ model.head.weight.T + model.head.bias)
    model.reset_head(4)
    assert model.config.hidden_head_dim is None
    assert model(images).shape == (2, 4)


@torch.no_grad()
def test_the_distilled_model_averages_two_heads(images: Tensor) -> None:
    model = build_filled("ViT-B/16", distillation_token=True, **SIZES)
    encoded = model.encode(images)
    assert encoded.tokens.shape[1] == 44
    assert model.positions[0].table.shape == (44, 96)
    from_class, from_distillation = model.forward_heads(encoded)
    torch.testing.assert_close(from_class, model.head(encoded.tokens[:, 0]))
    torch.testing.assert_close(from_distillation, model.head_distillation(encoded.tokens[:, 1]))
    torch.testing.assert_close(model(images), (from_class + from_distillation) / 2)
    model.reset_head(2)
    assert torch.equal(model(images), torch.zeros(2, 2))


@torch.no_grad()
def test_pixels_beyond_the_last_patch_are_dropped() -> None:
    model = build_filled("ViT-Ti/14", depth=1, image_size=(45, 30), num_classes=3)
    assert model.config.grid == (3, 2)
    image = torch.randn(1, 3, 45, 30)
    changed = image.clone()
    changed[:, :, 42:, :] = 9.0
    changed[:, :, :, 28:] = 9.0
    assert torch.equal(model(image), model(changed))
    changed[:, :, 41, 27] = 9.0
    assert not torch.equal(model(image), model(changed))


def test_384_pixels_with_patches_of_14_give_27_by_27() -> None:
    with torch.device("meta"):
        model = build_model("ViT-H/14", image_size=384, depth=1)
    assert model.config.grid == (27, 27)
    assert model.positions[0].table.shape == (27 * 27 + 1, 1280)


@torch.no_grad()
def test_any_number_of_channels() -> None:
    for name in ("ViT-Ti/16", "R26x0.25", "R+ViT-Ti/16"):
        model = build_filled(name, num_channels=5, image_size=64, num_classes=2)
        assert model(torch.randn(1, 5, 64, 64)).shape == (1, 2)


def test_checkpointing_gives_the_same_gradients() -> None:
    for name in ("ViT-Ti/16", "R26x0.25", "R+ViT-Ti/16", "Axial-ViT-B/32"):
        changes = {} if name.startswith("R26") else {"depth": 2}
        gradients = []
        for gradient_checkpointing in (False, True):
            model = build_filled(name, image_size=64, num_classes=3, gradient_checkpointing=gradient_checkpointing, **changes)
            model.train()
            model(torch.ones(1, 3, 64, 64)).square().sum().backward()
            gradients.append([parameter.grad for parameter in model.parameters()])
        for plain, checkpointed in zip(*gradients, strict=True):
            torch.testing.assert_close(checkpointed, plain)


def test_dropout_and_stochastic_depth_act_in_training_only() -> None:
    for changes in ({"dropout_rate": 0.5}, {"stochastic_depth_rate": 0.9}):
        model = build_filled("ViT-Ti/16", depth=3, image_size=64, num_classes=3, **changes)
        image = torch.randn(4, 3, 64, 64)
        with torch.no_grad():
            assert torch.equal(model(image), model(image))
            model.train()
            assert not torch.equal(model(image), model(image))


@torch.no_grad()
def test_tokens_are_dropped_after_positions_were_added() -> None:
    """As in vit_jax: what the first block gets is 0, or the sum of patches and positions divided by the kept fraction."""
    model = build_filled("ViT-Ti/16", depth=1, image_size=64, num_classes=3, dropout_rate=0.25)
    image = torch.randn(4, 3, 64, 64)
    plain = model.encode(image, keep=("embedding",)).kept["embedding"]
    tokens = model.train().encode(image, keep=("embedding",)).kept["embedding"]
    dropped = tokens == 0
    assert dropped.float().mean().item() == pytest.approx(0.25, abs=0.02)
    torch.testing.assert_close(tokens[~dropped], plain[~dropped] / 0.75)


@torch.no_grad()
def test_heads_start_from_zero_or_the_given_bias(images: Tensor) -> None:
    assert torch.equal(build_model("ViT-B/16", **SIZES).eval()(images), torch.zeros(2, 7))
    assert torch.equal(build_model("ViT-B/16", head_bias=-10.0, **SIZES).eval()(images), torch.full((2, 7), -10.0))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_registers": 2, "readout": "both"},
        {"pool": "mean"},
        {"pool": "mean", "norm_after_pool": True, "class_token": True, "readout": "both"},
        {"position_insertion": "every-layer", "readout": "mean"},
    ],
)
@torch.no_grad()
def test_readout_concatenates_normed_layers(changes: dict[str, Any], images: Tensor) -> None:
    model = build_filled("ViT-B/16", readout_layers=(0, 2), **SIZES, **changes)
    encoded = model.encode(images, keep=("blocks.*.output",))
    first = model.config.num_prefix_tokens
    readout = changes.get("readout", changes.get("pool", "class"))
    expected = []
    for index in (0, 2):
        tokens = encoded.kept[f"blocks.{index}.output"]
        if readout in ("class", "both"):
            expected.append(model.norm(tokens)[:, 0])
        if readout in ("mean", "both"):
            patches = tokens[:, first:]
            is_after = changes.get("norm_after_pool", False)
            expected.append(model.norm(patches.mean(dim=1)) if is_after else model.norm(patches).mean(dim=1))
    features = model.pool(encoded)
    assert features.shape == (2, model.config.feature_dim)
    torch.testing.assert_close(features, torch.cat(expected, dim=1))
    torch.testing.assert_close(model(images), features @ model.head.weight.T + model.head.bias)
    assert torch.equal(model.encode(images).tokens, encoded.tokens)


@torch.no_grad()
def test_readout_of_the_last_layer_is_the_pool_and_resizes(images: Tensor) -> None:
    plain = build_filled("ViT-B/16", **SIZES)
    read = build_filled("ViT-B/16", readout_layers=(2,), **SIZES)
    read.load_state_dict(plain.state_dict())
    torch.testing.assert_close(read(images), plain(images))
    read.resize((64, 64))
    assert read(torch.randn(1, 3, 64, 64)).shape == (1, 7)
    read.reset_head(0)
    assert read.pool(read.encode(torch.randn(1, 3, 64, 64))).shape == (1, 96)


def test_a_new_head_may_read_other_layers_and_drops_the_hidden_layer() -> None:
    model = build_filled("ViT-B/16", hidden_head=True, **SIZES)
    model.reset_head(4, readout_layers=(1, 2), readout="both")
    assert (model.config.hidden_head, model.hidden_head) == (False, None)
    assert model.head.in_features == 4 * 96
    assert build_model(model.config).state_dict().keys() == model.state_dict().keys()
    with pytest.raises(ValueError, match="distillation_token"):
        build_filled("ViT-B/16", distillation_token=True, **SIZES).reset_head(4, readout_layers=(2,))
