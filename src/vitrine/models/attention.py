"""Multi-head self-attention (arXiv:2010.11929, appendix A).

Shapes: B batch, T tokens, D width, H heads, K = D // H.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrine.models.intermediates import IntermediateRecorder
from vitrine.models.positions import RelativePositions
from vitrine.models.weight_init import init_xavier_uniform

# Up to this number of tokens, plain products are faster on CPUs than the fused kernel, above all in the backward pass
# (docs/log.md). A row of the attention map then has at most this many entries, so memory stays linear in the tokens.
FEW_TOKENS = 32


class SelfAttention(nn.Module):
    """Multi-head self-attention with packed queries, keys and values, optionally with relative positions."""

    def __init__(self, width: int, num_heads: int, relative: RelativePositions | None = None, qkv_bias: bool = True) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(width, 3 * width, bias=qkv_bias)
        self.out = nn.Linear(width, width)
        self.relative = relative
        init_xavier_uniform(self.qkv, num_packed=3)
        init_xavier_uniform(self.out)

    def forward(self, x: Tensor, recorder: IntermediateRecorder | None = None) -> Tensor:
        """Attend among tokens (B, T, D); attention maps are computed only if the recorder wants them."""
        b, t, d = x.shape
        qkv = self.qkv(x).view(b, t, 3, self.num_heads, d // self.num_heads).permute(2, 0, 3, 1, 4)  # (3, B, H, T, K)
        bias = None if self.relative is None else self.relative(qkv[0])  # (B, H, T, T)
        if recorder is not None and recorder.wants("attention"):
            recorder("attention", compute_attention_maps(qkv[0], qkv[1], bias))
        if bias is None and t <= FEW_TOKENS and x.device.type == "cpu":
            y = attend_few(*qkv.flatten(1, 2)).unflatten(0, (b, self.num_heads))
        else:
            y = F.scaled_dot_product_attention(*qkv, attn_mask=bias)  # scales by K ** -0.5, eq. 6
        return self.out(y.transpose(1, 2).reshape(b, t, d))  # eq. 8

    def resize(self, grid: tuple[int, int]) -> None:
        if self.relative is not None:
            self.relative.resize(grid)


class ProbeAttention(nn.Module):
    """Attention of one learned query over the tokens, as in the MAP head (big_vision's `MAPHead`)."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.probe = nn.Parameter(torch.empty(1, width))
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        nn.init.xavier_uniform_(self.probe)
        init_xavier_uniform(self.query)
        init_xavier_uniform(self.key_value, num_packed=2)
        init_xavier_uniform(self.out)

    def forward(self, x: Tensor) -> Tensor:
        """Pool tokens (B, T, D) to (B, D) by the attention of the learned query."""
        b, t, d = x.shape
        heads = (self.num_heads, d // self.num_heads)
        q = self.query(self.probe).view(1, 1, *heads).transpose(1, 2).expand(b, -1, -1, -1)  # (B, H, 1, K)
        k, v = self.key_value(x).view(b, t, 2, *heads).permute(2, 0, 3, 1, 4)  # (B, H, T, K)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.reshape(b, d))


def attend_few(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute attention of (B * H, T, K) by plain products, which is faster for few tokens on CPUs."""
    return torch.bmm(torch.bmm(q * q.shape[-1] ** -0.5, k.mT).softmax(dim=-1), v)


def compute_attention_maps(q: Tensor, k: Tensor, bias: Tensor | None) -> Tensor:
    """Compute attention maps (B, H, T, T): the weight of each query (third axis) on each key (last axis), eq. 6."""
    logits = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    return (logits if bias is None else logits + bias).softmax(dim=-1)
