"""What each of two processes does for test_parallel.py, started by `torchrun .. -m tests.training.parallel_worker FOLDER`.

Everything here runs on one process too, and the tests compare the two. Errors are recorded as results, so that one failing
case does not hide the others.
"""

import faulthandler
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor

from tests.training.recording import Recorder
from vitrine.core.runtime import Runtime, start_runtime
from vitrine.data.augment.transforms import EvalTransform, TrainTransform
from vitrine.data.batch import Batch
from vitrine.data.config import AugmentConfig, LoaderConfig, MixupConfig
from vitrine.data.loader import Loader
from vitrine.data.preprocessing import build_inception_preprocessing
from vitrine.data.source import ArraySource, Labels
from vitrine.evaluation.topk import count_hits
from vitrine.models.registry import build_model
from vitrine.objectives.config import MaskedPatchesConfig, SupervisedConfig
from vitrine.objectives.masked_patches import MaskedPatches
from vitrine.objectives.objective import LossOutput
from vitrine.objectives.supervised import Supervised
from vitrine.training import parallel
from vitrine.training.config import MachineConfig, OptimConfig, Sharding
from vitrine.training.ema import WeightEma
from vitrine.training.loop import MetricAverager, Metrics, accumulate_gradients, fit
from vitrine.training.optimizer import build_optimizer, freeze
from vitrine.training.parallel import Parallel
from vitrine.training.state import Tensors, TrainState, gather_model, gather_training, restore

BATCH_SIZE, NUM_STEPS = 16, 20
HALF, BEYOND = 10, 14
BAD_STEP = 2
PATIENCE_S = 600
CLASSES = ("one", "two", "three", "four", "five")
SMALL: dict[str, Any] = {"width": 16, "depth": 2, "num_heads": 2, "mlp_dim": 32, "image_size": 16}
STEM: dict[str, Any] = {"image_size": 32, "stem_stages": (1, 2), "stem_width_factor": 0.25, "stem_num_groups": 4}
OPTIM = OptimConfig(learning_rate=3e-3, warmup_steps=5, layer_decay=0.8)
QUICK = OptimConfig(learning_rate=3e-3)
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("ViT-Ti/8", SMALL),
    "rich": ("ViT-Ti/8", SMALL | {"pool": "map", "num_registers": 3, "layer_scale": 0.1, "hidden_head": True}),
    "readout": ("ViT-Ti/8", SMALL | {"readout_layers": (0, 1), "readout": "both"}),
    "axial": ("Axial-ViT-Ti/8", SMALL),
    "hybrid": ("R26+ViT-Ti/32", SMALL | STEM),
    "resnet": ("R50x1", {"image_size": 32, "stages": (1, 2), "width_factor": 0.25, "num_groups": 4}),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """How a run differs from the default one."""

    sharding: Sharding = "ddp"
    accumulation_steps: int = 1
    network: str = "vit"
    changes: dict[str, Any] = field(default_factory=dict)
    optim: OptimConfig = OPTIM
    factor: float | None = 0.9
    precision: Any = "float32"
    is_masked: bool = False
    is_compiled: bool = False


