"""Random weights for tests: heads start at zero, so fresh models would compare zeros with zeros."""

import math
from typing import Any

import torch
from torch import nn

from vitrine.models.config import ModelConfig
from vitrine.models.model import Model
from vitrine.models.registry import build_model


def fill_randomly(module: nn.Module, seed: int = 0) -> None:
    """Fill matrices with unit gain and vectors around one half, so that every parameter matters and nothing explodes."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        with torch.no_grad():
            parameter.normal_(generator=generator)
            if parameter.ndim >= 2:
                parameter.mul_(1 / math.sqrt(parameter[0].numel()))
            else:
                parameter.mul_(0.3).add_(0.5)


def build_filled(model: str | ModelConfig, **changes: Any) -> Model[Any]:
    """Build a model without initialisation, which takes seconds for large ones, and fill it randomly."""
    with torch.device("meta"):
        empty = build_model(model, **changes)
    filled = empty.to_empty(device="cpu")
    fill_randomly(filled)
    return filled.eval()
