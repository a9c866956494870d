"""What is run on the fake device, in groups: networks, training, evaluation, inspection.

A case is a function of the device. Faults are recorded by the device, and a case adds what differs from the CPU. Importing
this file registers nothing, so that tests can list the cases.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from tests.devices.fake_device import NAME, FakeDevice
from tests.filling import fill_randomly
from vitrine.core.runtime import Runtime
from vitrine.data.batch import Batch
from vitrine.data.config import DataConfig, LoaderConfig, MixupConfig
from vitrine.data.preprocessing import build_inception_preprocessing
from vitrine.data.source import ArraySource, Labels, Source
from vitrine.engines.engine import TorchEngine
from vitrine.evaluation import evaluators, features, topk
from vitrine.evaluation.config import EvaluationConfig, InferenceConfig
from vitrine.evaluation.evaluators import EVALUATORS, EvaluationSetup
from vitrine.evaluation.predictor import Predictor
from vitrine.formats.checkpoint import Checkpoint
from vitrine.formats.save import save_checkpoint
from vitrine.formats.verify import compute_outputs
from vitrine.inspection import attention, distance, filters, patch_features, positions, report, rollout
from vitrine.inspection.config import RolloutConfig
from vitrine.inspection.inspect_model import inspect
from vitrine.models.model import Model, PatchSubset
from vitrine.models.registry import build_model
from vitrine.models.settings import ModelSettings
from vitrine.objectives.config import MaskedPatchesConfig, SupervisedConfig
from vitrine.objectives.masked_patches import MaskedPatches
from vitrine.objectives.objective import Objective
from vitrine.objectives.supervised import Supervised
from vitrine.recipe import Recipe
from vitrine.run import run
from vitrine.run.run import run_recipe
from vitrine.training.config import MachineConfig, OptimConfig, Precision, ReportConfig
from vitrine.training.ema import WeightEma
from vitrine.training.loop import MetricAverager, Metrics, fit
from vitrine.training.metrics_log import read_records
from vitrine.training.optimizer import build_optimizer, freeze
from vitrine.training.parallel import Parallel
from vitrine.training.state import TrainState, gather_model, gather_training, restore

Case = Callable[[FakeDevice], None]

CPU = torch.device("cpu")
SIZE, NUM_CLASSES, BATCH_SIZE, NUM_STEPS = 16, 3, 4, 2
SHAPE: dict[str, Any] = {"width": 16, "depth": 2, "num_heads": 2, "mlp_dim": 32}
SMALL = SHAPE | {"image_size": SIZE, "num_classes": NUM_CLASSES}
STEM: dict[str, Any] = {"stem_stages": (1, 1), "stem_width_factor": 0.25, "stem_num_groups": 4, "image_size": 32}
RUN_MODEL = SHAPE | {"image_size": 8, "patch_size": 4, "num_channels": 1}
RESNET: dict[str, Any] = {
    "image_size": 32,
    "stages": (1, 1),
    "width_factor": 0.25,
    "num_groups": 4,
    "num_classes": NUM_CLASSES,
}
# One network of each family, and of each part that a ViT may have.
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "class token": ("ViT-Ti/8", SMALL),
    "mean": ("ViT-Ti/8", SMALL | {"pool": "mean"}),
    "norm after mean": ("ViT-Ti/8", SMALL | {"pool": "mean", "norm_after_pool": True, "gelu": "erf"}),
    "attention pool": ("ViT-Ti/8", SMALL | {"pool": "map"}),
    "first patch": ("ViT-Ti/8", SMALL | {"pool": "first", "gelu": "quick"}),
    "hidden head": ("ViT-Ti/8", SMALL | {"hidden_head": True}),
    "no head": ("ViT-Ti/8", SMALL | {"num_classes": 0}),
    "registers": ("ViT-Ti/8", SMALL | {"num_registers": 2}),
    "registers with positions": ("ViT-Ti/8", SMALL | {"num_registers": 2, "register_position": True}),
    "distillation token": ("ViT-Ti/8", SMALL | {"distillation_token": True}),
    "no positions": ("ViT-Ti/8", SMALL | {"position": "none"}),
    "two-dimensional": ("ViT-Ti/8", SMALL | {"position": "learned-2d"}),
    "sin-cos": ("ViT-Ti/8", SMALL | {"position": "sincos-2d"}),
    "relative": ("ViT-Ti/8", SMALL | {"position": "relative", "num_registers": 1}),
    "positions in every layer": ("ViT-Ti/8", SMALL | {"position_insertion": "every-layer"}),
    "shared positions": ("ViT-Ti/8", SMALL | {"position_insertion": "shared"}),
    "readout of layers": ("ViT-Ti/8", SMALL | {"readout_layers": (0, 1), "readout": "both"}),
    "swiglu": ("ViT-Ti/8", SMALL | {"mlp": "swiglu", "layer_scale": 0.1, "pre_norm": True}),
    "dropout": ("ViT-Ti/8", SMALL | {"dropout_rate": 0.1, "stochastic_depth_rate": 0.1}),
    "checkpointed": ("ViT-Ti/8", SMALL | {"gradient_checkpointing": True}),
    "many tokens": ("ViT-Ti/2", SMALL),
    "axial": ("Axial-ViT-B/8", SMALL),
    "hybrid": ("R26+ViT-Ti/32", SMALL | STEM),
    "resnet": ("R26x1", RESNET),
}


def build_network(kind: str, **changes: Any) -> Model[Any]:
    name, settings = NETWORKS[kind]
    model = build_model(name, **(settings | changes))
    fill_randomly(model)
    return model.eval()


def draw_images(config: Any, count: int = BATCH_SIZE) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, config.num_channels, *config.image_size, generator=generator)


def to_cpu(result: Any) -> Any:
    if isinstance(result, dict):
        return {name: to_cpu(value) for name, value in result.items()}
    return result.detach().cpu() if isinstance(result, Tensor) else result


REFERENCES: dict[tuple[str, str], Any] = {}
"""What was computed on the CPU, by case and name."""


def refer(device: FakeDevice, what: str, compute: Callable[[], Any]) -> Any:
    """Return a result computed on the CPU; it is computed once, and kept for the same case with broken functions."""
    key = (device.case, what)
    if key not in REFERENCES:
        REFERENCES[key] = compute()
    return REFERENCES[key]


def compare(device: FakeDevice, what: str, actual: Any, expected: Any, tolerance: float = 1e-4) -> None:
    """Record a fault if a result on the device differs from that on the CPU by more than rounding."""
    try:
        # Not the default tolerance: other kernels are chosen.
        torch.testing.assert_close(to_cpu(actual), to_cpu(expected), rtol=tolerance, atol=tolerance, equal_nan=True)
    except (AssertionError, TypeError) as error:
        device.record("result", f"{what}: {error}")


# Networks


def run_network(device: FakeDevice, kind: str) -> None:
    """Run a network forward in evaluation, and forward and backward in training."""
    model = build_network(kind)
    images = draw_images(model.config)
    with torch.no_grad():
        expected = refer(device, "logits", lambda: model(images))
    model.to(NAME)
    on_device = images.to(NAME)
    with device.without_waits():
        with torch.no_grad():
            logits = model(on_device)
        model.train()
        model(on_device).square().sum().backward()
    compare(device, "logits", logits, expected)


def drop_patches(device: FakeDevice) -> None:
    """Encode half of the patches, and record all intermediates."""
    model = build_network("class token")
    images, indices = draw_images(model.config), torch.tensor([[0, 2]] * BATCH_SIZE)

    def encode(images: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
        encoded = model.encode(images, edit=lambda tokens: PatchSubset(tokens[:, ::2], indices), keep="*")
        return encoded.patches, encoded.kept["blocks.1.attention"]

    with torch.no_grad():
        expected = encode(images, indices)
        model.to(NAME)
        images, indices = images.to(NAME), indices.to(NAME)
        with device.without_waits():
            actual = encode(images, indices)
    for each, other in zip(actual, expected, strict=True):
        compare(device, "patches and attention", each, other)


def resize_network(device: FakeDevice, kind: str) -> None:
    """Change image size and head of a network that is on the device."""
    model = build_network(kind)
    other = deepcopy(model)
    model.to(NAME)
    for each in (model, other):
        each.resize(24)
        each.reset_head(5, head_bias=1.0)
    images = draw_images(model.config)
    with torch.no_grad():
        expected = other.encode(images).tokens
        compare(device, "tokens", model.encode(images.to(NAME)).tokens, expected)
        compare(device, "logits", model(images.to(NAME)), torch.ones(BATCH_SIZE, 5))


# Training


def draw_batches(
    num_batches: int, objective: Objective | None = None, *, is_pinned: bool = True, has_several: bool = False
) -> Iterator[Batch]:
    """Yield batches as the loader does, by default in pinned memory, with the draws of an objective."""
    for step in range(num_batches):
        generator = torch.Generator().manual_seed(step)
        images = torch.randint(0, 256, (BATCH_SIZE, 3, SIZE, SIZE), dtype=torch.uint8, generator=generator)
        index = BATCH_SIZE * step + torch.arange(BATCH_SIZE)
        classes = index % NUM_CLASSES
        batch = Batch(images, torch.eye(NUM_CLASSES)[classes] if has_several else classes, index, step)
        batch = batch if objective is None else objective.add_draws(batch)
        yield batch.pin_memory() if is_pinned else batch


def build_supervised(mixing: MixupConfig | None = None, kind: str = "class token", **settings: Any) -> Objective:
    changes = {} if kind == "dropout" else {"depth": 1}
    return Supervised(
        build_network(kind, **changes), build_inception_preprocessing((SIZE, SIZE)), SupervisedConfig(**settings), mixing
    )


def build_masked(target: Any) -> Objective:
    model = build_network("class token", num_classes=0, depth=1)
    objective = MaskedPatches(model, build_inception_preprocessing((SIZE, SIZE)), MaskedPatchesConfig(target=target))
    fill_randomly(objective)
    return objective


class Reader:
    """Callback that reads the metrics of each step, for which the host may wait."""

    def __init__(self, device: FakeDevice | None) -> None:
        self.device = device
        self.metrics: list[Metrics] = []

    def after_step(self, state: TrainState, metrics: MetricAverager, lr: float) -> None:
        with nullcontext() if self.device is None else self.device.with_waits():
            self.metrics.append(metrics.read())


def build_state(
    objective: Objective, runtime: Runtime, optim: OptimConfig, precision: Precision = "float32"
) -> tuple[TrainState, Parallel]:
    freeze(objective, optim)
    parallel = Parallel(objective, MachineConfig(precision=precision), runtime)
    optimizer, scaler = build_optimizer(objective, optim), parallel.build_scaler()
    return TrainState(objective, optimizer, WeightEma(objective, 0.9), scaler), parallel


def train(
    objective: Objective,
    optim: OptimConfig,
    device: FakeDevice | None,
    batches: Iterable[Batch],
    accumulation_steps: int = 1,
    precision: Precision = "float32",
) -> tuple[TrainState, list[Metrics]]:
    """Train for some steps on the fake device, or on the CPU, and return the metrics of each."""
    runtime, reader = Runtime(CPU if device is None else torch.device(NAME)), Reader(device)
    state, parallel = build_state(objective, runtime, optim, precision)
    with nullcontext() if device is None else device.without_waits():
        fit(
            state,
            iter(batches),
            total_steps=NUM_STEPS,
            optim=optim,
            parallel=parallel,
            runtime=runtime,
            accumulation_steps=accumulation_steps,
            callback=reader,
        )
    return state, reader.metrics


def run_training(
    device: FakeDevice,
    build_objective: Callable[[], Objective],
    optim: OptimConfig | None = None,
    *,
    has_several: bool = False,
    accumulation_steps: int = 1,
) -> None:
    """Train on the device without a wait inside a step, and compare metrics and weights with the CPU."""
    # A large epsilon: without it, Adam makes steps of rounding errors where a gradient is 0, as that of a key's bias.
    optim = optim or OptimConfig(learning_rate=0.01, eps=1e-3)
    draw = partial(draw_batches, NUM_STEPS, build_objective(), has_several=has_several)
    state, metrics = train(build_objective(), optim, device, draw(), accumulation_steps)
    batches = draw(is_pinned=False)
    expected_state, expected = refer(
        device, "training", lambda: train(build_objective(), optim, None, batches, accumulation_steps)
    )
    compare(device, "metrics", metrics, expected)
    compare(device, "averages", state.average.values, expected_state.average.values)


def train_in_half_precision(device: FakeDevice) -> None:
    """Train in bfloat16 on the device without a wait, and compare the losses with those in float32."""
    optim = OptimConfig(learning_rate=0.01, eps=1e-3)
    _, metrics = train(build_supervised(), optim, device, draw_batches(NUM_STEPS), precision="bfloat16")
    _, expected = refer(device, "training", lambda: train(build_supervised(), optim, None, draw_batches(NUM_STEPS)))
    losses, expected_losses = ([each["loss"] for each in steps] for steps in (metrics, expected))
    compare(device, "losses", losses, expected_losses, tolerance=0.05)  # bfloat16 has 8 bits
    if all(abs(loss - other) < 1e-5 for loss, other in zip(losses, expected_losses, strict=True)):
        device.record("result", "losses in bfloat16 are those in float32")


def train_without_pinned_memory(device: FakeDevice) -> None:
    """Train with batches in ordinary memory, as on Apple's devices: copies have to be waited for."""
    objective = build_supervised()
    runtime, optim = Runtime(torch.device(NAME)), OptimConfig()
    state, parallel = build_state(objective, runtime, optim)
    batches = draw_batches(NUM_STEPS, is_pinned=False)
    fit(state, batches, total_steps=NUM_STEPS, optim=optim, parallel=parallel, runtime=runtime)


