"""One run: from a recipe to a trained model in its run folder."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from vitrine.core.console import join_names, name_setting
from vitrine.core.files import write_json
from vitrine.core.runtime import Runtime, explain_out_of_memory, start_runtime
from vitrine.data.augment.transforms import TrainTransform
from vitrine.data.batch import Batch
from vitrine.data.fingerprint import DataFingerprint
from vitrine.data.loader import Loader, LoadingStopped
from vitrine.data.open_data import DatasetHandle
from vitrine.data.preprocessing import Preprocessing
from vitrine.data.scan import MAX_NAMED
from vitrine.data.source import Source
from vitrine.evaluation.classification_report import EvaluationResult, build_report
from vitrine.evaluation.evaluation_page import shows_top5
from vitrine.evaluation.evaluators import EVALUATORS, EvaluationSetup, choose_selector, classify_images, list_evaluators
from vitrine.evaluation.topk import Classification, TopK
from vitrine.field_effects import resolve_unused
from vitrine.formats.checkpoint import Checkpoint
from vitrine.formats.load import load_checkpoint
from vitrine.models.cost import compute_cost
from vitrine.objectives.config import OBJECTIVES
from vitrine.objectives.objective import ENCODER
from vitrine.recipe import Recipe
from vitrine.run.build import (
    HEAD_FITS,
    RunData,
    build_evaluation_loader,
    build_initial_model,
    build_objective,
    check_memory,
    check_mps,
    explain_evaluation_memory,
    open_run_data,
    rebuild,
    set_fitted_head,
)
from vitrine.run.callbacks import Callbacks, RunLogger, StopRequest, open_logger, stop_on_signals
from vitrine.run.folder import (
    ROUNDING,
    CheckpointWriter,
    ResumePoint,
    RunFolder,
    RunProgress,
    RunSummary,
    load_resume_point,
)
from vitrine.run.report import write_run_report
from vitrine.training.ema import WeightEma
from vitrine.training.loop import Metrics, fit
from vitrine.training.metrics_log import MetricNames
from vitrine.training.optimizer import build_optimizer, freeze
from vitrine.training.parallel import Parallel
from vitrine.training.state import TrainState, restore, scatter_weights


class Diverged(ValueError):
    """Raised when the loss of a run is not finite."""


def run_recipe(
    recipe: Recipe,
    out: str | Path,
    title: str = "training",
    dataset: DatasetHandle | None = None,
    checkpoint: Checkpoint | None = None,
    deadline: float | None = None,
) -> RunSummary:
    """Train as the recipe says, or resume the run in `out`; the trained model is in `out`/model.

    `dataset` and `checkpoint` are the recipe's, for callers that have them already. A finished run is only read. At the
    deadline, a time of `time.monotonic`, a run is stopped and saved as by a signal.
    """
    folder = RunFolder(Path(out))
    if folder.is_empty():  # older runs may have settings without an effect, and are resumed
        resolve_unused(recipe)
    with start_runtime(recipe.device) as runtime, ExitStack() as stack:
        with runtime.main_first():
            folder.check(recipe)
        if folder.summary.is_file():
            summary = folder.read_summary()
            if runtime.is_main and recipe.report.page and not folder.report.is_file():  # it had none, or by a former version
                write_run_report(folder, recipe, summary, title)
            return summary
        if runtime.is_main:
            stack.enter_context(folder.lock())
        run = Run(recipe, folder, runtime, dataset, checkpoint)
        if runtime.is_main:  # not earlier: after a mistake in the data, the corrected recipe must not meet this one here
            folder.open(recipe, run.fingerprint)
        names = run.list_metrics()
        with (
            open_logger(
                recipe, folder, runtime, title=title, start_step=run.state.step, total_steps=run.total_steps, metric_names=names
            ) as logger,
            stop_on_signals(logger.print_message) as stop,
        ):
            stop.deadline = deadline
            summary = run.train(stop, logger)
        if summary.is_finished and runtime.is_main:
            if recipe.report.page:
                write_run_report(folder, recipe, summary, title, names, run.build_final_result)
            # The last file of all: a run with a summary is finished.
            write_json(folder.summary, asdict(replace(summary, interrupted_by=None)))
        del run  # DDP ends before its process group
        return summary


class Run:
    """One attempt at a run, from its beginning or from its last checkpoint."""

    def __init__(
        self,
        recipe: Recipe,
        folder: RunFolder,
        runtime: Runtime,
        dataset: DatasetHandle | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        check_batch_size(recipe, runtime)
        if recipe.total_steps is not None:
            recipe.optim.check_total_steps(recipe.total_steps)
        if recipe.model.checkpoint is None:  # before data are read; the size of a checkpoint is known when it is loaded
            check_memory(recipe.model.resolve(num_classes=2), recipe, runtime)
        self.recipe, self.folder, self.runtime = recipe, folder, runtime
        with runtime.main_first():  # rank 0 downloads and indexes; the other ranks reuse it
            self.data = open_run_data(recipe, dataset)
        self.fingerprint = check_fingerprint(recipe, self.data, folder, runtime)
        self.total_steps = self.fingerprint.total_steps
        resume_point = find_resume_point(folder, runtime)
        if resume_point is None:
            self.progress, self.start = RunProgress(rounding=ROUNDING), begin(recipe, self.data, runtime, checkpoint)
        else:
            loaded, is_checkpointing = resume_point.checkpoint, recipe.machine.gradient_checkpointing
            check_classes(loaded, self.data, resume_point.path)
            self.progress = resume_point.take_up_progress(runtime.is_main)
            self.start = replace(loaded, model=rebuild(loaded.model, gradient_checkpointing=is_checkpointing))
        check_memory(self.start.model.config, recipe, runtime)
        check_mps(self.start.model.config, recipe, runtime)
        objective = build_objective(recipe, self.start)
        freeze(objective, recipe.optim)
        sharding = f"a smaller model, or several processes with {name_setting('machine.sharding', 'fsdp')}"
        with explain_out_of_memory("The model", runtime.device, f"use {sharding}"):
            self.parallel = Parallel(objective, recipe.machine, runtime)
        average = None if recipe.polyak_factor is None else WeightEma(objective, recipe.polyak_factor)
        optimizer, scaler = build_optimizer(objective, recipe.optim), self.parallel.build_scaler()
        self.state = TrainState(objective, optimizer, average, scaler, self.progress.step)
        if resume_point is not None:
            restore(self.state, dict(resume_point.checkpoint.model.state_dict()), resume_point.training)
        self.evaluator = RunEvaluator(recipe, runtime, self.data, self.start.preprocessing, self.parallel)
        self.measured: tuple[Source, TopK] | None = None
        """Images that the final weights were measured on, for the report: of the test, else the validation images."""
        self.writer = CheckpointWriter(folder, recipe, runtime, self.start)
        self.loader = Loader(
            self.data.train,
            TrainTransform(recipe.augment, self.start.preprocessing),
            recipe.loader,
            seed=recipe.seed,
            bad_images=recipe.data.bad_images,
            num_views=OBJECTIVES[recipe.objective].num_views,
            draw=objective.build_draw(),
            rank=runtime.rank,
            world_size=runtime.world_size,
            pin_memory=runtime.device.type == "cuda",
        )

    def list_metrics(self) -> MetricNames:
        """Return the metrics that the run will log."""
        hidden = frozenset() if shows_top5(len(self.data.class_names)) else frozenset({f"{self.data.val_name}_top5"})
        return MetricNames(self.state.objective.metric_names, self.evaluator.list_metrics(self.state), hidden)

    def train(self, stop: StopRequest, logger: RunLogger) -> RunSummary:
        """Train to the end or until stopped; at the end test the model once and save it."""
        self.evaluator.track = logger.track
        callbacks = Callbacks(
            self.recipe,
            self.runtime,
            logger=logger,
            stop=stop,
            evaluate=None if self.data.val is None else self.evaluator.evaluate,
            writer=self.writer,
            progress=self.progress,
            total_steps=self.total_steps,
            read_data_wait_s=lambda: self.loader.data_wait_s,
        )
        self.loader.is_stop_requested = lambda: stop.is_requested
        if not self.progress.stopped_early:
            with self.explain_errors(), self.save_if_stopped(callbacks):
                fit(
                    self.state,
                    self.loader.read(self.state.step, self.total_steps),
                    total_steps=self.total_steps,
                    optim=self.recipe.optim,
                    parallel=self.parallel,
                    runtime=self.runtime,
                    accumulation_steps=self.recipe.machine.accumulation_steps,
                    seed=self.recipe.seed,
                    callback=callbacks,
                )
        if self.loader.skipped:
            names = join_names(sorted(self.loader.skipped), MAX_NAMED)
            logger.print_message(
                f"Training images that cannot be read, replaced by others: {len(self.loader.skipped)} ({names})"
            )
        is_finished = self.state.step == self.total_steps or self.progress.stopped_early
        test = self.finish() if is_finished else None
        return self.summarise(is_finished, stop.signal, test)

    @contextmanager
    def save_if_stopped(self, callbacks: Callbacks) -> Iterator[None]:
        """Save the last finished step if a stop was requested while no batch came. Several ranks cannot agree on that."""
        try:
            yield
        except LoadingStopped:
            if self.runtime.world_size > 1:
                raise
            if self.state.step > 0:
                self.progress.step = self.state.step
                callbacks.save(self.state)

    @contextmanager
    def explain_errors(self) -> Iterator[None]:
        """Turn a loss that is not finite and a lack of memory into errors that say what to do."""
        accumulation = name_setting("machine.accumulation_steps", 2 * self.recipe.machine.accumulation_steps)
        checkpointing = name_setting("machine.gradient_checkpointing", True)
        advice = f"raise {accumulation}, set {checkpointing}, or use more processes (torchrun)"
        batch = f"A training step of {self.recipe.loader.batch_size} images"
        try:
            with explain_out_of_memory(batch, self.runtime.device, advice):
                yield
        except FloatingPointError as error:
            last = next(self.folder.list_checkpoints(), None)
            saved = "no checkpoint was saved before" if last is None else f"the last good checkpoint is {last}"
            out = name_setting("out")
            raise Diverged(
                f"Training cannot continue, because {error}; {saved}. Start again in another folder ({out}) with a lower "
                "optim.learning_rate, a longer optim.warmup_steps, or optim.max_grad_norm=1."
            ) from None
        except RuntimeError as error:
            if "without overflow" in str(error):  # torch's words for a scalar of the optimizer that exceeds float32
                raise Diverged(
                    f"A step of the optimizer exceeds the range of float32: lower optim.learning_rate="
                    f"{self.recipe.optim.learning_rate:g} or optim.weight_decay={self.recipe.optim.weight_decay:g}."
                ) from None
            raise

    def finish(self) -> Classification | None:
        """Take the final weights, with patience the best ones, test them once and save them."""
        step = self.state.step
        if self.recipe.evaluation.patience is not None:
            assert self.progress.best_step is not None
            step = self.progress.best_step
            with self.runtime.main_first():  # rank 0 may still be writing them
                best = load_checkpoint(self.folder.best).model.state_dict()
            scatter_weights(self.state.objective, {f"{ENCODER}{name}": tensor for name, tensor in best.items()})
            self.state.average = None
        test = None
        if self.data.test is not None:
            test, predictions = self.evaluator.evaluate_final(self.state, self.data.test, "test")
            self.measured = self.data.test, predictions
        elif self.data.val is not None and self.recipe.evaluation.test and OBJECTIVES[self.recipe.objective].needs_labels:
            _, predictions = self.evaluator.evaluate_final(self.state, self.data.val, self.data.val_name)
            self.measured = self.data.val, predictions
        self.writer.save_model(self.state, step, self.folder.model)
        return test

    def build_final_result(self) -> EvaluationResult | None:
        """Return the predictions of the final weights with their images and metrics, for the report."""
        if self.measured is None:
            return None
        source, predictions = self.measured
        report = build_report(predictions, source.labels, source.class_names)
        return EvaluationResult(source, self.start.preprocessing, predictions, report)

    def summarise(self, is_finished: bool, interrupted_by: int | None, test: Classification | None) -> RunSummary:
        """Build the summary of the run so far."""
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
            stopped_early=self.progress.stopped_early,
            interrupted_by=interrupted_by,
            watched_on=None if self.data.val is None else self.data.val_name,
            best=self.progress.best,
            best_step=self.progress.best_step,
            test_top1=None if test is None else test.top1,
            test_top5=None if test is None else test.top5,
            test_loss=None if test is None else test.loss,
            num_test_images=None if test is None else test.num_images,
            images=images,
            exaflops=cost.compute_exaflops(images, 1),
            device=self.runtime.device.type,
            device_hours=self.progress.device_seconds / 3600,
        )


class RunEvaluator:
    """Measures the model of a run with averaged weights, if there are any, and in the run's precision."""

    def __init__(
        self, recipe: Recipe, runtime: Runtime, data: RunData, preprocessing: Preprocessing, parallel: Parallel
    ) -> None:
        self.recipe, self.runtime, self.data = recipe, runtime, data
        self.preprocessing, self.parallel = preprocessing, parallel
        self.spec = OBJECTIVES[recipe.objective]
        self.track: Callable[[Iterator[Batch], int, str], Iterator[Batch]] = lambda batches, total, title: batches
        self.evaluators = {name: EVALUATORS[name] for name in list_evaluators(self.spec, recipe.evaluation)}

    def evaluate(self, state: TrainState) -> tuple[float, Metrics]:
        """Return the score that chooses the best weights, higher is better, and all metrics on the validation images."""
        assert self.data.val is not None
        setup = self.build_setup(state, self.data.val, self.data.val_name)
        with explain_evaluation_memory(self.recipe, self.runtime.device):
            measured = {name: evaluator.measure(setup) for name, evaluator in self.evaluators.items()}
        score = next(iter(measured[choose_selector(self.spec, self.recipe.evaluation)].values()))
        return score, {name: value for metrics in measured.values() for name, value in metrics.items()}

    def list_metrics(self, state: TrainState) -> dict[str, str]:
        """Return the names of all metrics of `evaluate`, each with its label in figures."""
        if self.data.val is None:
            return {}
        setup = self.build_setup(state, self.data.val, self.data.val_name)
        return {name: label for evaluator in self.evaluators.values() for name, label in evaluator.list_metrics(setup).items()}

    def evaluate_final(self, state: TrainState, source: Source, split: str) -> tuple[Classification, TopK]:
        """Return top-1, top-5 and loss of the final weights, once at the end of a run, and all predictions."""
        with explain_evaluation_memory(self.recipe, self.runtime.device):
            return classify_images(self.build_setup(state, source, split))

    def build_setup(self, state: TrainState, source: Source, split: str) -> EvaluationSetup:
        """Build what evaluators get: the objective, the images and how to read them."""

        def read(source: Source) -> Iterator[Batch]:
            """Read the images that this rank evaluates, with their progress."""
            loader = build_evaluation_loader(source, self.preprocessing, self.recipe, self.runtime)
            return self.track(loader.read_epoch(), loader.steps_per_epoch, f"evaluating on {split}")

        return EvaluationSetup(
            objective=state.objective,
            runtime=self.runtime,
            config=self.recipe.evaluation,
            seed=self.recipe.seed,
            train=self.data.train,
            source=source,
            split=split,
            read=read,
            evaluating=partial(self.evaluating, state),
        )

    @contextmanager
    def evaluating(self, state: TrainState) -> Iterator[None]:
        """Evaluate in this block: averaged weights swapped in, evaluation mode, the run's precision."""
        with ExitStack() as stack:
            if state.average is not None:
                stack.enter_context(state.average.swapped_in())
            stack.enter_context(self.parallel.evaluating())
            yield


