"""Two processes of torchrun compute the same as one; what each does is in parallel_worker.py."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.training import parallel_worker as worker
from tests.training.parallel_worker import (
    BEYOND,
    COMPILED,
    CURVES,
    FIRST_STEPS,
    HALF,
    HALF_PRECISION,
    NUM_STEPS,
    POOLED,
    SHORT,
    Case,
    Running,
    are_equal,
    load,
    save,
)
from vitrine.core.console import VitrineWarning
from vitrine.core.precision import choose_dtype
from vitrine.core.runtime import Runtime
from vitrine.models.registry import build_meta_model, resolve_config
from vitrine.training.config import MachineConfig
from vitrine.training.parallel import Parallel, list_blocks

ROOT = Path(__file__).parent.parent.parent
TIMEOUT_S = 1800  # until what hangs is ended; no limit on speed
ALONE = Runtime(torch.device("cpu"))
SHARDINGS = ("ddp", "fsdp")


class Both:
    """Results of one process, and of each of two; each resumes what the other saved."""

    def __init__(self, out: Path) -> None:
        self.out = out
        running = Running(ALONE, Case())
        running.train(HALF)
        save(ALONE, out / "one half", *running.gather())
        running.train(NUM_STEPS)
        self.alone = running.records
        self.log = run_workers(out)
        self.ranks: list[dict[str, Any]] = [read_found(out / f"{rank}.json") for rank in range(2)]

    def find(self, name: str) -> Any:
        """Return a result, on which both ranks have to agree."""
        for found in self.ranks:
            assert name in found, f"the workers did not come to {name}:\n{self.log[-3000:]}"
            assert not (isinstance(found[name], dict) and "error" in found[name]), found[name]
        first, second = (found[name] for found in self.ranks)
        assert first == second
        return first


def run_workers(out: Path) -> str:
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", worker.__name__, str(out)]
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        return process.communicate(timeout=TIMEOUT_S)[0]
    except subprocess.TimeoutExpired:
        process.terminate()  # which it passes on to the workers
        return process.communicate()[0]


def read_found(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.is_file() else {}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    return Both(tmp_path_factory.mktemp("both"))


def pick(records: list[dict[str, float]], name: str) -> list[float]:
    return [record[name] for record in records]


def test_the_loss_falls(both: Both) -> None:
    """Otherwise all loss curves would agree trivially."""
    losses = pick(both.alone, "loss")
    assert len(losses) == NUM_STEPS
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])


@pytest.mark.parametrize("name", CURVES)
def test_two_processes_have_the_loss_curve_of_one(name: str, both: Both) -> None:
    found = both.find(name)
    assert pick(found, "loss") == pytest.approx(pick(both.alone, "loss"), rel=1e-5)
    assert pick(found, "accuracy") == pytest.approx(pick(both.alone, "accuracy"), rel=1e-6)
    assert pick(found, "rate") == pick(both.alone, "rate")
    # Of the first steps the gradient is all but zero, because the head is.
    assert pick(found, "grad_norm")[5:] == pytest.approx(pick(both.alone, "grad_norm")[5:], rel=1e-4)


@pytest.mark.parametrize("name", FIRST_STEPS)
def test_the_first_step_is_that_of_one_process_and_one_part(name: str, both: Both) -> None:
    """In float64, so that a wrong weight of a part or rank cannot hide in rounding."""
    case = replace(FIRST_STEPS[name], sharding="ddp")  # alone, nothing is sharded
    expected = worker.run_first_step(ALONE, replace(case, accumulation_steps=1))
    for found in (worker.run_first_step(ALONE, case), both.find(name)):
        assert found.keys() == expected.keys()
        for key, values in expected.items():
            tensor = torch.tensor(values, dtype=torch.float64)
            scale = float(tensor.abs().max())
            torch.testing.assert_close(torch.tensor(found[key], dtype=torch.float64), tensor, rtol=1e-10, atol=1e-10 * scale)


def test_one_process_has_the_same_curve_with_accumulation(both: Both) -> None:
    found = worker.run_curve(ALONE, Case(accumulation_steps=4))
    assert pick(found, "loss") == pytest.approx(pick(both.alone, "loss"), rel=1e-5)


@pytest.mark.filterwarnings("ignore:machine.sharding")
@pytest.mark.parametrize("name", SHORT)
def test_every_network_and_setting_can_be_sharded(name: str, both: Both) -> None:
    """With a head of zeros, only the third loss shows whether all gradients arrived."""
    assert both.find(name) == pytest.approx(worker.run_short(ALONE, SHORT[name]), rel=1e-5)


@pytest.mark.parametrize("name", POOLED)
def test_every_pool_and_head_can_be_replicated(name: str, both: Both) -> None:
    """DDP waits at the second step for a parameter that had no gradient in the first."""
    assert both.find(name) == pytest.approx(worker.run_short(ALONE, POOLED[name]), rel=1e-5)


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_steps_are_those_of_one_plain_process(name: str, both: Both) -> None:
    case = replace(COMPILED[name], sharding="ddp", is_compiled=False)
    assert both.find(name) == pytest.approx(worker.run_short(ALONE, case), rel=1e-5)


@pytest.mark.parametrize("name", HALF_PRECISION)
def test_half_precision_has_nearly_the_loss_curve_of_float32(name: str, both: Both) -> None:
    found = both.find(name)
    assert pick(found, "loss") == pytest.approx(pick(both.alone, "loss"), rel=0.02)  # bfloat16 has 8 bits
    assert pick(found, "loss") != pytest.approx(pick(both.alone, "loss"), rel=1e-6)
    assert all(record.get("skipped_steps", 0.0) == 0.0 for record in found)
    assert ("skipped_steps" in found[0]) == (name.split()[1] == "float16")


@pytest.mark.parametrize("name", [*SHARDINGS, *HALF_PRECISION])
def test_two_processes_resume_bit_for_bit(name: str, both: Both) -> None:
    found = both.find(f"{name} halves")
    assert found["is restored"]
    assert found["is equal"]
    assert found["losses again"] == found["losses"]
    assert len(found["losses"]) == BEYOND - HALF


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_one_process_resumes_from_two(sharding: str, both: Both) -> None:
    running = Running(ALONE, Case())
    running.restore(HALF, *load(ALONE, both.out / f"{sharding} half"))
    assert running.train(BEYOND) == pytest.approx(pick(both.alone, "loss")[HALF:BEYOND], rel=1e-5)


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_two_processes_resume_from_one(sharding: str, both: Both) -> None:
    assert both.find(f"{sharding} from one") == pytest.approx(pick(both.alone, "loss")[HALF:BEYOND], rel=1e-5)


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_two_processes_save_the_same_names_and_shapes_as_one(sharding: str, both: Both) -> None:
    of_two, of_one = (load(ALONE, both.out / f"{name} half") for name in (sharding, "one"))
    for some, others in zip(of_two, of_one, strict=True):
        assert {name: value.shape for name, value in some.items()} == {name: value.shape for name, value in others.items()}
        for name in some:
            # Momenta of weights that nothing depends on, as the bias of keys, are rounding errors, which are not the same.
            torch.testing.assert_close(some[name], others[name], rtol=1e-3, atol=2e-5 if "/" in name else 1e-4)
    assert not are_equal(of_two, of_one)  # or the same file was read twice


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_evaluating_counts_every_image_once_and_changes_nothing(sharding: str, both: Both) -> None:
    found, alone = both.find(f"{sharding} evaluated"), worker.run_evaluated(ALONE, Case())
    for counts, expected in zip(found["counts"], alone["counts"], strict=True):
        assert counts[:3] == expected[:3]
        assert counts[3:] == pytest.approx(expected[3:], rel=1e-5)
        assert counts[0] == 2 * worker.BATCH_SIZE + 1
    assert found["losses"] == found["undisturbed"]
    assert alone["losses"] == alone["undisturbed"]


@pytest.mark.parametrize("bad_rank", [0, 1])
def test_a_loss_that_is_not_finite_on_one_rank_is_reported_by_all(bad_rank: int, both: Both) -> None:
    """One step later it is not finite on the other rank too; the first step counts."""
    assert (
        both.find(f"poisoned {bad_rank}") == f"the loss or its gradient was not finite at step {worker.BAD_STEP + 1}"
    )  # as people count


@pytest.mark.parametrize(
    ("name", "num_blocks"), [("ViT-B/16", 12), ("Axial-ViT-B/16", 12), ("R50x1", 16), ("R50+ViT-B/16", 3 + 4 + 9 + 12)]
)
def test_sharded_blocks_are_those_that_the_model_runs(name: str, num_blocks: int) -> None:
    """Numbers of encoder blocks and residual units from table 1 of arXiv:2010.11929 and of arXiv:1512.03385."""
    blocks = list_blocks(build_meta_model(resolve_config(name)))
    assert len(blocks) == num_blocks
    assert not any(isinstance(block, nn.Sequential | nn.ModuleList) for block in blocks)
    assert len({id(parameter) for block in blocks for parameter in block.parameters()}) == sum(
        len(list(block.parameters())) for block in blocks
    )


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_evaluation_uses_the_precision_of_the_run(precision: Any) -> None:
    running = Running(ALONE, Case(precision=precision))
    images = torch.zeros(2, 3, 16, 16, dtype=torch.uint8)
    with running.parallel.evaluating():
        assert not running.objective.training
        assert running.objective.logits(images).dtype == choose_dtype(precision, ALONE.device)
    assert running.objective.training
    assert running.objective.logits(images).dtype == torch.float32


def test_training_mode_is_restored_after_a_failed_evaluation() -> None:
    running = Running(ALONE, Case())
    with pytest.raises(RuntimeError, match="broken"), running.parallel.evaluating():
        raise RuntimeError("broken")
    assert running.objective.training


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_one_process_is_neither_wrapped_nor_sharded(sharding: Any) -> None:
    running = Running(ALONE, Case())
    with pytest.warns(VitrineWarning, match="fsdp") if sharding == "fsdp" else nullcontext():
        parallel = Parallel(running.objective, MachineConfig(sharding=sharding), ALONE)
    assert parallel.call is running.objective
    assert {type(parameter) for parameter in running.objective.parameters()} == {nn.Parameter}
