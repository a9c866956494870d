"""bfloat16 and float16 on the CPU: they learn as float32 does, and float16 recovers from gradients that overflow.

On real data: the 1,797 handwritten digits of scikit-learn.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training import parallel_worker as worker
from tests.training.parallel_worker import Case
from tests.training.recording import Recorder
from vitrine.core.runtime import Runtime
from vitrine.data.augment.transforms import TrainTransform
from vitrine.data.config import AugmentConfig, LoaderConfig
from vitrine.data.loader import Loader
from vitrine.data.open_data import find_data
from vitrine.data.preprocessing import build_inception_preprocessing
from vitrine.models.registry import build_model
from vitrine.objectives.config import SupervisedConfig
from vitrine.objectives.supervised import Supervised
from vitrine.training import loop, parallel
from vitrine.training.config import MachineConfig, OptimConfig
from vitrine.training.loop import Metrics, fit
from vitrine.training.optimizer import build_optimizer
from vitrine.training.parallel import Parallel
from vitrine.training.state import TrainState

ALONE = Runtime(torch.device("cpu"))
NUM_STEPS = 200
OPTIM = OptimConfig(learning_rate=1e-3, warmup_steps=20)
NETWORK: dict[str, Any] = {"width": 32, "depth": 3, "num_heads": 2, "mlp_dim": 64, "image_size": 8, "num_channels": 1}


def train(precision: Any) -> list[Metrics]:
    """Train on digits and return the metrics of every step."""
    torch.manual_seed(0)
    source = find_data("digits").open_train()
    preprocessing = build_inception_preprocessing((8, 8), 1)
    model = build_model("ViT-Ti/2", num_classes=10, **NETWORK)
    objective = Supervised(model, preprocessing, SupervisedConfig())
    running = Parallel(objective, MachineConfig(precision=precision), ALONE)
    state = TrainState(objective, build_optimizer(objective, OPTIM), None, running.build_scaler())
    loader = Loader(source, TrainTransform(AugmentConfig(crop="none", flip=False), preprocessing), LoaderConfig(batch_size=64))
    callback = Recorder()
    fit(state, loader.read(), total_steps=NUM_STEPS, optim=OPTIM, parallel=running, runtime=ALONE, callback=callback)
    return callback.records


def mean_loss(records: list[Metrics]) -> float:
    """Return the mean loss of steps 181 to 200."""
    return sum(record["loss"] for record in records[180:]) / 20


@pytest.fixture(scope="module")
def single() -> list[Metrics]:
    return train("float32")


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_it_learns_as_float32_does(precision: str, single: list[Metrics]) -> None:
    found = train(precision)
    assert mean_loss(single) < 1.6  # of 2.3 at the start: something was learnt
    assert mean_loss(found) == pytest.approx(mean_loss(single), rel=0.02)
    assert [record["loss"] for record in found] != [record["loss"] for record in single]
    assert all(record.get("skipped_steps", 0) == 0 for record in found)


def test_a_scale_that_is_far_too_large_is_halved_until_it_fits(single: list[Metrics], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "INITIAL_SCALE", 2.0**30)
    found = train("float16")
    skipped = [record["skipped_steps"] for record in found]
    num_skipped = int(sum(skipped))
    assert 5 < num_skipped < 20
    assert skipped[:5] == [1.0] * 5
    assert "grad_norm" not in found[0]  # of a step that was skipped there is none
    assert sum(skipped[-150:]) <= 1  # torch tries a larger scale every 2000 steps only
    assert mean_loss(found) == pytest.approx(mean_loss(single), rel=0.25)  # it has lost some of the first steps


def test_gradients_that_no_scale_mends_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "MAX_SKIPPED", 3)
    monkeypatch.setattr(parallel, "INITIAL_SCALE", 2.0**60)
    with pytest.raises(FloatingPointError, match="not finite at step 3"):
        train("float16")


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_every_optimizer_and_precision_resumes_bit_for_bit(
    kind: Any, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "INITIAL_SCALE", 2.0**26)  # so that steps are skipped before and after the interruption
    case = Case(precision=precision, optim=OptimConfig(kind=kind, learning_rate=3e-3, warmup_steps=5))
    found = worker.run_halves(ALONE, case, tmp_path)
    assert found["is restored"]
    assert found["is equal"]
    assert found["losses again"] == found["losses"]
    saved = worker.load(ALONE, tmp_path / f"ddp {'' if precision == 'float32' else precision + ' '}half")[1]
    scales = {name: float(tensor) for name, tensor in saved.items() if name.startswith("scaler.")}
    assert (scales != {}) == (precision == "float16")
    assert not scales or scales["scaler.scale"] < 2.0**26
