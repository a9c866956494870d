"""Filters of the first layer (arXiv:2010.11929, figure 7 left). Shapes: K filters of P x P pixels, C channels."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from vitrine.models.config import HybridConfig, ResNetConfig
from vitrine.models.model import Model

NUM_COMPONENTS = 28  # as many as the paper shows


@dataclass(frozen=True)
class Filters:
    """Filters of the first layer, and the variance that each explains."""

    values: np.ndarray
    """float32 (K, P, P, C): raw weights, positive and negative."""
    explained_variance: np.ndarray | None
    """(K): fraction of the variance of all filters; None for the first convolution of a ResNet, which is shown as it is."""

    @property
    def scaled(self) -> np.ndarray:
        """The filters, each scaled from its smallest to its largest value to 0..1, for display."""
        low = self.values.min(axis=(1, 2, 3), keepdims=True)
        span = self.values.max(axis=(1, 2, 3), keepdims=True) - low
        return (self.values - low) / np.where(span > 0, span, 1)


def compute_filters(model: Model[Any], num_components: int = NUM_COMPONENTS) -> Filters:
    """Return the principal components of a ViT's patch embedding, or the first convolution of a ResNet or hybrid."""
    if isinstance(model.config, ResNetConfig | HybridConfig):
        name = "root.conv.weight" if isinstance(model.config, ResNetConfig) else "stem.root.conv.weight"
        kernels = model.get_parameter(name).detach().float()
        return Filters(kernels.permute(0, 2, 3, 1).cpu().numpy(), None)
    # On the CPU: some devices, such as Apple's, have neither float64 nor this decomposition.
    kernel = model.get_parameter("patches.projection.weight").detach().cpu().double()  # (D, C * P * P)
    _, lengths, components = torch.linalg.svd(kernel - kernel.mean(dim=0), full_matrices=False)
    variance = lengths.square() / lengths.square().sum().clamp(min=torch.finfo(torch.float64).tiny)
    side = model.config.patch_size
    chosen = components[:num_components].unflatten(1, (-1, side, side))
    # The sign of a component is arbitrary: make its largest value positive.
    sign = chosen.flatten(1).gather(1, chosen.flatten(1).abs().argmax(dim=1, keepdim=True)).sign()
    kernels = (chosen * sign[:, :, None, None]).float()
    return Filters(kernels.permute(0, 2, 3, 1).numpy(), variance[:num_components].numpy())
