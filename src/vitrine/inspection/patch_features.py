"""What a model has made of each patch: its features as colours, and how large they are.

Shapes: B images, R rows and S columns of patches, N = R * S, D width.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrine.models.model import Model

OUTLIER_FACTOR = 2.0  # times the median norm: those of arXiv:2309.16588 have far more, most patches far less
CLIPPED_SHARE = 0.01  # of the values at either end, so that a few extreme patches do not leave all others grey


@dataclass(frozen=True)
class PatchFeatures:
    colours: np.ndarray
    """float32 (B, R, S, 3) in 0..1: the first three principal components of all patches of all images."""
    shares: np.ndarray
    """(3): of the variance, that of each component."""
    norms: np.ndarray
    """float32 (B, R, S): lengths of the tokens after the last block, before the last norm makes them alike."""
    outliers: np.ndarray
    """bool (B, R, S): patches of far larger norm than most, which have come to hold what belongs to the whole image."""


@torch.no_grad()
def encode_patches(model: Model[Any], images: Tensor) -> tuple[Tensor, Tensor]:
    """Of normalised images: features (B, R, S, D) as the head gets them, and norms (B, R, S) of the last block's output."""
    last = [name for name in model.intermediates if name.endswith(".output")][-1]
    encoded = model.encode(images, keep=(last,))
    output = encoded.kept[last]
    if output.ndim == 4:  # a ResNet's map (B, D, R, S)
        norms = output.norm(dim=1)
    else:
        rows, columns = encoded.grid
        norms = output[:, output.shape[1] - rows * columns :].norm(dim=2).unflatten(1, encoded.grid)
    return encoded.patches.unflatten(1, encoded.grid), norms


def describe_patches(features: Tensor, norms: Tensor) -> PatchFeatures:
    """From what `encode_patches` gave, of all images together."""
    values = features.flatten(0, 2).double()
    _, lengths, components = torch.linalg.svd(values - values.mean(dim=0), full_matrices=False)
    projected = (values - values.mean(dim=0)) @ components[:3].T  # (B * N, up to 3)
    low, high = (projected.quantile(share, dim=0) for share in (CLIPPED_SHARE, 1 - CLIPPED_SHARE))
    colours = ((projected - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)
    colours = torch.nn.functional.pad(colours, (0, 3 - colours.shape[1]), value=0.5)  # where there are fewer than three
    shares = lengths.square() / lengths.square().sum().clamp(min=torch.finfo(torch.float64).tiny)
    outliers = norms > OUTLIER_FACTOR * norms.median()
    return PatchFeatures(
        colours.float().unflatten(0, features.shape[:3]).cpu().numpy(),
        shares[:3].cpu().numpy(),
        norms.cpu().numpy(),
        outliers.cpu().numpy(),
    )


def compute_patch_features(model: Model[Any], images: Tensor) -> PatchFeatures:
    return describe_patches(*encode_patches(model, images))
