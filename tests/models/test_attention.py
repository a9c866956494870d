"""Attention against its formula, and the pooling attention against torch's own layer."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.filling import fill_randomly
from vitrine.models.attention import FEW_TOKENS, ProbeAttention, SelfAttention, attend_few
from vitrine.models.intermediates import IntermediateRecorder


@pytest.mark.parametrize("num_tokens", [1, FEW_TOKENS, FEW_TOKENS + 1, 100])
@torch.no_grad()
def test_kept_maps_and_output_follow_the_formula(num_tokens: int) -> None:
    attention = SelfAttention(48, 4).eval()
    fill_randomly(attention)
    x = torch.randn(2, num_tokens, 48)
    recorder = IntermediateRecorder(("attention",), None)
    y = attention(x, recorder)
    q, k, v = (part.view(2, num_tokens, 4, 12).transpose(1, 2) for part in attention.qkv(x).chunk(3, dim=-1))
    maps = torch.softmax(q @ k.transpose(-2, -1) / 12**0.5, dim=-1)
    torch.testing.assert_close(recorder.kept["attention"], maps, rtol=0, atol=1e-6)
    torch.testing.assert_close(y, attention.out((maps @ v).transpose(1, 2).reshape(2, num_tokens, 48)))
    assert torch.equal(y, attention(x))


def test_few_tokens_have_the_gradients_of_fused_attention() -> None:
    q, k, v = (torch.randn(6, 9, 12, requires_grad=True) for _ in range(3))
    gradients = [
        torch.autograd.grad(attend(q, k, v).square().sum(), (q, k, v))
        for attend in (attend_few, F.scaled_dot_product_attention)
    ]
    for few, fused in zip(*gradients, strict=True):
        torch.testing.assert_close(few, fused)


@torch.no_grad()
def test_the_probe_equals_torchs_attention_with_one_query() -> None:
    attention = ProbeAttention(48, 4).eval()
    fill_randomly(attention)
    peer = nn.MultiheadAttention(48, 4, batch_first=True).eval()
    peer.in_proj_weight.copy_(torch.cat([attention.query.weight, attention.key_value.weight]))
    peer.in_proj_bias.copy_(torch.cat([attention.query.bias, attention.key_value.bias]))
    peer.out_proj.load_state_dict(attention.out.state_dict())
    x = torch.randn(3, 9, 48)
    expected, _ = peer(attention.probe.expand(3, 1, 48), x, x)
    torch.testing.assert_close(attention(x), expected[:, 0])


def test_memory_of_plain_attention_grows_with_tokens_not_their_square() -> None:
    attention = SelfAttention(64, 4)
    largest: list[int] = []
    for tokens in (256, 1024):
        saved: list[int] = []

        def pack(tensor: torch.Tensor, saved: list[int] = saved) -> torch.Tensor:
            saved.append(tensor.untyped_storage().nbytes())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            attention(torch.randn(1, tokens, 64, requires_grad=True))
        largest.append(max(saved))
    assert largest[1] == 4 * largest[0]
