"""The Polyak average against torch's AveragedModel."""

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from vitrine.training.ema import WeightEma


def move(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator))


def test_the_average_equals_torch() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    average = WeightEma(model, 0.9)
    reference = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    reference.update_parameters(model)  # its first call copies
    for seed in range(5):
        move(model, seed)
        average.update()
        reference.update_parameters(model)
    with average.swapped_in():
        for ours, theirs in zip(model.parameters(), reference.module.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs)


def test_weights_are_swapped_back_bit_for_bit() -> None:
    model = nn.Linear(3, 4)
    average = WeightEma(model, 0.99)
    move(model, 0)
    average.update()
    before = [parameter.clone() for parameter in model.parameters()]
    kept = {name: value.clone() for name, value in average.values.items()}
    with average.swapped_in():
        assert not torch.equal(model.weight, before[0])
    assert all(torch.equal(now, then) for now, then in zip(model.parameters(), before, strict=True))
    assert all(torch.equal(average.values[name], value) for name, value in kept.items())


def test_frozen_parameters_are_not_averaged() -> None:
    model = nn.Linear(3, 4)
    model.bias.requires_grad_(False)
    assert list(WeightEma(model, 0.99).values) == ["weight"]