CURVES = {
    f"{sharding} {parts}": Case(sharding=sharding, accumulation_steps=parts) for sharding in ("ddp", "fsdp") for parts in (1, 4)
}
SHORT = {
    **{name: Case(sharding="fsdp", network=name, optim=QUICK) for name in NETWORKS if name != "vit"},
    "masked patches": Case(sharding="fsdp", optim=QUICK, is_masked=True),
    "checkpointed": Case(sharding="fsdp", changes={"gradient_checkpointing": True}, optim=QUICK),
    "frozen": Case(sharding="fsdp", optim=replace(QUICK, frozen_blocks=1)),
    "head alone": Case(sharding="fsdp", optim=replace(QUICK, frozen_blocks=-1)),
    "sgd": Case(sharding="fsdp", optim=OptimConfig(kind="sgd", learning_rate=0.1, max_grad_norm=0.1), factor=None),
}
# Every way to pool and every head, with each objective that takes it. DDP waits for parameters that get no gradient.
HEADS: dict[str, dict[str, Any]] = {
    "class": {},
    "mean": {"pool": "mean"},
    "mean, then norm": {"pool": "mean", "norm_after_pool": True},
    "map": {"pool": "map"},
    "first": {"pool": "first"},
    "hidden": {"hidden_head": True},
    "map, hidden": {"pool": "map", "hidden_head": True},
    "mean, hidden, registers": {"pool": "mean", "hidden_head": True, "num_registers": 2},
    "distilled": {"distillation_token": True},
    "readout": {"readout_layers": (0, 1), "readout": "both"},
}
POOLED = {
    f"{name}, {'masked' if is_masked else 'labels'}": Case(changes=changes, optim=QUICK, is_masked=is_masked)
    for name, changes in HEADS.items()
    for is_masked in (False, True)
    if not (is_masked and name in ("distilled", "readout"))  # these are ways to read logits
}
HALF_PRECISION = {
    f"{sharding} {precision}": Case(sharding=sharding, precision=precision)
    for sharding in ("ddp", "fsdp")
    for precision in ("bfloat16", "float16")
}
COMPILED = {
    f"compiled {sharding}, {'masked' if is_masked else 'labels'}": Case(
        sharding=sharding, optim=QUICK, is_masked=is_masked, is_compiled=True
    )
    for sharding in ("ddp", "fsdp")
    for is_masked in (False, True)
}
FIRST_STEPS = {
    f"{sharding}, {parts} parts, {'masked' if is_masked else 'mixup'}": Case(
        sharding=sharding, accumulation_steps=parts, is_masked=is_masked
    )
    for sharding in ("ddp", "fsdp")
    for parts in (1, 4)
    for is_masked in (False, True)
}
NUM_SHORT_STEPS = 3


def build_source(num_images: int, side: int) -> ArraySource:
    """Noise whose brightness depends on the class, so that there is something to learn."""
    generator = np.random.default_rng(num_images)
    labels = generator.integers(len(CLASSES), size=num_images)
    noise = generator.integers(0, 128, (num_images, side, side, 3))
    return ArraySource((noise + 25 * labels[:, None, None, None]).astype(np.uint8), Labels(labels), CLASSES, "noise")


