"""The encoder block against torch's own layer, its parts against closed forms."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.filling import fill_randomly
from vitrine.models.blocks import EncoderBlock, Mlp, ResidualBranch, SwiGlu
from vitrine.models.config import ViTConfig


def small_config(**changes: object) -> ViTConfig:
    settings: dict[str, object] = {"width": 48, "depth": 3, "num_heads": 4, "mlp_dim": 100, "image_size": (64, 64)}
    return ViTConfig(**{**settings, **changes})


@torch.no_grad()
def test_the_block_equals_torchs_encoder_layer() -> None:
    block = EncoderBlock(small_config(gelu="erf"), index=0).eval()
    fill_randomly(block)
    layer = nn.TransformerEncoderLayer(
        d_model=48,
        nhead=4,
        dim_feedforward=100,
        dropout=0.0,
        activation="gelu",
        layer_norm_eps=1e-6,
        batch_first=True,
        norm_first=True,
    ).train()  # in eval mode torch takes a fused path of its own
    names = {
        "norm_attention": "norm1",
        "attention.qkv": "self_attn.in_proj",
        "attention.out": "self_attn.out_proj",
        "norm_mlp": "norm2",
        "mlp.hidden": "linear1",
        "mlp.out": "linear2",
    }
    state = {}
    for name, value in block.state_dict().items():
        part, kind = name.rsplit(".", 1)
        state[names[part] + ("_" if part.endswith("qkv") else ".") + kind] = value
    layer.load_state_dict(state)
    x = torch.randn(3, 50, 48)  # enough tokens for fused attention
    torch.testing.assert_close(block(x), layer(x), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_swiglu_is_silu_of_the_gate_times_the_rest() -> None:
    mlp = SwiGlu(8, 12, dropout_rate=0.0)
    fill_randomly(mlp)
    x = torch.randn(5, 8)
    gate, hidden = x @ mlp.gate_hidden.weight[:12].T, x @ mlp.gate_hidden.weight[12:].T
    gate, hidden = gate + mlp.gate_hidden.bias[:12], hidden + mlp.gate_hidden.bias[12:]
    torch.testing.assert_close(mlp(x), (gate * torch.sigmoid(gate) * hidden) @ mlp.out.weight.T + mlp.out.bias)


@torch.no_grad()
def test_dropout_lies_after_the_gelu() -> None:
    mlp = Mlp(8, 4000, "erf", dropout_rate=0.25).train()
    fill_randomly(mlp)
    seen = []
    mlp.out.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    x = torch.randn(1, 8)
    mlp(x)
    activated = F.gelu(mlp.hidden(x))
    dropped = seen[0] == 0
    assert dropped.float().mean().item() == pytest.approx(0.25, abs=0.03)
    torch.testing.assert_close(seen[0][~dropped], activated[~dropped] / 0.75)


def test_dropout_of_a_residual_branch_zeroes_single_values_and_keeps_the_mean() -> None:
    """vit_jax drops the output of both branches before it is added: a block of a known branch adds 0 or its value / 0.75."""
    branch = ResidualBranch(small_config(dropout_rate=0.25), index=1).train()
    x = torch.ones(2, 100, 48)
    y = branch(x)
    dropped = y == 0
    assert dropped.float().mean().item() == pytest.approx(0.25, abs=0.02)
    assert not dropped.all(dim=2).any()  # values, not whole tokens
    torch.testing.assert_close(y[~dropped], x[~dropped] / 0.75)
    assert torch.equal(branch.eval()(x), x)


@torch.no_grad()
@pytest.mark.parametrize("name", ["branch_attention", "branch_mlp"])
def test_a_block_drops_the_output_of_both_branches(name: str) -> None:
    block = EncoderBlock(small_config(dropout_rate=0.5), index=0).train()
    fill_randomly(block)
    calls: list[torch.Tensor] = []
    getattr(block, name).register_forward_hook(lambda module, inputs, output: calls.append(output))
    block(torch.randn(2, 17, 48))
    assert (calls[0] == 0).float().mean().item() == pytest.approx(0.5, abs=0.05)


@torch.no_grad()
def test_layer_scale_multiplies_each_branch() -> None:
    scaled = EncoderBlock(small_config(layer_scale=0.0), index=0)
    x = torch.randn(2, 5, 48)
    assert torch.equal(scaled(x), x)
    assert scaled.branch_mlp.scale is not None
    scaled.branch_mlp.scale.fill_(2.0)
    torch.testing.assert_close(scaled(x), x + 2 * scaled.mlp(scaled.norm_mlp(x)))


@torch.no_grad()
def test_stochastic_depth_drops_whole_images_and_keeps_the_mean() -> None:
    branch = ResidualBranch(small_config(stochastic_depth_rate=0.4), index=2).train()
    torch.manual_seed(0)
    y = branch(torch.ones(20_000, 1, 3))
    kept = y[:, 0, 0] != 0
    assert torch.equal(y, y[:, :1, :1].expand_as(y))
    assert kept.float().mean().item() == pytest.approx(0.6, abs=0.02)
    assert y.mean().item() == pytest.approx(1.0, abs=0.03)


def test_stochastic_depth_grows_linearly_from_zero() -> None:
    config = small_config(stochastic_depth_rate=0.4)
    assert [ResidualBranch(config, index).skip_rate for index in range(3)] == pytest.approx([0.0, 0.2, 0.4])
    assert ResidualBranch(small_config(depth=1, stochastic_depth_rate=0.4), 0).skip_rate == 0.0
