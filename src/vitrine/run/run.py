"""Run_recipe and Run: from a recipe to a trained model in its run folder.

How good the network of a run is at some moment: each process takes its part of the images.
From a recipe to a trained model: data, network, objective, loop, evaluation, checkpoints.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import torch

from vitrine.core.files import write_json
from vitrine.core.runtime import Runtime, start_runtime
from vitrine.data.augment.transforms import TrainTransform
from vitrine.data.batch import Batch
from vitrine.data.loader import Loader
from vitrine.data.preprocessing import Preprocessing
from vitrine.data.source import Source
from vitrine.data.subsets import select_subset
from vitrine.evaluation.features import Features, FeatureSplit, extract_features
from vitrine.evaluation.few_shot import evaluate_few_shot
from vitrine.evaluation.topk import Classification, count_hits, summarise_counts
from vitrine.formats.checkpoint import Checkpoint
from vitrine.formats.load import load_checkpoint
from vitrine.models.cost import compute_cost
from vitrine.models.registry import build_meta_model
from vitrine.recipe import Recipe
from vitrine.run.build import (
    RunData,
    build_evaluation_loader,
    build_initial_model,
    build_objective,
    open_run_data,
    rebuild,
    set_fitted_head,
)
from vitrine.run.callbacks import Actions, Callbacks, RunLogger, Stop, open_logger, stop_on_signals
from vitrine.run.folder import ResumePoint, RunFolder, RunProgress, RunSummary, load_resume_point
from vitrine.training.ema import WeightEma
from vitrine.training.loop import Hook, Metrics, fit
from vitrine.training.metrics_log import plot_curves, read_records
from vitrine.training.optimizer import build_optimizer, freeze
from vitrine.training.parallel import Parallel
from vitrine.training.state import ENCODER, TrainState, gather_model, gather_training, restore, scatter_weights
from vitrine.version import __version__


class RunEvaluator:
    """Measures with the averaged weights, if there are any, and in the precision of the run."""

    def __init__(
        self, recipe: Recipe, runtime: Runtime, data: RunData, preprocessing: Preprocessing, parallel: Parallel
    ) -> None:
        self.recipe, self.runtime, self.data, self.preprocessing = recipe, runtime, data, preprocessing
        self.parallel = parallel

    def watch(self, state: TrainState) -> tuple[float, Metrics]:
        """In the course of the run: what the best is chosen by, the higher the better, and all that was measured.

        Without labels to learn from it is the few-shot accuracy, if that is asked for, else the objective's own.
        """
        source, shots = self.data.watched, self.recipe.evaluation.few_shot
        assert source is not None
        is_supervised = self.recipe.objective == "supervised"
        found = self.measure_accuracy(state, source) if is_supervised else self.measure_objective(state, source)
        score = next(iter(found.values()))
        record = {f"{self.data.watched_name}_{name}": value for name, value in found.items()}
        if shots > 0:
            record[f"few_shot_{shots}"] = few_shot = self.measure_few_shot(state, source, shots)
            score = score if is_supervised else few_shot
        return score, record

    def measure_accuracy(self, state: TrainState, source: Source) -> Metrics:
        found = self.classify(state, source)
        record = {"top1": found.top1, "top5": found.top5}
        if found.loss is not None and self.recipe.supervised.loss == "softmax":  # of which it is; another would mislead
            record["loss"] = found.loss
        return record

    def measure_objective(self, state: TrainState, source: Source) -> Metrics:
        """What the objective itself says of the images, with the same random choices at every evaluation."""
        names = (*state.objective.metric_names, "loss")
        sums = torch.zeros(1 + len(names), dtype=torch.float64)
        with self.evaluating(state), torch.no_grad():
            for batch in self.read(source):
                output = state.objective(replace(batch, step=0).to(self.runtime.device))
                if len(batch) > 0:  # several processes go through as many batches, the last of which may be empty
                    values = torch.stack([{**output.metrics, "loss": output.loss}[name] for name in names])
                    sums += len(batch) * torch.cat([torch.ones(1), values.float().cpu()]).double()
        num_images, *totals = self.runtime.sum(sums).tolist()
        return {name: total / num_images for name, total in zip(names, totals, strict=True)}

    def classify(self, state: TrainState, source: Source) -> Classification:
        with self.evaluating(state):
            counts = count_hits(state.objective.classify, self.read(source), self.runtime.device)
        return summarise_counts(self.runtime.sum(counts))

    def read(self, source: Source) -> Iterator[Batch]:
        """This process's part of the images."""
        loader = build_evaluation_loader(
            source, self.preprocessing, self.recipe, rank=self.runtime.rank, world_size=self.runtime.world_size
        )
        return loader.read_epoch()

    def measure_few_shot(self, state: TrainState, queries: Source, shots: int) -> float:
        """From `shots` training images of each class; every process computes all the features, and has the same figure."""
        few = select_subset(self.data.train, f"{shots}/class", self.recipe.seed)
        with self.evaluating(state):
            split = FeatureSplit(self.featurise(state, few), self.featurise(state, queries), len(self.data.class_names))
        return evaluate_few_shot(split, shots, seeds=(self.recipe.seed,)).mean

    def featurise(self, state: TrainState, source: Source) -> Features:
        loader = build_evaluation_loader(source, self.preprocessing, self.recipe)
        return extract_features(state.objective.featurise, loader.read_epoch(), self.runtime.device)

    @contextmanager
    def evaluating(self, state: TrainState) -> Iterator[None]:
        with ExitStack() as stack:
            if state.average is not None:
                stack.enter_context(state.average.applied())
            stack.enter_context(self.parallel.evaluating())
            yield


