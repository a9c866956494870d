"""Mean attention distance (arXiv:2010.11929, figures 7 and 11): how far, in pixels, each head of each layer attends.

Shapes: B images, H heads, L layers, T tokens (prefix and patches), N patches.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrine.engines.engine import stream_attention
from vitrine.inspection.attention import check_full_grid, count_layers
from vitrine.models.config import HybridConfig, ViTConfig
from vitrine.models.model import Model
from vitrine.models.patches import compute_stride


@dataclass(frozen=True)
class Distances:
    """Mean attention distance of each head in pixels, float64 (L, H) each."""

    among_patches: np.ndarray
    """Distances with the attention among patches normalised to sum to 1."""
    over_all_tokens: np.ndarray
    """Without that: attention to the class token and registers counts as distance 0, as in published figures."""
    num_images: int


def compute_grid_distances(grid: tuple[int, int], stride: int) -> Tensor:
    """Return the distances in pixels between the centres of all patches, float32 (N, N)."""
    rows, columns = grid
    centres = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).double() * stride
    return torch.cdist(centres, centres, compute_mode="donot_use_mm_for_euclid_dist").float()


class DistanceMeter:
    """Running sums of the attention distance over images, fed one layer at a time."""

    def __init__(self, config: ViTConfig, num_layers: int) -> None:
        self.config = config
        stride = compute_stride(config.patch_size, config.stem_stages if isinstance(config, HybridConfig) else None)
        self.pixels = compute_grid_distances(config.grid, stride)
        self.sums = torch.zeros(2, num_layers, config.num_heads, dtype=torch.float64)
        self.num_images = 0

    def add(self, layer: int, maps: Tensor) -> None:
        """Add one layer's attention maps (B, H, T, T)."""
        check_full_grid(maps, self.config)
        first = self.config.num_prefix_tokens
        patches = maps[..., first:, first:]  # (B, H, N, N)
        distances = torch.einsum("bhqk,qk->bhq", patches, self.pixels.to(maps))
        weights = patches.sum(dim=-1)  # below 1 where other tokens are attended to
        among = (distances / weights.clamp(min=torch.finfo(weights.dtype).tiny)).mean(dim=-1)
        means = torch.stack([among, distances.mean(dim=-1)])  # (2, B, H)
        self.sums[:, layer] += means.cpu().double().sum(dim=1)  # some devices have no float64
        self.num_images += len(maps) if layer == 0 else 0

    def compute(self) -> Distances:
        """Return the means over all images so far."""
        among_patches, over_all_tokens = (self.sums / max(1, self.num_images)).numpy()
        return Distances(among_patches, over_all_tokens, self.num_images)


def measure_distances(model: Model[Any], batches: Iterable[Tensor]) -> Distances:
    """Return the mean attention distance over batches of normalised images; the paper uses 128 images."""
    meter = DistanceMeter(model.config, count_layers(model))
    for images in batches:
        stream_attention(model, images, meter.add)
    return meter.compute()
