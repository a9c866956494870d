"""Polyak averaging (section 4.1 of arXiv:2010.11929): a slowly following copy of the weights, which is what is evaluated."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightEma:
    """An exponential average of a module's trained parameters, beginning with their values."""

    def __init__(self, module: nn.Module, factor: float) -> None:
        """`factor` is what stays of the average at each step: 0.9999 in the paper's results on ImageNet."""
        self.module = module
        self.factor = factor
        self.values: dict[str, Tensor] = {name: value.detach().clone() for name, value in self.list_parameters().items()}

    def list_parameters(self) -> dict[str, nn.Parameter]:
        return {name: parameter for name, parameter in self.module.named_parameters() if parameter.requires_grad}

    @torch.no_grad()
    def update(self) -> None:
        """Once after each optimizer step."""
        for name, parameter in self.list_parameters().items():
            self.values[name].lerp_(parameter, 1.0 - self.factor)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The module has the averages inside, and its own weights again behind."""
        self.swap()
        try:
            yield
        finally:
            self.swap()

    @torch.no_grad()
    def swap(self) -> None:
        """Parameters and averages change places; by their values, so that whoever holds a parameter sees it."""
        for name, parameter in self.list_parameters().items():
            average = self.values[name].clone()
            self.values[name].copy_(parameter)
            parameter.copy_(average)