class Running:
    """A run of a case: what `vitrine.run` builds from a recipe, in short."""

    def __init__(self, runtime: Runtime, case: Case, kind: type[Supervised] = Supervised, is_double: bool = False) -> None:
        torch.manual_seed(0)
        name, settings = NETWORKS[case.network]
        num_classes = 0 if case.is_masked else len(CLASSES)
        model = build_model(name, num_classes=num_classes, **(settings | case.changes))
        self.preprocessing = build_inception_preprocessing(model.config.image_size)
        self.objective = (
            MaskedPatches(model, self.preprocessing, MaskedPatchesConfig(), seed=1)
            if case.is_masked
            else kind(model, self.preprocessing, SupervisedConfig(), MixupConfig(mixup=0.3), seed=1)
        )
        if is_double:
            self.objective.double()
        freeze(self.objective, case.optim)
        machine = MachineConfig(
            sharding=case.sharding,
            accumulation_steps=case.accumulation_steps,
            precision=case.precision,
            compile=case.is_compiled,
        )
        self.parallel = Parallel(self.objective, machine, runtime)
        average = None if case.factor is None else WeightEma(self.objective, case.factor)
        optimizer, scaler = build_optimizer(self.objective, case.optim), self.parallel.build_scaler()
        self.state = TrainState(self.objective, optimizer, average, scaler)
        self.runtime, self.case = runtime, case
        self.records: list[Metrics] = []

    def build_loader(self) -> Loader:
        return Loader(
            build_source(40, self.preprocessing.crop[0]),  # epochs end within batches
            TrainTransform(AugmentConfig(crop="pad", padding=1), self.preprocessing),
            LoaderConfig(batch_size=BATCH_SIZE, num_workers=0),
            seed=3,
            draw=self.objective.build_draw(),
            rank=self.runtime.rank,
            world_size=self.runtime.world_size,
        )

    def train(self, num_steps: int, every: int = 1) -> list[float]:
        """Train up to a step of a run of NUM_STEPS steps; return the losses, read every few steps."""
        callback = Recorder(lambda step: step % every == 0 or step == num_steps, stop_at=num_steps)
        self.state.is_stopped = False
        fit(
            self.state,
            self.build_loader().read(self.state.step),
            total_steps=NUM_STEPS,
            optim=self.case.optim,
            parallel=self.parallel,
            runtime=self.runtime,
            accumulation_steps=self.case.accumulation_steps,
            callback=callback,
        )
        self.records += callback.records
        return [record["loss"] for record in callback.records]

    def gather(self) -> tuple[Tensors, Tensors]:
        """Return copies of the gathered state; on one process the tensors are the weights themselves."""
        model, training = gather_model(self.state), gather_training(self.state)
        return {name: value.clone() for name, value in model.items()}, {name: value.clone() for name, value in training.items()}

    def restore(self, step: int, model: Tensors, training: Tensors) -> None:
        restore(self.state, model, training)
        self.state.step = step

    def read_test_images(self) -> Iterator[Batch]:
        """Read an odd number of images: with two ranks, one has none of the last batch."""
        loader = Loader(
            build_source(2 * BATCH_SIZE + 1, self.preprocessing.crop[0]),
            EvalTransform(self.preprocessing),
            LoaderConfig(batch_size=BATCH_SIZE, num_workers=0),
            shuffle=False,
            rank=self.runtime.rank,
            world_size=self.runtime.world_size,
        )
        return loader.read_epoch()

    def evaluate(self) -> list[float]:
        """Return counts of hits and a sum over features."""
        with self.parallel.evaluating():
            counts = count_hits(self.objective.logits, self.read_test_images(), self.runtime.device)
            with torch.no_grad():
                sums = [self.objective.features(batch.image).double().square().sum() for batch in self.read_test_images()]
        return self.runtime.sum(torch.stack([*counts, torch.stack(sums).sum()])).tolist()


class Poisoned(Supervised):
    """An objective whose loss is not finite on one rank at one step; gradients carry it to the others."""

    is_bad_here = False

    def forward(self, batch: Batch) -> LossOutput:
        output = super().forward(batch)
        return LossOutput(output.loss * (math.nan if self.is_bad_here and batch.step == BAD_STEP else 1.0))


def run_curve(runtime: Runtime, case: Case) -> list[Metrics]:
    running = Running(runtime, case)
    running.train(NUM_STEPS)
    return running.records


def run_first_step(runtime: Runtime, case: Case) -> dict[str, Any]:
    """Return loss and gradients of the first step in float64."""
    running = Running(runtime, case, is_double=True)
    batch = next(running.build_loader().read())
    batch = replace(batch, image=batch.image.double() / 255)
    metrics = MetricAverager(runtime)
    running.objective.train()
    accumulate_gradients(batch.split(case.accumulation_steps), running.parallel, running.state, metrics, (0, 0, runtime.rank))
    gradients = {name: parameter.grad for name, parameter in running.objective.named_parameters() if parameter.grad is not None}
    whole = {name: grad.full_tensor() if isinstance(grad, DTensor) else grad for name, grad in gradients.items()}
    return {"loss": metrics.read()["loss"], **{name: grad.flatten().tolist() for name, grad in whole.items()}}


def run_short(runtime: Runtime, case: Case) -> list[float]:
    return Running(runtime, case).train(NUM_SHORT_STEPS)


