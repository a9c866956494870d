"""The state of training as plain tensors and back, whatever the number of processes and however the network is sharded.

Gathering and scattering are torch.distributed.checkpoint's; every process takes part, and the main one has the result."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import Optimizer

from vitrine.objectives.objective import Objective
from vitrine.training.ema import WeightEma


@dataclass
class TrainState:
    """All that a resumed run needs, and nothing that a fresh one could make from its recipe."""

    objective: Objective
    optimizer: Optimizer
    average: WeightEma | None = None
    step: int = 0
    """Steps that were done."""
    is_stopped: bool = False
    """Set by a hook to end the run after the step."""


Tensors = dict[str, Tensor]

WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)
ENCODER, WEIGHTS, AVERAGE, OPTIMIZER = "encoder.", "weights.", "average.", "optimizer."
BEHIND_NAME = "/"  # between a parameter's name, which has points in it, and what the optimizer keeps of it


def gather_model(state: TrainState) -> Tensors:
    """The weights of the encoder that count: averaged, if there is an average."""
    return {name.removeprefix(ENCODER): tensor for name, tensor in gather_averaged(state).items() if name.startswith(ENCODER)}


def gather_averaged(state: TrainState) -> Tensors:
    if state.average is None:
        return gather_weights(state.objective)
    with state.average.applied():
        return {name: tensor.clone() for name, tensor in gather_weights(state.objective).items()}


def gather_training(state: TrainState) -> Tensors:
    """All the rest that a resumed run needs: weights that `gather_model` does not give, and what the optimizer keeps."""
    weights = {
        f"{WEIGHTS}{name}": tensor
        for name, tensor in gather_weights(state.objective).items()
        if state.average is not None or not name.startswith(ENCODER)
    }
    if state.average is not None and any(not name.startswith(ENCODER) for name, _ in state.objective.named_parameters()):
        beside = {name: tensor for name, tensor in gather_averaged(state).items() if not name.startswith(ENCODER)}
        weights |= {f"{AVERAGE}{name}": tensor for name, tensor in beside.items()}
    kept: dict[str, Any] = {}
    if state.optimizer.state:  # before the first step there is none, and torch would make it up by a step that counts
        kept = get_optimizer_state_dict(state.objective, state.optimizer, options=WHOLE)
    optimizer = {
        f"{OPTIMIZER}{name}{BEHIND_NAME}{key}": tensor
        for name, values in kept.get("state", {}).items()
        for key, tensor in values.items()
        if isinstance(tensor, Tensor)
    }
    return {**weights, **optimizer}


def select_beside(training: Tensors) -> Tensors:
    """Of what `gather_training` gave, the weights that are not the encoder's: averaged, if there is an average."""
    found = {
        name.removeprefix(kind): tensor
        for kind in (WEIGHTS, AVERAGE)
        for name, tensor in training.items()
        if name.startswith(kind)
    }
    return {name: tensor for name, tensor in found.items() if not name.startswith(ENCODER)}


def restore(state: TrainState, model: Tensors, training: Tensors) -> None:
    """What `gather_model` and `gather_training` gave, put back where it came from; the step is the caller's."""
    weights = {f"{ENCODER}{name}": tensor for name, tensor in model.items()}
    raw = {name.removeprefix(WEIGHTS): tensor for name, tensor in training.items() if name.startswith(WEIGHTS)}
    if state.average is not None:
        beside = {name.removeprefix(AVERAGE): tensor for name, tensor in training.items() if name.startswith(AVERAGE)}
        scatter_weights(state.objective, {**raw, **weights, **beside})
        state.average = WeightEma(state.objective, state.average.factor)
    scatter_weights(state.objective, {**weights, **raw})
    restore_optimizer(state, training)


def restore_optimizer(state: TrainState, training: Tensors) -> None:
    kept: dict[str, Tensors] = {}
    for name, tensor in training.items():
        if name.startswith(OPTIMIZER):
            parameter, key = name.removeprefix(OPTIMIZER).rsplit(BEHIND_NAME, 1)
            kept.setdefault(parameter, {})[key] = tensor
    state.optimizer.state.clear()
    if not kept:  # SGD without momentum has nothing to remember
        return
    # With the groups of the recipe, whose rates and decays are not read from a file. Not gathered, or only one process had it.
    content: dict[str, Any] = get_optimizer_state_dict(state.objective, state.optimizer)
    content["state"] = kept
    set_optimizer_state_dict(state.objective, state.optimizer, content, options=WHOLE)


def gather_weights(objective: Objective) -> Tensors:
    weights: dict[str, Any] = get_model_state_dict(objective, options=WHOLE)
    return weights


def scatter_weights(objective: Objective, weights: Tensors) -> None:
    set_model_state_dict(objective, {**weights}, options=WHOLE)
