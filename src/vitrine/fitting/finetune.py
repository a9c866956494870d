"""Fine-tuning of a fitted model in the time that is left, and the decision whether the result is better.

Both models are fitted without the same held-out images. The fine-tuned one wins if its log loss on these is lower by a paired
test and its accuracy is not lower.
"""

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from vitrine.core.precision import Precision
from vitrine.core.runtime import start_runtime
from vitrine.data.fingerprint import DataFingerprint
from vitrine.data.open_data import DatasetHandle
from vitrine.data.source import Source
from vitrine.evaluation.calibration import SIGNIFICANCE, compute_log_losses, compute_p_value
from vitrine.fitting.heads import draw_folds
from vitrine.formats.checkpoint import Checkpoint
from vitrine.formats.load import load_checkpoint
from vitrine.recipe import Recipe, with_changes
from vitrine.recipes.finetune import FinetuneTask, folder
from vitrine.run.folder import RunFolder
from vitrine.run.run import Run, run_recipe
from vitrine.training.loop import MetricAverager, fit
from vitrine.training.state import TrainState

NUM_PARTS = 6  # of the images, one of which is held out
MIN_HELD_OUT, MAX_HELD_OUT = 50, 2000
NUM_TIMED_STEPS, NUM_WARMUP_STEPS = 6, 2
MAX_TIMED_FRACTION = 0.25  # of the time, for these steps
MAX_EPOCHS = 15  # more only memorise: on 740 photos the training loss is 0.04 after 7
MIN_EPOCHS = 2  # fewer with all blocks, and only the last ones are trained
TRAINED_FRACTION = 1 / 3  # of the blocks, where time is short
START_S = 4.0  # to start a run and to save it
PLANNED_FRACTION = 0.95  # of the time for steps; saves on the way and steps slower than the measured ones take the rest


@dataclass(frozen=True)
class Contest:
    """Two models on the same held-out images."""

    num_images: int
    old_log_loss: float
    new_log_loss: float
    old_accuracy: float
    new_accuracy: float
    p_value: float
    """Probability of a log loss that is lower by as much if both were equally good (one-sided t-test of the differences)."""

    @property
    def is_won(self) -> bool:
        """Whether the new model replaces the old one."""
        return self.p_value < SIGNIFICANCE and self.new_log_loss < self.old_log_loss and self.new_accuracy >= self.old_accuracy


@dataclass(frozen=True)
class Plan:
    """How long to train what."""

    recipe: Recipe
    num_images: int

    @property
    def frozen_blocks(self) -> int:
        return self.recipe.optim.frozen_blocks

    @property
    def epochs(self) -> float:
        return self.recipe.compute_total_steps(self.num_images) * self.recipe.loader.batch_size / self.num_images


def hold_out_rows(targets: Tensor, num_classes: int, seed: int) -> Tensor:
    """Return which images are held out, bool (N): a sixth of each class, none if that is fewer than 50 images."""
    held = (draw_folds(targets, num_classes, seed + 1, NUM_PARTS) == 0).nonzero()[:, 0]
    is_held = torch.zeros(len(targets), dtype=torch.bool)
    if len(held) >= MIN_HELD_OUT:
        order = torch.randperm(len(held), generator=torch.Generator().manual_seed(seed))
        is_held[held[order[:MAX_HELD_OUT]]] = True
    return is_held


def contest(
    old_logits: Tensor, new_logits: Tensor, targets: Tensor, measure: Callable[[Tensor, Tensor], tuple[float, float]]
) -> Contest:
    """Compare two models by their logits (N, K) of held-out images; `measure` returns accuracy and its mean over classes."""
    old, new = (compute_log_losses(logits.double(), targets) for logits in (old_logits, new_logits))
    return Contest(
        num_images=len(targets),
        old_log_loss=old.mean().item(),
        new_log_loss=new.mean().item(),
        old_accuracy=measure(old_logits, targets)[0],
        new_accuracy=measure(new_logits, targets)[0],
        p_value=compute_p_value(new, old),
    )


def make_dataset(name: str, train: Source) -> DatasetHandle:
    """Return images as a dataset with a training split alone."""
    return DatasetHandle(name, "fit", ("train",), lambda split: train)


