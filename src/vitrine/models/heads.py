"""Heads: attention pooling, the hidden layer of pre-training, the linear head.

Shapes: B batch, T tokens, D width.
"""

from torch import Tensor, nn

from vitrine.models.attention import ProbeAttention
from vitrine.models.blocks import build_mlp, build_norm
from vitrine.models.config import ViTConfig
from vitrine.models.weight_init import init_lecun_normal


class AttentionPool(nn.Module):
    """Multi-head attention pooling: a learned probe attends to the tokens, then an MLP with a residual (`MAPHead`)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.attention = ProbeAttention(config.width, config.num_heads)
        self.norm = build_norm(config)
        self.mlp = build_mlp(config)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.attention(tokens)  # (B, D)
        return x + self.mlp(self.norm(x))


class HiddenHead(nn.Module):
    """Hidden layer of the pre-training head (`pre_logits` in the released code), dropped in fine-tuning."""

    def __init__(self, width: int, hidden_dim: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, hidden_dim)
        init_lecun_normal(self.dense)

    def forward(self, features: Tensor) -> Tensor:
        return self.dense(features).tanh()


def build_linear_head(feature_dim: int, num_classes: int, bias: float) -> nn.Module:
    """Build a linear layer with zero weights and a constant bias; identity if there are no classes."""
    if num_classes == 0:
        return nn.Identity()
    head = nn.Linear(feature_dim, num_classes)
    nn.init.zeros_(head.weight)
    nn.init.constant_(head.bias, bias)
    return head
