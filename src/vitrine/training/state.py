"""TrainState, and its tensors gathered for a checkpoint and restored from one, however the model is sharded.

What a checkpoint holds, with E for the encoder's tensors and O for the objective's own (e.g. a prediction head):

| where | key | with Polyak average | without |
|---|---|---|---|
| model.safetensors | NAME of E | averaged weights | weights |
| training.safetensors | weights.encoder.NAME | weights | not written |
| training.safetensors | weights.NAME of O | weights | weights |
| training.safetensors | average.NAME of O | averaged weights | not written |
| training.safetensors | optimizer.PARAMETER/KEY | optimizer state, after the first step | the same |
| training.safetensors | scaler.KEY | float16 only: scale of the loss, after the first step | the same |

Gathering and restoring are torch.distributed.checkpoint's; all ranks take part, and rank 0 has the gathered result.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import Optimizer

from vitrine.objectives.objective import ENCODER, Objective
from vitrine.training.ema import WeightEma

Tensors = dict[str, Tensor]

WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)
WEIGHTS, AVERAGE, OPTIMIZER, SCALER = "weights.", "average.", "optimizer.", "scaler."
KEY_SEPARATOR = "/"  # between a parameter's name, which contains dots, and the key of its optimizer state


@dataclass
class TrainState:
    """What changes during training, and what a resumed run has to restore."""

    objective: Objective
    optimizer: Optimizer
    average: WeightEma | None = None
    scaler: GradScaler = field(default_factory=lambda: GradScaler(enabled=False))
    """Scales the loss in float16; it does nothing in other precisions."""
    step: int = 0
    """Number of finished steps."""
    is_stopped: bool = False
    """Set by the callback to end the run after this step."""


def gather_model(state: TrainState) -> Tensors:
    """Return the encoder's weights for model.safetensors: averaged if the run averages them."""
    return {name.removeprefix(ENCODER): tensor for name, tensor in gather_averaged(state).items() if name.startswith(ENCODER)}


def gather_training(state: TrainState) -> Tensors:
    """Return everything else that a resumed run needs, for training.safetensors."""
    has_average = state.average is not None
    weights = gather_weights(state.objective)
    tensors = {f"{WEIGHTS}{name}": tensor for name, tensor in weights.items() if has_average or not name.startswith(ENCODER)}
    if has_average and any(not name.startswith(ENCODER) for name, _ in state.objective.named_parameters()):
        averaged = gather_averaged(state)
        tensors |= {f"{AVERAGE}{name}": tensor for name, tensor in averaged.items() if not name.startswith(ENCODER)}
    return tensors | gather_optimizer(state) | gather_scaler(state)


def restore(state: TrainState, model: Tensors, training: Tensors) -> None:
    """Restore what `gather_model` and `gather_training` returned; setting the step is up to the caller."""
    encoder = {f"{ENCODER}{name}": tensor for name, tensor in model.items()}
    weights = select(training, WEIGHTS)
    if state.average is not None:
        scatter_weights(state.objective, {**weights, **encoder, **select(training, AVERAGE)})
        state.average = WeightEma(state.objective, state.average.factor)
    scatter_weights(state.objective, {**encoder, **weights})
    restore_optimizer(state, training)
    restore_scaler(state, training)


def select_own_weights(training: Tensors) -> Tensors:
    """Return the objective's own weights from `gather_training`'s tensors: averaged if the run averages them."""
    weights = {**select(training, WEIGHTS), **select(training, AVERAGE)}
    return {name: tensor for name, tensor in weights.items() if not name.startswith(ENCODER)}


def select(tensors: Tensors, prefix: str) -> Tensors:
    """Return the tensors whose names begin with the prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def gather_averaged(state: TrainState) -> Tensors:
    """Return all weights of the objective as they are evaluated: averaged if the run averages them."""
    if state.average is None:
        return gather_weights(state.objective)
    with state.average.swapped_in():
        return {name: tensor.clone() for name, tensor in gather_weights(state.objective).items()}


def gather_weights(objective: Objective) -> Tensors:
    weights: dict[str, Any] = get_model_state_dict(objective, options=WHOLE)
    return weights


def scatter_weights(objective: Objective, weights: Tensors) -> None:
    set_model_state_dict(objective, {**weights}, options=WHOLE)


def gather_optimizer(state: TrainState) -> Tensors:
    """Return the optimizer's state by parameter name."""
    if not state.optimizer.state:  # before the first step torch would create it, by a step that counts
        return {}
    content: dict[str, Any] = get_optimizer_state_dict(state.objective, state.optimizer, options=WHOLE)
    return {
        f"{OPTIMIZER}{name}{KEY_SEPARATOR}{key}": tensor
        for name, values in content.get("state", {}).items()
        for key, tensor in values.items()
        if isinstance(tensor, Tensor)
    }


def restore_optimizer(state: TrainState, training: Tensors) -> None:
    """Restore the optimizer's state; learning rates and weight decays stay those of the recipe."""
    restored: dict[str, Tensors] = {}
    for name, tensor in select(training, OPTIMIZER).items():
        parameter, key = name.rsplit(KEY_SEPARATOR, 1)
        restored.setdefault(parameter, {})[key] = tensor
    state.optimizer.state.clear()
    if not restored:  # e.g. SGD without momentum
        return
    # Not gathered, so that every rank has the groups of the recipe.
    content: dict[str, Any] = get_optimizer_state_dict(state.objective, state.optimizer)
    content["state"] = restored
    set_optimizer_state_dict(state.objective, state.optimizer, content, options=WHOLE)


def gather_scaler(state: TrainState) -> Tensors:
    """Return the scale of the loss and its growth in float16, as float64, which holds its counts too; else nothing."""
    numbers = state.scaler.state_dict().items()
    return {f"{SCALER}{key.strip('_')}": torch.tensor(number, dtype=torch.float64) for key, number in numbers}


def restore_scaler(state: TrainState, training: Tensors) -> None:
    """Restore the scale of the loss; a run that begins to compute in float16 here starts with a new one."""
    restored = select(training, SCALER)
    content = state.scaler.state_dict()
    if restored:
        state.scaler.load_state_dict({key: type(value)(restored[key.strip("_")]) for key, value in content.items()})