class Diverged(ValueError):
    """The loss of a run was not finite."""


def run_recipe(recipe: Recipe, out: str | Path, title: str = "training") -> RunSummary:
    """Train as the recipe says, from where the run in `out` stopped, if it did; the trained model is in `out`/model."""
    folder = RunFolder(Path(out))
    with start_runtime(recipe.device) as runtime:
        with runtime.main_first():
            folder.check(recipe)
        if folder.summary.is_file():
            return folder.read_summary()
        run = Run(recipe, folder, runtime)
        with runtime.main_first():
            folder.open(recipe)  # not before: whoever corrects a mistake in their data would find another recipe there
        with (
            open_logger(recipe, folder, runtime, title, run.state.step, run.total_steps) as reporter,
            stop_on_signals(reporter.say) as stop,
        ):
            summary = run.train(stop, reporter)
        if summary.is_finished and runtime.is_main:
            plot_curves(read_records(folder.metrics), folder.curves, title)
            write_json(
                folder.summary, asdict(replace(summary, interrupted_by=None))
            )  # the last of all: what has it is finished
        return summary


class Run:
    """One attempt at a run: from its beginning, or from its last checkpoint."""

    def __init__(self, recipe: Recipe, folder: RunFolder, runtime: Runtime) -> None:
        require_divisible(recipe, runtime)
        self.recipe, self.folder, self.runtime = recipe, folder, runtime
        with runtime.main_first():  # who may fetch or index what the others then find
            self.data = open_run_data(recipe)
        self.total_steps = recipe.compute_total_steps(len(self.data.train))
        saved = find_saved(folder, runtime)
        self.standing = RunProgress() if saved is None else saved.standing
        self.start = begin(recipe, self.data, runtime) if saved is None else resume(saved, recipe)
        objective = build_objective(recipe, self.start)
        freeze(objective, recipe.optim)
        self.parallel = Parallel(objective, recipe.machine, runtime)
        average = None if recipe.polyak_factor is None else WeightEma(objective, recipe.polyak_factor)
        self.state = TrainState(objective, build_optimizer(objective, recipe.optim), average, self.standing.step)
        if saved is not None:
            restore(self.state, dict(saved.checkpoint.model.state_dict()), saved.training)
        self.measurer = RunEvaluator(recipe, runtime, self.data, self.start.preprocessing, self.parallel)
        self.loader = Loader(
            self.data.train,
            TrainTransform(recipe.augment, self.start.preprocessing),
            recipe.loader,
            seed=recipe.seed,
            bad_images=recipe.data.bad_images,
            rank=runtime.rank,
            world_size=runtime.world_size,
            pin_memory=runtime.device.type == "cuda",
        )

    def train(self, stop: Stop, reporter: RunLogger) -> RunSummary:
        if not self.standing.stopped_early:
            self.fit(stop, reporter)
        is_finished = self.state.step == self.total_steps or self.standing.stopped_early
        test = self.finish() if is_finished else None
        return self.summarise(is_finished, stop.signal, test)

    def fit(self, stop: Stop, reporter: RunLogger) -> None:
        def evaluate(state: TrainState) -> tuple[float, Metrics]:
            score, record = self.measurer.watch(state)
            reporter.say(f"step {state.step}  " + "  ".join(f"{name} {value:.4f}" for name, value in record.items()))
            return score, record

        actions = Actions(
            report=reporter.report,
            evaluate=None if self.data.watched is None else evaluate,
            save=self.save,
            save_best=self.save_best,
            say=reporter.say,
        )
        course = Callbacks(
            self.recipe, self.runtime, actions, stop, self.standing, self.total_steps, lambda: self.loader.data_wait_s
        )
        try:
            fit(
                self.state,
                self.loader.read(self.state.step, self.total_steps),
                total_steps=self.total_steps,
                optim=self.recipe.optim,
                parallel=self.parallel,
                runtime=self.runtime,
                accumulation_steps=self.recipe.machine.accumulation_steps,
                seed=self.recipe.seed,
                hooks=(Hook(course.is_due, course.act),),
            )
        except FloatingPointError as error:
            last = next(self.folder.list_checkpoints(), None)
            kept = "no checkpoint was saved before" if last is None else f"the last good checkpoint is {last}"
            raise Diverged(
                f"The run cannot go on, because {error}; {kept}. Begin again in another folder (--out) with a lower "
                "optim.learning_rate, a longer optim.warmup_steps, or optim.max_grad_norm=1."
            ) from None
        except torch.OutOfMemoryError:
            raise ValueError(
                f"A batch of {self.recipe.loader.batch_size} does not fit into memory ({self.runtime.device}): take it in "
                "parts (machine.accumulation_steps=8), or machine.gradient_checkpointing, or more processes (torchrun)."
            ) from None

    def finish(self) -> Classification | None:
        """The weights that count, tested once and saved."""
        step = self.state.step
        if self.recipe.evaluation.patience is not None:
            step = self.take_best()
        test = None if self.data.test is None else self.measurer.classify(self.state, self.data.test)
        checkpoint = self.gather_checkpoint(step)
        if checkpoint is not None:
            self.folder.save_model(checkpoint, self.recipe, self.folder.model)
        return test

    def take_best(self) -> int:
        """Go back to the weights of the best evaluation; returns its step."""
        with self.runtime.main_first():  # which may still be writing them
            best = load_checkpoint(self.folder.best).model.state_dict()
        scatter_weights(self.state.objective, {f"{ENCODER}{name}": tensor for name, tensor in best.items()})
        self.state.average = None
        assert self.standing.best_step is not None
        return self.standing.best_step

    def gather_checkpoint(self, step: int) -> Checkpoint | None:
        """What is saved for use, with the step that its weights are of; None but in the main process."""
        weights = gather_model(self.state)
        if not self.runtime.is_main:
            return None
        model = build_meta_model(replace(self.start.model.config, gradient_checkpointing=False))
        model.load_state_dict(weights, assign=True)
        provenance = {**self.start.provenance, "trained_by": f"vitrine {__version__}", "step": step}
        return Checkpoint(model.eval(), self.start.preprocessing, self.start.class_names, provenance)

    def save(self, state: TrainState, standing: RunProgress) -> None:
        checkpoint, training = self.gather_checkpoint(state.step), gather_training(state)
        if checkpoint is not None:
            self.folder.save_training(checkpoint, training, standing, self.recipe.saving.keep_last)

    def save_best(self, state: TrainState) -> None:
        checkpoint = self.gather_checkpoint(state.step)
        if checkpoint is not None:
            self.folder.save_model(checkpoint, self.recipe, self.folder.best)

    def summarise(self, is_finished: bool, interrupted_by: int | None, test: Classification | None) -> RunSummary:
        cost = compute_cost(self.start.model.config)
        images = self.state.step * self.recipe.loader.batch_size
        return RunSummary(
            model=self.recipe.model.name or str(self.recipe.model.checkpoint),
            num_parameters=cost.num_parameters,
            num_train_images=len(self.data.train),
            seed=self.recipe.seed,
            learning_rate=self.recipe.optim.learning_rate,
            total_steps=self.total_steps,
            steps=self.state.step,
            is_finished=is_finished,
            stopped_early=self.standing.stopped_early,
            interrupted_by=interrupted_by,
            watched_on=None if self.data.watched is None else self.data.watched_name,
            best=self.standing.best,
            best_step=self.standing.best_step,
            test_top1=None if test is None else test.top1,
            test_top5=None if test is None else test.top5,
            test_loss=None if test is None else test.loss,
            num_test_images=None if test is None else test.num_images,
            images=images,
            exaflops=cost.compute_exaflops(images, 1),
            device=self.runtime.device.type,
            device_hours=self.standing.device_seconds / 3600,
        )


