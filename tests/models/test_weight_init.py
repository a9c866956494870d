"""Fresh weights: measured distributions against the initialisers of the released code."""

import math

import pytest
import torch
from torch import Tensor, nn

from vitrine.models.registry import build_model

WIDTH, MLP_DIM = 768, 3072


@pytest.fixture(scope="module")
def state() -> dict[str, Tensor]:
    torch.manual_seed(0)
    model = build_model("ViT-B/16", depth=1, hidden_head=True, pool="class", num_registers=1)
    return model.state_dict()


def assert_uniform(weight: Tensor, bound: float) -> None:
    assert weight.abs().max().item() <= bound
    assert weight.abs().max().item() > 0.99 * bound
    assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.01)
    assert weight.mean().abs().item() < 0.01 * bound


def test_each_of_q_k_v_is_xavier_as_if_apart(state: dict[str, Tensor]) -> None:
    for matrix in state["blocks.0.attention.qkv.weight"].chunk(3):
        assert_uniform(matrix, math.sqrt(3 / WIDTH))
    assert_uniform(state["blocks.0.attention.out.weight"], math.sqrt(3 / WIDTH))
    assert not state["blocks.0.attention.qkv.bias"].any()
    assert not state["blocks.0.attention.out.bias"].any()


def test_mlp_is_xavier_with_tiny_biases(state: dict[str, Tensor]) -> None:
    for part in ("hidden", "out"):
        assert_uniform(state[f"blocks.0.mlp.{part}.weight"], math.sqrt(6 / (WIDTH + MLP_DIM)))
        assert state[f"blocks.0.mlp.{part}.bias"].std().item() == pytest.approx(1e-6, rel=0.1)


def test_patches_and_hidden_head_are_lecun_normal(state: dict[str, Tensor]) -> None:
    for name, fan_in in (("patches.projection", 16 * 16 * 3), ("hidden_head.dense", WIDTH)):
        weight, std = state[f"{name}.weight"], math.sqrt(1 / fan_in)
        assert weight.std().item() == pytest.approx(std, rel=0.01)
        # Truncated at two deviations of the normal before correction.
        assert weight.abs().max().item() == pytest.approx(2 * std / 0.87962566, rel=0.01)
        assert not state[f"{name}.bias"].any()


def test_tokens_positions_norms_and_head(state: dict[str, Tensor]) -> None:
    assert not state["class_token"].any()
    assert state["positions.0.table"].std().item() == pytest.approx(0.02, rel=0.02)
    assert state["registers"].std().item() == pytest.approx(0.02, rel=0.1)
    assert not state["head.weight"].any()
    assert not state["head.bias"].any()
    for name in ("norm", "blocks.0.norm_attention", "blocks.0.norm_mlp"):
        assert torch.equal(state[f"{name}.weight"], torch.ones(WIDTH))
        assert not state[f"{name}.bias"].any()


def test_the_probe_is_xavier() -> None:
    torch.manual_seed(0)
    model = build_model("ViT-B/16", depth=1, pool="map")
    attention = model.attention_pool.attention
    assert_uniform(attention.query.weight, math.sqrt(3 / WIDTH))
    for matrix in attention.key_value.weight.chunk(2):
        assert_uniform(matrix, math.sqrt(3 / WIDTH))
    assert attention.probe.abs().max().item() == pytest.approx(math.sqrt(6 / (1 + WIDTH)), rel=0.02)


def test_residual_units_of_the_stem_start_as_their_shortcut() -> None:
    model = build_model("R26+ViT-S/32", depth=1, stem_width_factor=0.25)
    norms = {name: part for name, part in model.stem.named_modules() if isinstance(part, nn.GroupNorm)}
    for name, norm in norms.items():
        assert norm.weight.any().item() is (not name.endswith("norm3"))
    conv = model.stem.blocks[3][1].conv2.weight
    assert conv.std().item() == pytest.approx(math.sqrt(1 / conv[0].numel()), rel=0.03)
