"""The training loop, metric averages.

What a run measures of itself between two readings: kept on the device, since reading a number would stall it.
The training loop: the only one in this package.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrine.core.runtime import Runtime, seed_generators
from vitrine.data.batch import Batch
from vitrine.training.config import OptimConfig
from vitrine.training.optimizer import clip_gradients, set_lr
from vitrine.training.parallel import Parallel
from vitrine.training.schedule import compute_lr
from vitrine.training.state import TrainState

Metrics = dict[str, float]

NEVER = 2**62  # a step that no run comes to


class MetricAverager:
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

    def read(self) -> Metrics:
        """The means over all processes; from here on they begin anew. What is not finite is an error, in all of them alike."""
        first_bad_step = -int(self.runtime.max(-self.first_bad_step))  # the broken weights break the others a step later
        if first_bad_step < NEVER:
            raise FloatingPointError(f"the loss or its gradient was not finite at step {first_bad_step}")
        names = list(self.sums)
        if not names:
            return {}
        sums = self.runtime.sum(torch.stack([self.sums[name] for name in names])).tolist()
        means = {name: total / (self.weights[name] * self.runtime.world_size) for name, total in zip(names, sums, strict=True)}
        self.sums, self.weights = {}, {}
        for name, mean in means.items():
            if not math.isfinite(mean):
                raise FloatingPointError(f"{name} is {mean}")
        return means


@dataclass(frozen=True)
class Hook:
    """Something to do after a step, in all processes alike."""

    is_due: Callable[[int], bool]
    """Asked after every step, with the number of steps done; not of the last one, of which all are."""
    action: Callable[[TrainState, Metrics], None]
    """Given the means of loss, metrics and gradient norm since any hook was last due, and the rate of the step."""


def fit(
    state: TrainState,
    batches: Iterator[Batch],
    *,
    total_steps: int,
    optim: OptimConfig,
    parallel: Parallel,
    runtime: Runtime,
    accumulation_steps: int = 1,
    seed: int = 0,
    hooks: tuple[Hook, ...] = (),
) -> None:
    """Train from `state.step` to `total_steps`, changing `state` in place; `batches` begins with the batch of that step."""
    state.objective.train()
    meter = MetricAverager(runtime)
    while state.step < total_steps and not state.is_stopped:
        batch = next(batches).to(runtime.device)
        rate = compute_lr(optim, state.step, total_steps)
        set_lr(state.optimizer, rate)
        accumulate_gradients(batch.split(accumulation_steps), parallel, meter, (seed, state.step, runtime.rank))
        norm = clip_gradients(state.objective, optim.max_grad_norm)
        meter.add({"grad_norm": norm})
        meter.watch(norm, state.step + 1)
        state.optimizer.step()
        state.optimizer.zero_grad(set_to_none=True)
        if state.average is not None:
            state.average.update()
        state.step += 1

        due = [hook for hook in hooks if state.step == total_steps or hook.is_due(state.step)]
        if due:
            # The only place where the host waits for the device: someone is about to read the numbers.
            record = {**meter.read(), "rate": rate}
            for hook in due:
                hook.action(state, record)
            state.objective.train()


def accumulate_gradients(parts: list[Batch], parallel: Parallel, meter: MetricAverager, keys: tuple[int, int, int]) -> None:
    """The gradient of the mean loss over all the parts."""
    num_images = sum(map(len, parts))
    losses = []
    for number, part in enumerate(parts):
        # Dropout is a function of seed, step, rank and part, so that a resumed run draws the same.
        seed_generators(*keys, number)
        with parallel.synchronised(is_last=number == len(parts) - 1):
            output = parallel(part)
            share = len(part) / num_images
            (output.loss * share).backward()
        losses.append(output.loss.detach() * share)
        meter.add({"loss": output.loss, **output.metrics}, share)
    meter.watch(torch.stack(losses).sum(), keys[1] + 1)  # as people count them
