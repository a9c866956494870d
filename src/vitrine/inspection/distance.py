"""Mean attention distance (arXiv:2010.11929, figures 7 and 11): how far, in pixels, each head of each layer looks.

Shapes: B images, H heads, L layers, T tokens (prefix and patches), N patches.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrine.inspection.attention import compute_stride, count_layers, stream_attention
from vitrine.models.config import ViTConfig
from vitrine.models.model import Model


@dataclass(frozen=True)
class Distances:
    """Pixels, float64 (L, H) each."""

    among_patches: np.ndarray
    """Of what patches read from patches, made to add up to 1."""
    as_they_are: np.ndarray
    """The same without that: what goes to the class token and to registers counts as no distance, as in published figures."""
    num_images: int


def compute_grid_distances(grid: tuple[int, int], stride: int) -> Tensor:
    """float32 (N, N): pixels between the centres of any two patches."""
    rows, columns = grid
    places = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).double() * stride
    return torch.cdist(places, places, compute_mode="donot_use_mm_for_euclid_dist").float()


class DistanceMeter:
    """Sums over images, layer after layer."""

    def __init__(self, config: ViTConfig, num_layers: int) -> None:
        self.first = config.num_prefix_tokens
        self.pixels = compute_grid_distances(config.grid, compute_stride(config))
        self.sums = torch.zeros(2, num_layers, config.num_heads, dtype=torch.float64)
        self.num_images = 0

    def add(self, layer: int, maps: Tensor) -> None:
        patches = maps[..., self.first :, self.first :]  # (B, H, N, N)
        distances = torch.einsum("bhqk,qk->bhq", patches, self.pixels.to(maps))
        shares = patches.sum(dim=-1)  # less than 1 where other tokens are read too
        among = (distances / shares.clamp(min=torch.finfo(shares.dtype).tiny)).mean(dim=-1)
        self.sums[:, layer] += torch.stack([among, distances.mean(dim=-1)]).double().sum(dim=1).cpu()
        self.num_images += len(maps) if layer == 0 else 0

    def finish(self) -> Distances:
        among, as_they_are = (self.sums / max(1, self.num_images)).numpy()
        return Distances(among, as_they_are, self.num_images)


def measure_distances(model: Model[Any], batches: Iterable[Tensor]) -> Distances:
    """Over batches of normalised images; the paper takes 128 images."""
    meter = DistanceMeter(model.config, count_layers(model))
    for images in batches:
        stream_attention(model, images, meter.add)
    return meter.finish()