def begin(recipe: Recipe, data: RunData, runtime: Runtime, checkpoint: Checkpoint | None) -> Checkpoint:
    """Build the model that a new run starts with."""
    class_names = data.class_names if OBJECTIVES[recipe.objective].needs_labels else ()
    start = build_initial_model(recipe, class_names, checkpoint)
    if recipe.head_init in HEAD_FITS:
        set_fitted_head(start, data.train, recipe, runtime)
    return start


def check_fingerprint(recipe: Recipe, data: RunData, folder: RunFolder, runtime: Runtime) -> DataFingerprint:
    """Return the fingerprint of a run's images on all ranks; raise ValueError if they are not those it was begun with."""
    fingerprint = None
    if runtime.is_main:
        splits = {"train": data.train, data.val_name: data.val, "test": data.test}
        total_steps = recipe.compute_total_steps(len(data.train))
        recipe.optim.check_total_steps(total_steps)
        computed = DataFingerprint.compute(splits, total_steps)
        fingerprint = folder.check_data(computed, recipe.data.changed)
    return runtime.broadcast(fingerprint)


def check_classes(saved: Checkpoint, data: RunData, path: Path) -> None:
    """Raise ValueError if the classes of the data are not those of the checkpoint to resume from."""
    if saved.class_names is not None and saved.class_names != data.class_names:
        found, expected = join_names(data.class_names), join_names(saved.class_names)
        raise ValueError(
            f"The data has the classes {found}, and {path} those of {expected}: restore the data, or change "
            f"{name_setting('out')}."
        )


def find_resume_point(folder: RunFolder, runtime: Runtime) -> ResumePoint | None:
    """Return the checkpoint to resume from, the one that rank 0 finds, on all ranks; None for a new run."""
    resume_point = folder.find_last() if runtime.is_main else None
    path = runtime.broadcast(None if resume_point is None else resume_point.path)
    return load_resume_point(path) if path is not None and resume_point is None else resume_point


def check_batch_size(recipe: Recipe, runtime: Runtime) -> None:
    """Raise ValueError unless every rank gets equally many images in each part of a batch, in pairs if they are mixed."""
    world_size, num_parts, is_mixed = runtime.world_size, recipe.machine.accumulation_steps, recipe.mixing.is_on
    unit = world_size * num_parts * (2 if is_mixed else 1)
    if recipe.loader.batch_size % unit != 0:
        raise ValueError(
            f"loader.batch_size={recipe.loader.batch_size} must be a multiple of {unit}: {world_size} processes, "
            f"machine.accumulation_steps={num_parts}{', mixing in pairs' if is_mixed else ''}."
        )
    if recipe.loader.last == "keep" and world_size > 1:
        raise ValueError("loader.last='keep' gives the processes parts of different sizes: use wrap or drop with torchrun.")
