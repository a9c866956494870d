"""The ResNet's parameters against a sum written out apart from the code under test."""

import pytest

from vitrine.models.config import ResNetConfig
from vitrine.models.cost import compute_cost
from vitrine.models.cost_resnet import same_padded
from vitrine.models.registry import MODELS, resolve_config


@pytest.mark.parametrize(("size", "kernel", "padded"), [(224, 7, 229), (112, 3, 113), (7, 3, 9), (56, 1, 56)])
def test_padded_maps_are_tfs(size: int, kernel: int, padded: int) -> None:
    assert same_padded((size, size), kernel, 2) == padded**2


@pytest.mark.parametrize("name", [name for name in MODELS if isinstance(resolve_config(name), ResNetConfig)])
def test_parameters_of_bit_follow_from_depth_and_width(name: str) -> None:
    config = resolve_config(name)
    assert isinstance(config, ResNetConfig)
    assert compute_cost(name).num_parameters == count_bit(config.stages, round(64 * config.width_factor))


def count_bit(stages: tuple[int, ...], root: int) -> int:
    """Written out as a sum over convolutions and norms, apart from the code under test."""
    total, in_dim = 7 * 7 * 3 * root, root
    for stage, units in enumerate(stages):
        mid = root * 2**stage
        total += in_dim * 4 * mid  # the projection
        for _ in range(units):
            total += in_dim * mid + 9 * mid * mid + mid * 4 * mid  # convolutions
            total += 2 * in_dim + 4 * mid  # norms
            in_dim = 4 * mid
    return total + 2 * in_dim + in_dim * 1000 + 1000
