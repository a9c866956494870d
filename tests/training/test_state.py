"""Gathered state is all that a resumed run needs, in one process; two are tested in test_parallel.py."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tests.training.parallel_worker import Case, Running
from vitrine.core.runtime import Runtime
from vitrine.data.batch import Batch
from vitrine.objectives.objective import LossOutput
from vitrine.objectives.supervised import Supervised
from vitrine.training.config import OptimConfig
from vitrine.training.state import Tensors, gather_model, gather_training, restore

ALONE = Runtime(torch.device("cpu"))
CASES = {
    "adamw": Case(factor=None),
    "average": Case(factor=0.9),
    "sgd": Case(factor=0.9, optim=OptimConfig(kind="sgd", learning_rate=0.1)),
    "sgd without momentum": Case(factor=None, optim=OptimConfig(kind="sgd", learning_rate=0.1, momentum=0.0)),
    "frozen": Case(factor=0.9, optim=OptimConfig(frozen_blocks=1, layer_decay=0.7)),
    "head alone": Case(factor=None, optim=OptimConfig(frozen_blocks=-1)),
    "resnet": Case(factor=0.9, network="resnet"),
    "hybrid": Case(factor=None, network="hybrid", changes={"gradient_checkpointing": True}),
}
HALF, END = 3, 6


def start(case: Case, num_steps: int = 0) -> Running:
    running = Running(ALONE, case)
    if num_steps:
        running.train(num_steps)
    return running


def collect(running: Running) -> dict[str, Tensor]:
    """Return copies of all tensors of a run: weights, optimizer state, average."""
    found = {f"weight {name}": value for name, value in running.objective.state_dict().items()}
    for number, values in running.state.optimizer.state_dict()["state"].items():
        found |= {f"{number} {key}": value for key, value in values.items() if isinstance(value, Tensor)}
    if running.state.average is not None:
        found |= {f"average {name}": value for name, value in running.state.average.values.items()}
    return {name: value.clone() for name, value in found.items()}


def are_equal(some: Tensors, others: Tensors) -> bool:
    return some.keys() == others.keys() and all(torch.equal(some[name], others[name]) for name in some)


@pytest.mark.parametrize("name", CASES)
def test_a_run_resumes_from_files_bit_for_bit(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    running = start(case, HALF)
    for tensors, file in ((gather_model(running.state), "model"), (gather_training(running.state), "training")):
        save_file({key: value.contiguous() for key, value in tensors.items()}, tmp_path / file)
    then = collect(running)
    losses = running.train(END)

    again = start(case)
    restore(again.state, load_file(tmp_path / "model"), load_file(tmp_path / "training"))
    again.state.step = HALF
    assert are_equal(collect(again), then)
    assert again.train(END) == losses
    assert are_equal(collect(again), collect(running))


@pytest.mark.parametrize("name", ["average", "sgd"])
def test_restoring_replaces_the_former_state(name: str) -> None:
    """A state that was trained otherwise becomes the saved one."""
    running, other = start(CASES[name], HALF), start(CASES[name], 1)
    then = collect(running)
    restore(other.state, gather_model(running.state), gather_training(running.state))
    assert are_equal(collect(other), then)


@pytest.mark.parametrize("num_steps", [0, 1, HALF])
@pytest.mark.parametrize("name", ["adamw", "average", "sgd"])
def test_gathering_changes_nothing(name: str, num_steps: int) -> None:
    running, undisturbed = start(CASES[name], num_steps), start(CASES[name], num_steps)
    then = collect(undisturbed)
    for _ in range(2):
        gather_model(running.state)
        gather_training(running.state)
    assert are_equal(collect(running), then)
    assert running.train(END) == undisturbed.train(END)


def test_the_model_has_averaged_weights_and_the_encoder_s_names() -> None:
    plain, averaged = start(CASES["adamw"], HALF), start(CASES["average"], HALF)
    assert are_equal(gather_model(plain.state), plain.objective.encoder.state_dict())
    found = gather_model(averaged.state)
    assert are_equal({f"encoder.{name}": value for name, value in found.items()}, averaged.state.average.values)
    assert not are_equal(found, averaged.objective.encoder.state_dict())


def test_frozen_weights_are_in_the_model_too() -> None:
    running = start(CASES["frozen"], HALF)
    found, weights = gather_model(running.state), running.objective.encoder.state_dict()
    assert found.keys() == weights.keys()
    assert torch.equal(found["patches.projection.weight"], weights["patches.projection.weight"])
    assert torch.equal(found["norm.weight"], running.state.average.values["encoder.norm.weight"])


def test_no_tensor_is_stored_twice() -> None:
    plain, averaged = (set(gather_training(start(CASES[name], 1).state)) for name in ("adamw", "average"))
    assert not any(name.startswith("weights.") for name in plain)
    weights = {name for name in averaged if name.startswith("weights.")}
    assert averaged - weights == plain
    assert weights == {f"weights.encoder.{name}" for name in start(CASES["average"]).objective.encoder.state_dict()}


def test_optimizer_state_is_stored_by_parameter_name() -> None:
    running = start(CASES["adamw"], HALF)
    found = gather_training(running.state)
    for name, parameter in running.objective.named_parameters():
        kept = running.state.optimizer.state[parameter]
        assert set(kept) == {"step", "exp_avg", "exp_avg_sq"}
        for key, value in kept.items():
            assert torch.equal(found[f"optimizer.{name}/{key}"], value)
    assert len(found) == 3 * len(list(running.objective.parameters()))


def describe_groups(running: Running) -> list[tuple[Any, ...]]:
    groups = running.state.optimizer.param_groups
    return [(group["lr_scale"], group["weight_decay"], tuple(group["betas"]), len(group["params"])) for group in groups]


def test_learning_rates_and_weight_decays_come_from_the_recipe() -> None:
    """They are not restored from the file, because they may change from one version to the next."""
    running = start(CASES["adamw"], HALF)
    optim = replace(CASES["adamw"].optim, learning_rate=0.5, weight_decay=0.25, beta1=0.8)
    other = start(replace(CASES["adamw"], optim=optim))
    before = describe_groups(other)
    restore(other.state, gather_model(running.state), gather_training(running.state))
    assert describe_groups(other) == before
    assert {decay for _, decay, *_ in before} == {0.0, 0.25}


def test_optimizer_and_average_refer_to_the_trained_parameters() -> None:
    running, again = start(CASES["average"], HALF), start(CASES["average"])
    restore(again.state, gather_model(running.state), gather_training(running.state))
    trained = {id(parameter) for parameter in again.objective.parameters()}
    assert {id(each) for group in again.state.optimizer.param_groups for each in group["params"]} == trained
    assert set(map(id, again.state.optimizer.state)) == trained
    assert {id(each) for each in again.state.average.parameters.values()} == trained


class WithOwnHead(Supervised):
    """An objective that trains a layer besides its encoder."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.own = nn.Linear(3, 4)

    def forward(self, batch: Batch) -> LossOutput:
        colours = batch.image.float().mean(dim=(2, 3)) / 255
        return LossOutput(super().forward(batch).loss + self.own(colours).square().mean())


@pytest.mark.parametrize("factor", [None, 0.9])
def test_parameters_of_the_objective_are_restored_too(factor: float | None) -> None:
    running, again = (Running(ALONE, Case(factor=factor), WithOwnHead) for _ in range(2))
    running.train(HALF)
    model, training = gather_model(running.state), gather_training(running.state)
    assert not any("own" in name for name in model)
    then = collect(running)
    restore(again.state, model, training)
    assert are_equal(collect(again), then)
