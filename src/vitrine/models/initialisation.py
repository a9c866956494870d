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
        nn.init.normal_(layer.bias, std=bias_std)
    else:
        nn.init.zeros_(layer.bias)


def init_positions(table: Tensor) -> None:
    nn.init.normal_(table, std=0.02)
