"""`machine.compile`: a training step of every network and objective is one graph, and computes the same.

The backend aot_eager takes and refuses the graphs that inductor does, without a C++ compiler.
"""

from dataclasses import replace

import pytest
import torch
from torch import _dynamo
from torch._dynamo.testing import CompileCounterWithBackend

from tests.training import parallel_worker as worker
from tests.training.parallel_worker import HEADS, NETWORKS, QUICK, Case
from vitrine.core.runtime import Runtime
from vitrine.training import parallel

ALONE = Runtime(torch.device("cpu"))
CASES = {
    **{name: Case(network=name, optim=QUICK) for name in NETWORKS},
    **{f"{name}, masked": Case(network=name, optim=QUICK, is_masked=True) for name in ("vit", "rich", "axial")},
    **{f"{name}, masked": Case(changes=HEADS[name], optim=QUICK, is_masked=True) for name in ("mean, then norm", "first")},
    "checkpointed": Case(changes={"gradient_checkpointing": True}, optim=QUICK),
    "relative": Case(changes={"position": "relative"}, optim=QUICK),
    "every layer": Case(changes={"position_insertion": "every-layer"}, optim=QUICK),
    "bfloat16": Case(precision="bfloat16", optim=QUICK),
    "float16": Case(precision="float16", optim=QUICK),
    "parts": Case(accumulation_steps=2, optim=QUICK),
}


@pytest.mark.parametrize("name", CASES)
def test_a_step_is_one_graph_and_computes_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    monkeypatch.setattr(parallel, "COMPILER", counter)
    _dynamo.reset()
    case = CASES[name]
    found = worker.run_short(ALONE, replace(case, is_compiled=True))
    assert counter.frame_count == 1  # one for all steps: nothing in it depends on the step
    half = case.precision != "float32"  # half precision may be fused differently
    assert found == pytest.approx(worker.run_short(ALONE, case), rel=1e-2 if half else 1e-5)


def test_evaluation_is_compiled_too(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    monkeypatch.setattr(parallel, "COMPILER", counter)
    _dynamo.reset()
    running = worker.Running(ALONE, Case(is_compiled=True))
    plain = worker.Running(ALONE, Case())
    assert running.evaluate() == pytest.approx(plain.evaluate(), rel=1e-5)
    assert counter.frame_count > 0
