"""Attention rollout (arXiv:2005.00928): how much each input token contributes to each output token.

Shapes: B images, H heads, T tokens.
"""

from typing import Any

import torch
from torch import Tensor

from vitrine.engines.engine import stream_attention
from vitrine.inspection.attention import count_layers
from vitrine.inspection.config import RolloutConfig
from vitrine.models.model import Model

FUSIONS = {"mean": torch.mean, "max": torch.amax, "min": torch.amin}
MIN_ROW_SUM = 1e-12  # with fusion "min", nothing may be left of a row


class Rollout:
    """Product of the attention of all layers so far, fed one layer at a time; rows sum to 1."""

    def __init__(self, config: RolloutConfig) -> None:
        self.config = config
        self.joint: Tensor | None = None
        """(B, T, T), from output token to input token; None before the first layer."""

    def add(self, maps: Tensor) -> None:
        """Multiply by the next layer's attention maps (B, H, T, T)."""
        step = fuse_heads(maps, self.config)
        self.joint = step if self.joint is None else step @ self.joint


def fuse_heads(maps: Tensor, config: RolloutConfig) -> Tensor:
    """Combine the heads of a layer to one matrix (B, T, T) whose rows sum to 1, residual path included."""
    fused = FUSIONS[config.fusion](maps, dim=1)
    num_tokens = fused.shape[-1]
    num_dropped = int(config.dropped_share * num_tokens)  # fewer than all
    if num_dropped > 0:
        weakest = fused.topk(num_dropped, dim=-1, largest=False).indices
        fused = fused.scatter(-1, weakest, 0.0)
    if config.identity:
        fused = fused + torch.eye(num_tokens, dtype=fused.dtype, device=fused.device)
    return fused / fused.sum(dim=-1, keepdim=True).clamp(min=MIN_ROW_SUM)


def compute_rollout(model: Model[Any], images: Tensor, config: RolloutConfig | None = None) -> Tensor:
    """Return the contribution of each input token to each output token, (B, T, T), for normalised images."""
    count_layers(model)
    rollout = Rollout(config or RolloutConfig())
    stream_attention(model, images, lambda layer, maps: rollout.add(maps))
    assert rollout.joint is not None
    return rollout.joint
