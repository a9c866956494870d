"""What a model first does to pixels (arXiv:2010.11929, figure 7 left). Shapes: K filters of P x P pixels, C channels."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrine.models.config import HybridConfig, ResNetConfig
from vitrine.models.model import Model

NUM_COMPONENTS = 28  # as many as the paper shows


@dataclass(frozen=True)
class Filters:
    values: np.ndarray
    """float32 (K, P, P, C), as they are: weights of either sign."""
    shares: np.ndarray | None
    """(K): of the variance of all filters, that of each component; None for a ResNet's root, shown as it is."""

    @property
    def pictures(self) -> np.ndarray:
        """Each from its least to its largest value as 0 to 1."""
        low = self.values.min(axis=(1, 2, 3), keepdims=True)
        span = self.values.max(axis=(1, 2, 3), keepdims=True) - low
        return (self.values - low) / np.where(span > 0, span, 1)


def compute_filters(model: Model[Any], num_components: int = NUM_COMPONENTS) -> Filters:
    """The principal components of a ViT's patch embedding, or the first convolution of a ResNet or a hybrid."""
    if isinstance(model.config, ResNetConfig | HybridConfig):
        kernel = model.get_parameter("root.conv.weight" if isinstance(model.config, ResNetConfig) else "stem.root.conv.weight")
        return Filters(to_pictures(kernel.detach().float()), None)
    kernel = model.get_parameter("patches.projection.weight").detach().double()  # (D, C * P * P)
    _, lengths, components = torch.linalg.svd(kernel - kernel.mean(dim=0), full_matrices=False)
    shares = lengths.square() / lengths.square().sum().clamp(min=torch.finfo(torch.float64).tiny)
    side = model.config.patch_size
    chosen = components[:num_components].unflatten(1, (-1, side, side))
    sign = (
        chosen.flatten(1).gather(1, chosen.flatten(1).abs().argmax(dim=1, keepdim=True)).sign()
    )  # a component has none of its own
    return Filters(to_pictures((chosen * sign[:, :, None, None]).float()), shares[:num_components].cpu().numpy())


def to_pictures(kernels: Tensor) -> np.ndarray:
    """(K, C, P, P) -> (K, P, P, C)."""
    return kernels.permute(0, 2, 3, 1).cpu().numpy()
