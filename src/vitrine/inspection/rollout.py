"""Attention rollout (arXiv:2005.00928): how much of each input token there is in each output token.

Shapes: B images, H heads, T tokens.
"""

from typing import Any

import torch
from torch import Tensor

from vitrine.inspection.attention import count_layers, stream_attention
from vitrine.inspection.config import RolloutConfig
from vitrine.models.model import Model

FUSIONS = {"mean": torch.mean, "max": torch.amax, "min": torch.amin}
SMALLEST_SUM = 1e-12  # of a row: with `min` over heads, nothing at all may be left of it


class Rollout:
    """The product of all layers so far. Its rows are shares that add up to 1."""

    def __init__(self, config: RolloutConfig) -> None:
        self.config = config
        self.joint: Tensor | None = None
        """(B, T, T), from output to input."""

    def add(self, maps: Tensor) -> None:
        """The next layer's maps (B, H, T, T)."""
        step = mix_heads(maps, self.config)
        self.joint = step if self.joint is None else step @ self.joint


def mix_heads(maps: Tensor, config: RolloutConfig) -> Tensor:
    """One matrix (B, T, T) for each image, whose rows add up to 1."""
    fused = FUSIONS[config.fusion](maps, dim=1)
    num_tokens = fused.shape[-1]
    num_dropped = int(config.dropped_share * num_tokens)  # fewer than all
    if num_dropped > 0:
        weakest = fused.topk(num_dropped, dim=-1, largest=False).indices
        fused = fused.scatter(-1, weakest, 0.0)
    if config.identity:
        fused = fused + torch.eye(num_tokens, dtype=fused.dtype, device=fused.device)
    return fused / fused.sum(dim=-1, keepdim=True).clamp(min=SMALLEST_SUM)


def compute_rollout(model: Model[Any], images: Tensor, config: RolloutConfig | None = None) -> Tensor:
    """Of normalised images: (B, T, T), the share of each input token in each output token."""
    count_layers(model)
    rollout = Rollout(config or RolloutConfig())
    stream_attention(model, images, lambda layer, maps: rollout.add(maps))
    assert rollout.joint is not None
    return rollout.joint