def save_and_restore(device: FakeDevice) -> None:
    """Gather the state of training for a checkpoint, and restore it."""
    objective, optim = build_supervised(), OptimConfig()
    state, _ = train(objective, optim, device, draw_batches(NUM_STEPS))
    model, training = gather_model(state), gather_training(state)
    for name, tensor in (model | training).items():
        if tensor.device.type != "cpu":
            device.record("result", f"{name} is saved on {tensor.device}")
    other, _ = build_state(build_supervised(), Runtime(torch.device(NAME)), optim)
    restore(other, model, training)
    for name, parameter in state.objective.named_parameters():
        compare(device, name, other.objective.get_parameter(name), parameter)


# Runs


def run_recipes(device: FakeDevice, **changes: Any) -> None:
    """Train by a recipe, with augmentation, evaluation and checkpoints, and compare its losses with those on the CPU."""
    with TemporaryDirectory() as folder, patch.object(run, "write_run_report"):  # drawing takes longer than the rest
        start = Path(folder) / "start"
        if changes.get("head_init", "zero") != "zero":
            model = build_model("ViT-Ti/16", num_classes=2, **RUN_MODEL)
            fill_randomly(model)
            save_checkpoint(Checkpoint(model, build_inception_preprocessing((8, 8), 1), None), start)
        settings = ModelSettings(checkpoint=str(start)) if start.exists() else ModelSettings(name="ViT-Ti/16", **RUN_MODEL)
        recipe = Recipe(
            model=settings,
            data=DataConfig(source="digits", held_out=0.1),
            loader=LoaderConfig(batch_size=32, num_workers=0),
            optim=OptimConfig(learning_rate=0.01, eps=1e-3),  # as in `run_training`
            evaluation=EvaluationConfig(num_times=1, few_shot=1),
            machine=MachineConfig(precision="float32"),
            report=ReportConfig(every_steps=1),
            total_steps=NUM_STEPS,
            **changes,
        )

        def run_on(name: str) -> list[float]:
            out = Path(folder) / name
            run_recipe(replace(recipe, device=name), out)
            return [record["loss"] for record in read_records(out / "metrics.jsonl") if "loss" in record]

        compare(device, "losses", run_on(NAME), refer(device, "losses", lambda: run_on("cpu")))


