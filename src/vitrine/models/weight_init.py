"""Initial weights as in the released code of the paper: flax's initialisers, written for torch."""

import math

from torch import Tensor, nn

# Standard deviation of a unit normal truncated at two deviations. flax divides by it to get the wanted one after truncation.
TRUNCATED_NORMAL_STD = 0.87962566103423978


def init_lecun_normal(layer: nn.Linear | nn.Conv2d) -> None:
    """Initialise a layer by a truncated normal of variance 1 / fan_in (after truncation), and its bias by 0."""
    std = math.sqrt(1 / layer.weight[0].numel()) / TRUNCATED_NORMAL_STD
    nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def init_xavier_uniform(layer: nn.Linear, *, num_packed: int = 1, bias_std: float = 0.0) -> None:
    """Initialise by Xavier uniform each of the `num_packed` matrices stacked in a layer, as if they were separate layers."""
    for matrix in layer.weight.detach().chunk(num_packed):
        nn.init.xavier_uniform_(matrix)
    if bias_std > 0:
        init_normal(layer.bias, bias_std)
    elif layer.bias is not None:
        nn.init.zeros_(layer.bias)


def init_positions(table: Tensor) -> None:
    """Initialise positions and learned tokens by a normal of standard deviation 0.02."""
    init_normal(table, 0.02)


def init_normal(tensor: Tensor, std: float) -> None:
    """Initialise a tensor by a normal of mean 0; do nothing on the meta device."""
    # On the meta device normal_ would import torch's compiler, which takes over a second.
    if not tensor.is_meta:
        nn.init.normal_(tensor, std=std)
