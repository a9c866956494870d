"""The encoder block and its parts (arXiv:2010.11929, section 3.1).

Shapes: B batch, T tokens, D width, M MLP width.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrine.models.attention import SelfAttention
from vitrine.models.config import Gelu, ViTConfig
from vitrine.models.intermediates import IntermediateRecorder
from vitrine.models.positions import RelativePositions
from vitrine.models.weight_init import init_xavier_uniform


class EncoderBlock(nn.Module):
    """Pre-norm residual block: attention (eq. 2), then MLP (eq. 3)."""

    intermediates = ("attention", "output")

    def __init__(self, config: ViTConfig, index: int, attention: SelfAttention | None = None) -> None:
        super().__init__()
        self.norm_attention = build_norm(config)
        self.attention = build_attention(config) if attention is None else attention
        self.branch_attention = ResidualBranch(config, index)
        self.norm_mlp = build_norm(config)
        self.mlp = build_mlp(config)
        self.branch_mlp = ResidualBranch(config, index)

    def forward(self, x: Tensor, recorder: IntermediateRecorder | None = None) -> Tensor:
        """Run attention and MLP with residual connections, as in eqs. 2 and 3."""
        x = x + self.branch_attention(self.attention(self.norm_attention(x), recorder))  # eq. 2
        x = x + self.branch_mlp(self.mlp(self.norm_mlp(x)))  # eq. 3
        if recorder is not None:
            recorder("output", x)
        return x

    def resize(self, grid: tuple[int, int]) -> None:
        self.attention.resize(grid)


class Mlp(nn.Module):
    """Two linear layers with a GELU between them."""

    def __init__(self, width: int, mlp_dim: int, gelu: Gelu, dropout_rate: float) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, mlp_dim)
        self.gelu = QuickGelu() if gelu == "quick" else nn.GELU(approximate="tanh" if gelu == "tanh" else "none")
        self.dropout = nn.Dropout(dropout_rate)
        self.out = nn.Linear(mlp_dim, width)
        init_xavier_uniform(self.hidden, bias_std=1e-6)
        init_xavier_uniform(self.out, bias_std=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.dropout(self.gelu(self.hidden(x))))


class QuickGelu(nn.Module):
    """x * sigmoid(1.702 x), the approximation of GELU that OpenAI's CLIP was trained with."""

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(1.702 * x) / 1.702  # one kernel, which saves one tensor for the backward pass


class SwiGlu(nn.Module):
    """The gated MLP of arXiv:2002.05202, gate first as in DINOv2's weights."""

    def __init__(self, width: int, mlp_dim: int, dropout_rate: float) -> None:
        super().__init__()
        self.gate_hidden = nn.Linear(width, 2 * mlp_dim)
        self.dropout = nn.Dropout(dropout_rate)
        self.out = nn.Linear(mlp_dim, width)
        init_xavier_uniform(self.gate_hidden, num_packed=2, bias_std=1e-6)
        init_xavier_uniform(self.out, bias_std=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        gate, hidden = self.gate_hidden(x).chunk(2, dim=-1)
        return self.out(self.dropout(F.silu(gate) * hidden))


class ResidualBranch(nn.Module):
    """Dropout, LayerScale and stochastic depth of a residual branch, applied before it is added."""

    def __init__(self, config: ViTConfig, index: int) -> None:
        super().__init__()
        self.dropout_rate = config.dropout_rate
        self.skip_rate = config.stochastic_depth_rate * index / max(1, config.depth - 1)
        self.scale: nn.Parameter | None = None
        if config.layer_scale is not None:
            self.scale = nn.Parameter(torch.full((config.width,), float(config.layer_scale)))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the branch to normalised tokens, with dropout, scale and stochastic depth."""
        if self.training and self.dropout_rate > 0:
            x = F.dropout(x, self.dropout_rate)
        if self.scale is not None:
            x = x * self.scale
        if self.training and self.skip_rate > 0:
            kept = torch.rand(x.shape[0], 1, 1, device=x.device) >= self.skip_rate
            x = x * (kept.to(x.dtype) / (1 - self.skip_rate))  # keeps the mean
        return x


class LayerNorm(nn.LayerNorm):
    """torch's LayerNorm, which also takes float32 tokens when its own parameters are in half precision, as with FSDP2."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalise tokens (.., D) in the more precise of the two types."""
        dtype = torch.promote_types(input.dtype, self.weight.dtype)
        return F.layer_norm(input, self.normalized_shape, self.weight.to(dtype), self.bias.to(dtype), self.eps)


def build_norm(config: ViTConfig) -> LayerNorm:
    """Build a LayerNorm over the model's width."""
    return LayerNorm(config.width, eps=config.norm_eps)


def build_attention(config: ViTConfig) -> SelfAttention:
    """Build the self-attention of a block, with relative positions if the config has them."""
    relative = RelativePositions(config) if config.position == "relative" else None
    return SelfAttention(config.width, config.num_heads, relative, config.qkv_bias)


def build_mlp(config: ViTConfig) -> Mlp | SwiGlu:
    """Build the MLP of a block or of attention pooling, plain or gated."""
    if config.mlp == "swiglu":
        return SwiGlu(config.width, config.mlp_dim, config.dropout_rate)
    return Mlp(config.width, config.mlp_dim, config.gelu, config.dropout_rate)