# Evaluation


def build_checkpoint(kind: str = "class token") -> Checkpoint:
    model = build_network(kind)
    return Checkpoint(model, build_inception_preprocessing(model.config.image_size), ("dark", "grey", "light"))


def make_source(num_images: int) -> ArraySource:
    pixels = np.random.default_rng(num_images).integers(0, 256, (num_images, SIZE, SIZE, 3), dtype=np.uint8)
    return ArraySource(pixels, Labels.one_each(np.arange(num_images) % NUM_CLASSES), ("dark", "grey", "light"), "made")


def require_few_waits(device: FakeDevice, evaluate: Callable[[int], object], per_batch: int = 0) -> None:
    """Record a fault if the number of waits grows by more than `per_batch` with each batch of an evaluation."""
    few, many = (device.count_waits(partial(evaluate, num_batches)) for num_batches in (2, 5))
    if many - few > 3 * per_batch:
        device.record("wait", f"{few} waits for 2 batches, {many} for 5")


def run_predict_batch(device: FakeDevice, has_several: bool) -> None:
    """Predict one batch without a wait."""
    objective = build_supervised()
    objective.eval()
    batch = next(draw_batches(1, has_several=has_several))
    expected = topk.join_topk([topk.predict_batch(objective.logits, batch)])
    objective.to(NAME)
    with device.without_waits():
        actual = topk.predict_batch(objective.logits, batch.to(NAME))
    compare(device, "top-k", vars(topk.join_topk([actual])), vars(expected))


