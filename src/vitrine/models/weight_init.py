"""Initial values as in the released code of the paper (flax's rules, written for torch)."""

import math

from torch import Tensor, nn

# Standard deviation of a unit normal cut at two deviations: flax divides by it, so that the spread after cutting is right.
TRUNCATED_NORMAL_STD = 0.87962566103423978


def init_lecun_normal(layer: nn.Linear | nn.Conv2d) -> None:
    """Truncated normal with variance 1 / fan_in after truncation, bias 0."""
    std = math.sqrt(1 / layer.weight[0].numel()) / TRUNCATED_NORMAL_STD
    nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def init_xavier_uniform(layer: nn.Linear, *, num_packed: int = 1, bias_std: float = 0.0) -> None:
    """Xavier uniform on each of the `num_packed` matrices stacked in the layer, which start as if they were apart."""
    for matrix in layer.weight.detach().chunk(num_packed):
        nn.init.xavier_uniform_(matrix)
    if bias_std > 0:
        init_normal(layer.bias, bias_std)
    else:
        nn.init.zeros_(layer.bias)


def init_positions(table: Tensor) -> None:
    init_normal(table, 0.02)


def init_normal(tensor: Tensor, std: float) -> None:
    # On the meta device there is nothing to draw, and this one function would import torch's compiler, for over a second.
    if not tensor.is_meta:
        nn.init.normal_(tensor, std=std)