def run_halves(runtime: Runtime, case: Case, out: Path) -> dict[str, Any]:
    """Compare an uninterrupted run with one that is saved halfway and restored into new objects."""
    whole = Running(runtime, case)
    whole.train(HALF)
    name = f"{case.sharding} {'' if case.precision == 'float32' else case.precision + ' '}half"
    save(runtime, out / name, *whole.gather())
    losses, expected = whole.train(BEYOND), whole.gather()
    saved = load(runtime, out / name)
    again = Running(runtime, case)
    again.restore(HALF, *saved)
    restored = again.gather()
    is_restored = not runtime.is_main or are_equal(restored, saved)  # only the main process has what was gathered
    losses_again, found = again.train(BEYOND), again.gather()
    is_equal = not runtime.is_main or are_equal(found, expected)
    return {"losses": losses, "losses again": losses_again, "is restored": is_restored, "is equal": is_equal}


def run_from_one(runtime: Runtime, case: Case, out: Path) -> list[float]:
    """Resume a run that one process started, and return its losses."""
    running = Running(runtime, case)
    running.restore(HALF, *load(runtime, out / "one half"))
    return running.train(BEYOND)


def run_evaluated(runtime: Runtime, case: Case) -> dict[str, Any]:
    """Evaluate between the steps of a run, with and without averaged weights."""
    running, undisturbed = Running(runtime, case), Running(runtime, case)
    counts = [running.evaluate()]
    losses = running.train(2)
    counts.append(running.evaluate())
    assert running.state.average is not None
    with running.state.average.swapped_in():
        counts.append(running.evaluate())
    running.gather()
    losses += running.train(5)
    return {"counts": counts, "losses": losses, "undisturbed": undisturbed.train(5)}


def run_poisoned(runtime: Runtime, case: Case, bad_rank: int) -> str:
    """Return the error of a run whose loss was not finite on one rank, read some steps later."""
    running = Running(runtime, case, Poisoned)
    assert isinstance(running.objective, Poisoned)
    running.objective.is_bad_here = runtime.rank == bad_rank
    try:
        return f"went on: {running.train(2 * BAD_STEP, every=2 * BAD_STEP)}"
    except FloatingPointError as error:
        return str(error)


def save(runtime: Runtime, path: Path, model: Tensors, training: Tensors) -> None:
    if runtime.is_main:
        for name, tensors in (("model", model), ("training", training)):
            save_file({key: value.contiguous() for key, value in tensors.items()}, f"{path} {name}.safetensors")


def load(runtime: Runtime, path: Path) -> tuple[Tensors, Tensors]:
    runtime.sum(torch.zeros(1))  # what the main process writes is there for all
    return load_file(f"{path} model.safetensors"), load_file(f"{path} training.safetensors")


def are_equal(some: tuple[Tensors, Tensors], others: tuple[Tensors, Tensors]) -> bool:
    return all(
        one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
        for one, other in zip(some, others, strict=True)
    )


def attempt(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main(out: Path) -> None:
    ddp, fsdp = Case(), Case(sharding="fsdp")
    found: dict[str, Any] = {}
    with start_runtime("cpu") as runtime:

        def note(name: str, function: Callable[..., Any], *arguments: Any) -> None:
            # What breaks in one process alone leaves the others waiting for it: then all end, and say where.
            faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
            found[name] = attempt(function, runtime, *arguments)
            (out / f"{runtime.rank}.json").write_text(json.dumps(found))
            dist.barrier()

        for name, case in CURVES.items():
            note(name, run_curve, case)
        for case in (ddp, fsdp):
            note(f"{case.sharding} halves", run_halves, case, out)
            note(f"{case.sharding} from one", run_from_one, case, out)
            note(f"{case.sharding} evaluated", run_evaluated, case)
        for name, case in HALF_PRECISION.items():
            note(name, run_curve, case)
            note(f"{name} halves", run_halves, case, out)
        for bad_rank in (0, 1):
            note(f"poisoned {bad_rank}", run_poisoned, ddp, bad_rank)
        for name, case in (SHORT | POOLED).items():
            note(name, run_short, case)
        parallel.COMPILER = "aot_eager"  # as fast to start as plain torch, and it takes or refuses the same graphs
        for name, case in COMPILED.items():
            note(name, run_short, case)
        for name, case in FIRST_STEPS.items():
            note(name, run_first_step, case)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