def run_count_hits(device: FakeDevice) -> None:
    """Count hits over batches with one read at the end."""
    objective = build_supervised().eval()
    expected = topk.count_hits(objective.logits, draw_batches(3), "cpu")
    objective.to(NAME)
    compare(device, "counts", topk.count_hits(objective.logits, draw_batches(3), NAME), expected)
    require_few_waits(device, lambda num_batches: topk.count_hits(objective.logits, draw_batches(num_batches), NAME))


def run_predict_batches(device: FakeDevice) -> None:
    """Predict all batches, and read the results at the end."""
    objective = build_supervised().eval()
    expected = topk.predict_batches(objective.logits, draw_batches(3), "cpu")
    objective.to(NAME)
    compare(device, "top-k", vars(topk.predict_batches(objective.logits, draw_batches(3), NAME)), vars(expected))
    require_few_waits(device, lambda num_batches: topk.predict_batches(objective.logits, draw_batches(num_batches), NAME))


def build_setup(objective: Objective, device: torch.device, num_batches: int) -> EvaluationSetup:
    """Build what evaluators use; a source is read in pinned batches."""

    def read(source: Source) -> Iterator[Batch]:
        for batch in draw_batches(-(-len(source) // BATCH_SIZE), is_pinned=False):
            yield batch.slice(0, len(source) - BATCH_SIZE * batch.step).pin_memory()

    return EvaluationSetup(
        objective=objective,
        runtime=Runtime(device),
        config=EvaluationConfig(few_shot=1),
        seed=0,
        train=make_source(BATCH_SIZE * num_batches),
        source=make_source(BATCH_SIZE * num_batches),
        split="val",
        read=read,
        evaluating=nullcontext,
    )


def run_evaluator(device: FakeDevice, name: str, build_objective: Callable[[], Objective], per_batch: int = 0) -> None:
    """Measure by an evaluator of a run, with the same metrics as on the CPU."""
    objective = build_objective().eval()
    measure = EVALUATORS[name].measure
    expected = refer(device, name, lambda: measure(build_setup(objective, CPU, 3)))
    objective.to(NAME)
    compare(device, name, measure(build_setup(objective, torch.device(NAME), 3)), expected)
    require_few_waits(device, lambda num_batches: measure(build_setup(objective, torch.device(NAME), num_batches)), per_batch)


def run_classify_images(device: FakeDevice) -> None:
    """Predict each image at the end of a run."""
    objective = build_supervised().eval()
    objective.to(NAME)
    require_few_waits(device, lambda count: evaluators.classify_images(build_setup(objective, torch.device(NAME), count)))


def run_engine(device: FakeDevice, method: str) -> None:
    """Compute logits or features of raw images without a wait."""
    images = next(draw_batches(1)).image
    expected = getattr(TorchEngine(build_checkpoint()), method)(images)
    engine = TorchEngine(build_checkpoint(), NAME)
    images = images.to(NAME)
    with device.without_waits():
        actual = getattr(engine, method)(images)
    compare(device, method, actual, expected)


def run_extract_features(device: FakeDevice, is_pinned: bool) -> None:
    """Extract features, which are read once for each batch."""
    objective = build_supervised().eval()
    expected = features.extract_features(objective.features, draw_batches(3))
    objective.to(NAME)

    def extract(num_batches: int) -> Any:
        return features.extract_features(objective.features, draw_batches(num_batches, is_pinned=is_pinned), NAME)

    compare(device, "features", vars(extract(3)), vars(expected))
    require_few_waits(device, extract, per_batch=1 if is_pinned else 2)


def run_predictor(device: FakeDevice) -> None:
    """Predict classes and attention maps of images in memory, and hash the model."""
    images = [make_source(3).read(index)[0].to_pil(3) for index in range(3)]
    inference = InferenceConfig(num_workers=0)
    actual, expected = (Predictor(build_checkpoint(), torch.device(name), inference) for name in (NAME, "cpu"))
    for each, other in zip(actual.predict(images).predictions, expected.predict(images).predictions, strict=True):
        compare(device, "probabilities", each.probabilities, other.probabilities)
    compare(device, "attention", actual.attention(images, layer=1), expected.attention(images, layer=1))
    if actual.engine.fingerprint() != expected.engine.fingerprint():
        device.record("result", "another fingerprint")


def run_verify(device: FakeDevice) -> None:
    """Compute what a conversion compares."""
    images = next(draw_batches(1)).image
    actual, expected = (compute_outputs(build_checkpoint(), images, name) for name in (NAME, "cpu"))
    for each, other in zip(actual, expected, strict=True):
        compare(device, "outputs", each, other)


# Inspection


def inspect_network(device: FakeDevice, kind: str, compute: Callable[[Model[Any], Tensor], Any]) -> None:
    """Compute what is shown of a network on the device and on the CPU; waiting for results is allowed."""
    model = build_network(kind)
    images = draw_images(model.config, 2)
    expected = refer(device, kind, lambda: compute(model, images))
    compare(device, kind, compute(model.to(NAME), images.to(NAME)), expected)


def compute_query_maps(model: Model[Any], images: Tensor) -> Tensor:
    return attention.read_query(attention.compute_attention(model, images, 1), model.config, "mean")


def run_inspect(device: FakeDevice, kind: str) -> None:
    """Compute a whole inspection."""
    images = [make_source(3).read(index)[0].to_pil(3) for index in range(3)]
    actual = inspect(build_checkpoint(kind), images, device=torch.device(NAME))
    expected = refer(device, kind, lambda: inspect(build_checkpoint(kind), images, device=CPU))
    compare(device, "norms", actual.features.norms, expected.features.norms)
    compare(device, "filters", actual.filters.values, expected.filters.values)
    for each, other in zip(actual.predictions, expected.predictions, strict=True):
        compare(device, "probabilities", each.probabilities, other.probabilities)
    if expected.attention is not None and actual.attention is not None:
        compare(device, "rollouts", actual.attention.rollouts, expected.attention.rollouts)
        compare(device, "maps", actual.attention.maps, expected.attention.maps)


def inspect_masked_patches(device: FakeDevice, target: str) -> None:
    """Predict masked patches of inspected images."""
    images = [make_source(3).read(index)[0].to_pil(3) for index in range(3)]
    inspected = refer(device, "images", lambda: inspect(build_checkpoint(), images, device=CPU).images)
    objective = build_masked(target).eval()
    expected = refer(device, target, lambda: report.predict_masked_images(objective, inspected))
    compare(device, "patches", vars(report.predict_masked_images(objective.to(NAME), inspected)), vars(expected))


def list_arrays(results: Any) -> list[Any]:
    """Return all arrays in the fields of a result, or of a list of results."""
    each = results if isinstance(results, list) else [results]
    return [value for result in each for value in vars(result).values() if isinstance(value, np.ndarray)]


MIXUP, CUTMIX = MixupConfig(mixup=0.5), MixupConfig(cutmix=1.0)

CASES: dict[str, dict[str, Case]] = {
    "networks": {
        **{kind: partial(run_network, kind=kind) for kind in NETWORKS},
        "dropped patches": drop_patches,
        **{
            f"resized: {kind}": partial(resize_network, kind=kind)
            for kind in ("class token", "two-dimensional", "sin-cos", "relative")
        },
    },
    "training": {
        "softmax": partial(run_training, build_objective=build_supervised),
        "label smoothing": partial(run_training, build_objective=partial(build_supervised, label_smoothing=0.1)),
        "sigmoid": partial(run_training, build_objective=partial(build_supervised, loss="sigmoid")),
        "several labels": partial(run_training, build_objective=partial(build_supervised, loss="sigmoid"), has_several=True),
        "mixup": partial(run_training, build_objective=partial(build_supervised, MIXUP)),
        "cutmix": partial(run_training, build_objective=partial(build_supervised, CUTMIX)),
        "dropout": partial(run_training, build_objective=partial(build_supervised, kind="dropout")),
        "masked mean-colour": partial(run_training, build_objective=partial(build_masked, "mean-colour")),
        "masked small-colours": partial(run_training, build_objective=partial(build_masked, "small-colours")),
        "masked pixels": partial(run_training, build_objective=partial(build_masked, "pixels")),
        "sgd": partial(run_training, build_objective=build_supervised, optim=OptimConfig(kind="sgd")),
        "no clipping": partial(run_training, build_objective=build_supervised, optim=OptimConfig(max_grad_norm=None)),
        "layer decay": partial(
            run_training, build_objective=build_supervised, optim=OptimConfig(layer_decay=0.5, frozen_blocks=1)
        ),
        "accumulation": partial(run_training, build_objective=build_supervised, accumulation_steps=2),
        "bfloat16": train_in_half_precision,
        "memory not pinned": train_without_pinned_memory,
        "saving": save_and_restore,
    },
    "runs": {
        "run": partial(run_recipes, mixing=MIXUP, polyak_factor=0.9),
        "run of masked patches": partial(run_recipes, objective="masked-patches"),
        "run from a checkpoint": partial(run_recipes, head_init="ridge"),
    },
    "evaluation": {
        "predict batch": partial(run_predict_batch, has_several=False),
        "predict batch, several labels": partial(run_predict_batch, has_several=True),
        "count hits": run_count_hits,
        "predict batches": run_predict_batches,
        "top1": partial(run_evaluator, name="top1", build_objective=build_supervised),
        "objective": partial(run_evaluator, name="objective", build_objective=partial(build_supervised)),
        "objective, masked": partial(
            run_evaluator, name="objective", build_objective=partial(build_masked, "pixels"), per_batch=2
        ),
        "few-shot": partial(run_evaluator, name="few_shot", build_objective=build_supervised, per_batch=1),
        "classify images": run_classify_images,
        "engine logits": partial(run_engine, method="logits"),
        "engine features": partial(run_engine, method="features"),
        "extract features": partial(run_extract_features, is_pinned=True),
        "extract features, memory not pinned": partial(run_extract_features, is_pinned=False),
        "predictor": run_predictor,
        "verify": run_verify,
    },
    "inspection": {
        "filters": partial(
            inspect_network, kind="class token", compute=lambda model, _: list_arrays(filters.compute_filters(model))
        ),
        "filters of a hybrid": partial(
            inspect_network, kind="hybrid", compute=lambda model, _: list_arrays(filters.compute_filters(model))
        ),
        **{
            f"positions: {kind}": partial(
                inspect_network, kind=kind, compute=lambda model, _: list_arrays(positions.compute_similarities(model))
            )
            for kind in ("class token", "two-dimensional", "sin-cos", "relative", "positions in every layer")
        },
        "distances": partial(
            inspect_network,
            kind="registers",
            compute=lambda model, images: list_arrays(distance.measure_distances(model, [images])),
        ),
        **{
            f"rollout: {fusion}": partial(
                inspect_network,
                kind="class token",
                compute=partial(rollout.compute_rollout, config=RolloutConfig(fusion=fusion, dropped_share=0.3)),
            )
            for fusion in ("mean", "max", "min")
        },
        "attention": partial(inspect_network, kind="hybrid", compute=compute_query_maps),
        **{
            f"patch features: {kind}": partial(
                inspect_network,
                kind=kind,
                compute=lambda model, images: list_arrays(patch_features.compute_patch_features(model, images)),
            )
            for kind in ("class token", "resnet")
        },
        **{f"inspect: {kind}": partial(run_inspect, kind=kind) for kind in ("class token", "resnet")},
        **{
            f"masked patches: {target}": partial(inspect_masked_patches, target=target)
            for target in ("mean-colour", "small-colours", "pixels")
        },
    },
}
