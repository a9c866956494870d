"""Cosine similarity of position embeddings (arXiv:2010.11929, figures 7 and 10).

Shapes: R rows and S columns of patches, N = R * S, D width.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vitrine.models.model import Model
from vitrine.models.positions import AddedPositions, RelativePositions


@dataclass(frozen=True)
class Similarities:
    """Cosine similarities of the positions in one table."""

    title: str
    """all layers, or the layer of the table."""
    patches: np.ndarray | None
    """(R, S, R, S): of each patch with every other; None for relative positions."""
    readout: np.ndarray | None
    """(rows, R, S): of the class token's row, and a distillation token's, with every patch; None without such rows."""
    offsets: np.ndarray | None = None
    """(2N - 1, 2N - 1): of relative positions, each offset with every other, from the most negative to the most positive."""


def compute_similarities(model: Model[Any]) -> list[Similarities]:
    """Return the similarities for each position table of the model: none, one, or one for each layer."""
    similarities: list[Similarities] = []
    tables = [module for module in model.modules() if isinstance(module, AddedPositions)]
    with torch.no_grad():
        for index, table in enumerate(tables):
            title = "all layers" if len(tables) == 1 else f"layer {index}"
            similarities.append(compare_added(title, table, next(model.parameters())))
        relative = [module for module in model.modules() if isinstance(module, RelativePositions)]
        for index, offsets in enumerate(relative):
            similarities.append(compare_offsets(f"layer {index}", offsets))
    return similarities


def compare_added(title: str, positions: AddedPositions, like: Tensor) -> Similarities:
    """Return the similarities of absolute positions; the table is computed with dtype and device of `like`."""
    # Compared on the CPU: some devices, such as Apple's, have no float64.
    table = F.normalize(positions.compute_table(like).cpu().double(), dim=1)
    readout, patches = table.split([positions.num_rows, len(table) - positions.num_rows])
    rows = (readout @ patches.T).unflatten(1, positions.grid).numpy() if positions.num_rows > 0 else None
    between = (patches @ patches.T).reshape(*positions.grid, *positions.grid)
    return Similarities(title, between.numpy(), rows)


def compare_offsets(title: str, positions: RelativePositions) -> Similarities:
    """Return the similarities of relative positions between patches, without the outermost, which are the class token's."""
    count = len(positions.offsets)
    between_patches = positions.offsets[positions.num_rows : count - positions.num_rows]
    table = F.normalize(between_patches.cpu().double(), dim=1)
    return Similarities(title, None, None, (table @ table.T).numpy())
