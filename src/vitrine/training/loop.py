"""The training loop, the only one in this package, and the averages of its metrics between two reads."""

import math
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from vitrine.core.runtime import Runtime, seed_generators
from vitrine.data.batch import Batch
from vitrine.objectives.objective import at_least_float32
from vitrine.training.config import OptimConfig
from vitrine.training.optimizer import clip_gradients, set_lr
from vitrine.training.parallel import Parallel
from vitrine.training.schedule import compute_lr
from vitrine.training.state import TrainState

Metrics = dict[str, float]

NEVER = 2**62  # a step that no run reaches
MAX_SKIPPED = 50  # steps in a row; fewer bring the scale of the loss from 2**16 below any that could help


class MetricAverager:
    """Means of metrics since the last read, kept on the device because reading a number stalls it.

    It also remembers the first step whose loss or gradient was not finite.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.sums: dict[str, Tensor] = {}
        self.weights: dict[str, float | Tensor] = {}
        self.first_bad_step = torch.full((), NEVER, dtype=torch.int64, device=runtime.device)
        self.num_skipped = torch.zeros((), dtype=torch.int64, device=runtime.device)
        """Steps in a row that float16 has skipped."""

    def add(self, values: dict[str, Tensor], weight: float | Tensor = 1.0) -> None:
        """Add the metrics of a step, or of a part of it that counts by `weight`."""
        for name, value in values.items():
            value = at_least_float32(value.detach()) * weight
            self.sums[name] = self.sums[name] + value if name in self.sums else value
            self.weights[name] = self.weights.get(name, 0.0) + weight

    def add_scaled(self, norm: Tensor, step: int) -> None:
        """Add the gradient norm of a step in float16, where a step that overflows is skipped and counted.

        That mends itself, because each such step halves the scale of the loss; many in a row mean that it does not.
        """
        is_finite = torch.isfinite(norm)
        self.add({"grad_norm": torch.where(is_finite, norm, 0.0)}, is_finite.float())
        self.add({"skipped_steps": (~is_finite).float()})
        self.num_skipped = torch.where(is_finite, 0, self.num_skipped + 1)
        self.check_finite(torch.where(self.num_skipped < MAX_SKIPPED, 0.0, torch.inf), step)

    def check_finite(self, number: Tensor, step: int) -> None:
        """Remember the step if it is the first whose loss or gradient norm is not finite; `read` raises the error."""
        bad_step = self.first_bad_step.clamp(max=step)
        self.first_bad_step = torch.where(torch.isfinite(number.detach()), self.first_bad_step, bad_step)

    def read(self) -> Metrics:
        """Return the means over steps and ranks and start again; raise FloatingPointError on all ranks if one is not finite."""
        first_bad_step = -int(self.runtime.max(-self.first_bad_step))  # the bad rank breaks the others one step later
        if first_bad_step < NEVER:
            raise FloatingPointError(f"the loss or its gradient was not finite at step {first_bad_step}")
        names = list(self.sums)
        if not names:
            return {}
        sums = self.runtime.sum(torch.stack([self.sums[name] for name in names])).tolist()
        weights = [float(self.weights[name]) * self.runtime.world_size for name in names]
        # Nothing has a weight of 0 but the gradient norm, if every step was skipped.
        means = {name: total / weight for name, total, weight in zip(names, sums, weights, strict=True) if weight}
        self.sums, self.weights = {}, {}
        for name, mean in means.items():
            if not math.isfinite(mean):
                raise FloatingPointError(f"{name} is {mean}")
        return means


class Callback(Protocol):
    """What the loop calls after each optimizer step, on all ranks."""

    def after_step(self, state: TrainState, metrics: MetricAverager, lr: float) -> None:
        """Act on the finished step; set `state.is_stopped` to end training. Reading `metrics` makes the host wait."""
        ...


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
    callback: Callback | None = None,
) -> None:
    """Train from `state.step` to `total_steps`, changing `state` in place; `batches` begins with the batch of that step."""
    state.objective.train()
    metrics = MetricAverager(runtime)
    while state.step < total_steps and not state.is_stopped:
        batch = next(batches).to(runtime.device)
        lr = compute_lr(optim, state.step, total_steps)
        set_lr(state.optimizer, lr)
        accumulate_gradients(batch.split(accumulation_steps), parallel, state, metrics, (seed, state.step, runtime.rank))
        state.scaler.unscale_(state.optimizer)
        norm = clip_gradients(state.objective, optim.max_grad_norm)
        if state.scaler.is_enabled():
            metrics.add_scaled(norm, state.step + 1)
        else:
            metrics.add({"grad_norm": norm})
            metrics.check_finite(norm, state.step + 1)
        state.scaler.step(state.optimizer)
        state.scaler.update()
        state.optimizer.zero_grad(set_to_none=True)
        if state.average is not None:
            state.average.update()
        state.step += 1
        if callback is not None:
            callback.after_step(state, metrics, lr)


def accumulate_gradients(
    parts: list[Batch], parallel: Parallel, state: TrainState, metrics: MetricAverager, keys: tuple[int, int, int]
) -> None:
    """Add up the gradient of the mean loss over all parts of a batch; `keys` are seed, step and rank."""
    num_images = sum(map(len, parts))
    losses = []
    for number, part in enumerate(parts):
        # Dropout is a function of seed, step, rank and part, so that a resumed run draws the same.
        seed_generators(*keys, number)
        with parallel.keeping_digits(), parallel.synchronised(is_last=number == len(parts) - 1):
            output = parallel(part)
            fraction = len(part) / num_images
            state.scaler.scale(output.loss * fraction).backward()
        losses.append(output.loss.detach() * fraction)
        metrics.add({"loss": output.loss, **output.metrics}, fraction)
    metrics.check_finite(torch.stack(losses).sum(), keys[1] + 1)  # steps count from 1 in messages and logs
