"""Polyak average of the weights (section 4.1 of arXiv:2010.11929), which is what is evaluated and saved."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightEma:
    """Exponential moving average of a module's trained parameters, starting at their current values."""

    def __init__(self, module: nn.Module, factor: float) -> None:
        """`factor` is the fraction of the average that each step keeps: 0.9999 in the paper's results on ImageNet."""
        self.factor = factor
        self.parameters = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
        """The averaged parameters by name: those that are not frozen."""
        self.values: dict[str, Tensor] = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the weights; call it once after each optimizer step."""
        averages, weights = list(self.values.values()), list[Tensor](self.parameters.values())
        torch._foreach_lerp_(averages, weights, 1.0 - self.factor)  # pyright: ignore[reportPrivateImportUsage]

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Swap in the averaged weights; swap back on exit."""
        self.swap()
        try:
            yield
        finally:
            self.swap()

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange parameters and averages by value, so that sharded and compiled modules see the change too."""
        for name, parameter in self.parameters.items():
            average = self.values[name].clone()
            self.values[name].copy_(parameter)
            parameter.copy_(average)
