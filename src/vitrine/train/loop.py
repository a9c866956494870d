"""The training loop: the only one in this package."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch.optim import Optimizer

from vitrine.core.runtime import Runtime, seed_generators
from vitrine.objectives.objective import Batch, Objective
from vitrine.train.averaging import Average
from vitrine.train.config import OptimConfig
from vitrine.train.metrics import Meter, Record
from vitrine.train.optimizer import clip_gradients, set_rate
from vitrine.train.parallel import Parallel
from vitrine.train.schedule import compute_rate


@dataclass
class TrainState:
    """All that a resumed run needs, and nothing that a fresh one could make from its recipe."""

    objective: Objective
    optimizer: Optimizer
    average: Average | None = None
    step: int = 0
    """Steps that were done."""
    is_stopped: bool = False
    """Set by a hook to end the run after the step."""


@dataclass(frozen=True)
class Hook:
    """Something to do after a step, in all processes alike."""

    is_due: Callable[[int], bool]
    """Asked after every step, with the number of steps done; not of the last one, of which all are."""
    action: Callable[[TrainState, Record], None]
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
    meter = Meter(runtime)
    while state.step < total_steps and not state.is_stopped:
        batch = next(batches).to(runtime.device)
        rate = compute_rate(optim, state.step, total_steps)
        set_rate(state.optimizer, rate)
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


def accumulate_gradients(parts: list[Batch], parallel: Parallel, meter: Meter, keys: tuple[int, int, int]) -> None:
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
