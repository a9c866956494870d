"""What a run measures of itself between two readings: kept on the device, since reading a number would stall it."""

import math

import torch
from torch import Tensor

from vitrine.core.runtime import Runtime

Record = dict[str, float]

NEVER = 2**62  # a step that no run comes to


class Meter:
    """Means of some numbers since they were last read, and the first step whose loss was not finite."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.sums: dict[str, Tensor] = {}
        self.weights: dict[str, float] = {}
        self.first_bad_step = torch.full((), NEVER, dtype=torch.int64, device=runtime.device)

    def add(self, values: dict[str, Tensor], weight: float = 1.0) -> None:
        for name, value in values.items():
            value = value.detach().float() * weight
            self.sums[name] = self.sums[name] + value if name in self.sums else value
            self.weights[name] = self.weights.get(name, 0.0) + weight

    def watch(self, number: Tensor, step: int) -> None:
        """Remember the step, if it is the first of which the loss, or the norm of its gradient, is not finite."""
        bad_step = self.first_bad_step.clamp(max=step)
        self.first_bad_step = torch.where(torch.isfinite(number.detach()), self.first_bad_step, bad_step)

    def read(self) -> Record:
        """The means over all processes; from here on they begin anew. What is not finite is an error, in all of them alike."""
        first_bad_step = -int(self.runtime.max(-self.first_bad_step))  # the broken weights break the others a step later
        if first_bad_step < NEVER:
            raise FloatingPointError(f"the loss or its gradient was not finite at step {first_bad_step}")
        names = list(self.sums)
        if not names:
            return {}
        sums = self.runtime.sum(torch.stack([self.sums[name] for name in names])).tolist()
        means = {name: total / (self.weights[name] * self.runtime.num_ranks) for name, total in zip(names, sums, strict=True)}
        self.sums, self.weights = {}, {}
        for name, mean in means.items():
            if not math.isfinite(mean):
                raise FloatingPointError(f"{name} is {mean}")
        return means