def begin(recipe: Recipe, data: RunData, runtime: Runtime) -> Checkpoint:
    start = build_initial_model(recipe, data.class_names if recipe.objective == "supervised" else ())
    if recipe.head_init != "zero":
        set_fitted_head(start, data.train, recipe, runtime.device)
    return start


def find_saved(folder: RunFolder, runtime: Runtime) -> ResumePoint | None:
    """The checkpoint that the main process goes on from, for all of them."""
    saved = folder.find_last() if runtime.is_main else None
    path = runtime.broadcast(None if saved is None else saved.path)
    return load_resume_point(path) if path is not None and saved is None else saved


def resume(saved: ResumePoint, recipe: Recipe) -> Checkpoint:
    """The network of a checkpoint; where the run began is not needed any more."""
    model = rebuild(saved.checkpoint.model, gradient_checkpointing=recipe.machine.gradient_checkpointing)
    return replace(saved.checkpoint, model=model)


def require_divisible(recipe: Recipe, runtime: Runtime) -> None:
    """Every process gets as many images of a batch, in whole parts; mixed ones in pairs."""
    world_size, num_parts, is_mixed = runtime.world_size, recipe.machine.accumulation_steps, recipe.mixing.is_on
    unit = world_size * num_parts * (2 if is_mixed else 1)
    if recipe.loader.batch_size % unit != 0:
        raise ValueError(
            f"loader.batch_size={recipe.loader.batch_size} must be a multiple of {unit}: {world_size} processes, "
            f"machine.accumulation_steps={num_parts}{', mixing in pairs' if is_mixed else ''}."
        )
    if recipe.loader.last == "keep" and world_size > 1:
        raise ValueError("loader.last='keep' gives processes parts of different sizes: take wrap or drop with torchrun.")
