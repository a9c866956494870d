"""Features of the patches: their principal components as colours, and their norms.

Shapes: B images, R rows and S columns of patches, N = R * S, D width.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrine.models.model import Model

OUTLIER_FACTOR = 2.0  # times the median norm; the outliers of arXiv:2309.16588 are far above it, most patches far below
CLIPPED_FRACTION = 0.01  # of the values at either end, so that a few extreme patches do not leave all others grey


@dataclass(frozen=True)
class PatchFeatures:
    """Colours and norms of the patches of some images."""

    colours: np.ndarray
    """float32 (B, R, S, 3) in 0..1: the first three principal components over all patches of all images."""
    explained_variance: np.ndarray
    """(3): fraction of the variance that each component explains."""
    norms: np.ndarray
    """float32 (B, R, S): token norms after the last block, before the final norm."""
    outliers: np.ndarray
    """bool (B, R, S): patches with a far larger norm than most; such tokens hold information about the whole image."""


@torch.no_grad()
def encode_patches(model: Model[Any], images: Tensor) -> tuple[Tensor, Tensor]:
    """Return final patch features (B, R, S, D) of normalised images, and norms (B, R, S) of the last block's output."""
    last = [name for name in model.intermediates if name.endswith(".output")][-1]
    encoded = model.encode(images, keep=(last,))
    features, output = encoded.grid_patches, encoded.kept[last]
    if output.ndim == 4:  # a ResNet's map (B, D, R, S)
        norms = output.norm(dim=1)
    else:
        rows, columns = encoded.grid
        norms = output[:, output.shape[1] - rows * columns :].norm(dim=2).unflatten(1, encoded.grid)
    return features, norms


def summarise_patches(features: Tensor, norms: Tensor) -> PatchFeatures:
    """Compute colours and outliers from the output of `encode_patches`, for all images together."""
    # On the CPU: some devices, such as Apple's, have neither float64 nor this decomposition.
    features, norms = features.cpu(), norms.cpu()
    values = features.flatten(0, 2).double()
    _, lengths, components = torch.linalg.svd(values - values.mean(dim=0), full_matrices=False)
    projected = (values - values.mean(dim=0)) @ components[:3].T  # (B * N, up to 3)
    low, high = (projected.quantile(fraction, dim=0) for fraction in (CLIPPED_FRACTION, 1 - CLIPPED_FRACTION))
    colours = ((projected - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)
    colours = torch.nn.functional.pad(colours, (0, 3 - colours.shape[1]), value=0.5)  # if there are fewer than three
    variance = lengths.square() / lengths.square().sum().clamp(min=torch.finfo(torch.float64).tiny)
    parts = (colours.float().unflatten(0, features.shape[:3]), variance[:3], norms, norms > OUTLIER_FACTOR * norms.median())
    return PatchFeatures(*(each.numpy() for each in parts))


def compute_patch_features(model: Model[Any], images: Tensor) -> PatchFeatures:
    """Return colours and norms of the patches of normalised images."""
    return summarise_patches(*encode_patches(model, images))