def plan_finetune(
    start: Checkpoint,
    model: str,
    dataset: DatasetHandle,
    seconds: float,
    *,
    seed: int,
    device: str | None,
    num_workers: int | None,
    precision: Precision = "auto",
    images_per_s: float = float("inf"),
) -> Plan | None:
    """Return a recipe that fine-tunes a checkpoint in so many seconds, by the measured speed of steps; None if none can.

    `images_per_s` is the speed of the frozen model, which tells whether there is time to measure.
    """
    train = dataset.open_train()
    task = FinetuneTask(model, dataset.name, len(train), len(train.class_names))
    base = with_changes(
        folder(task),
        head_init="keep",
        seed=seed,
        device=device,
        evaluation={"num_times": 0, "test": False},
        loader={"num_workers": num_workers},
        data={"bad_images": "skip"},
        saving={"every_minutes": 1.0},
        machine={"precision": precision},
        supervised={"loss": "sigmoid" if train.labels.has_several else "softmax"},
    )
    depth = len(start.model.blocks)
    for frozen_blocks in (0, depth - max(1, round(depth * TRAINED_FRACTION))):
        recipe = with_changes(base, optim={"frozen_blocks": frozen_blocks}) if frozen_blocks else base
        # A step takes about three times as long as the forward pass of its images.
        if (NUM_WARMUP_STEPS + NUM_TIMED_STEPS) * 3 * recipe.loader.batch_size / images_per_s > MAX_TIMED_FRACTION * seconds:
            continue
        begin = time.monotonic()
        step_s = measure_step(recipe, start, dataset)
        seconds -= time.monotonic() - begin
        num_steps = int(PLANNED_FRACTION * (seconds - START_S) / step_s)
        epochs = num_steps * recipe.loader.batch_size / len(train)
        if epochs >= MIN_EPOCHS or (frozen_blocks and epochs >= 1):
            epochs = min(epochs, MAX_EPOCHS)
            num_steps = max(1, int(epochs * len(train) / recipe.loader.batch_size))
            return Plan(set_length(recipe, num_steps), len(train))
    return None


def take_up_begun(
    out: Path, dataset: DatasetHandle, start: Checkpoint, device: str | None, num_workers: int | None, precision: Precision
) -> Plan | None:
    """Return the plan of a fine-tuning that an earlier call began from such a model on the same images; delete another.

    One on other images may have trained on images that are held out now. One from another model, e.g. for larger images or with
    a head on other layers, cannot be compared with the head that was found now.
    """
    run_folder = RunFolder(out)
    if run_folder.is_empty():
        return None
    last = run_folder.find_last()
    is_other_model = last is not None and last.checkpoint.model.config != start.model.config
    if is_other_model or not was_trained_on(run_folder, dataset):
        shutil.rmtree(out)
        return None
    recipe = run_folder.read_recipe()
    loader, machine = replace(recipe.loader, num_workers=num_workers), replace(recipe.machine, precision=precision)
    return Plan(replace(recipe, device=device, loader=loader, machine=machine), len(dataset.open_train()))


def find_unfinished(out: Path) -> Checkpoint | None:
    """Return the last checkpoint of a fine-tuning that was interrupted; None if there is none, or if it was finished."""
    run_folder = RunFolder(out)
    last = None if run_folder.summary.is_file() or run_folder.is_empty() else run_folder.find_last()
    return None if last is None else last.checkpoint


def was_trained_on(run_folder: RunFolder, dataset: DatasetHandle) -> bool:
    """Return whether the run in a folder has trained on exactly the training images of a dataset."""
    if run_folder.is_empty() or not run_folder.data.is_file():
        return False
    return not run_folder.read_data().list_changes(DataFingerprint.compute({"train": dataset.open_train()}, 0))


def set_length(recipe: Recipe, num_steps: int) -> Recipe:
    """Return the recipe with another number of steps, a tenth of them warm-up."""
    return with_changes(recipe, total_steps=num_steps, optim={"warmup_steps": num_steps // 10})


def measure_step(recipe: Recipe, start: Checkpoint, dataset: DatasetHandle) -> float:
    """Return the seconds of one training step, from a few steps whose result is thrown away."""
    times: list[float] = []

    class Clock:
        def after_step(self, state: TrainState, metrics: MetricAverager, lr: float) -> None:
            metrics.read()  # waits for the device
            times.append(time.monotonic())

    timed = set_length(recipe, NUM_WARMUP_STEPS + NUM_TIMED_STEPS)
    with tempfile.TemporaryDirectory() as temporary, start_runtime(recipe.device) as runtime:
        run = Run(timed, RunFolder(Path(temporary) / "run"), runtime, dataset, start)
        fit(
            run.state,
            run.loader.read(0, run.total_steps),
            total_steps=run.total_steps,
            optim=timed.optim,
            parallel=run.parallel,
            runtime=runtime,
            accumulation_steps=timed.machine.accumulation_steps,
            seed=timed.seed,
            callback=Clock(),
        )
        del run  # DDP ends before its process group
    return (times[-1] - times[NUM_WARMUP_STEPS - 1]) / (len(times) - NUM_WARMUP_STEPS)


def finetune(
    plan: Plan, out: Path, dataset: DatasetHandle, start: Checkpoint, deadline: float | None
) -> tuple[Checkpoint | None, int | None]:
    """Train, or resume, until the plan's end or the deadline; return the model, if there is one, and the signal that came."""
    run_folder = RunFolder(out)
    summary = run_recipe(plan.recipe, out, "fine-tuning", dataset, start, deadline)
    if summary.is_finished:
        return load_checkpoint(run_folder.model), None
    last = next(run_folder.list_checkpoints(), None)
    return (None if last is None else load_checkpoint(last)), summary.interrupted_by
