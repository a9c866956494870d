"""What happens after each step of a run: logging, evaluating, saving, and stopping early or on a signal."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Literal

from vitrine.core.console import print_error
from vitrine.core.processes import continue_children
from vitrine.core.runtime import Runtime
from vitrine.data.batch import Batch
from vitrine.recipe import Recipe
from vitrine.run.folder import CheckpointWriter, RunFolder, RunProgress
from vitrine.training.loop import MetricAverager, Metrics
from vitrine.training.metrics_log import LEARNING_RATE, MetricNames, MetricsLog, TensorBoard
from vitrine.training.progress import Progress
from vitrine.training.state import TrainState

Action = Literal["log", "evaluate", "save", "stop"]

# Steps after which GPU ranks ask each other whether one wants to stop: their hosts wait for each other, and steps are short.
STEPS_BETWEEN_QUESTIONS = 8


class Callbacks:
    """Everything that a run does between steps. The training loop calls `after_step`."""

    def __init__(
        self,
        recipe: Recipe,
        runtime: Runtime,
        *,
        logger: "RunLogger",
        stop: "StopRequest",
        evaluate: Callable[[TrainState], tuple[float, Metrics]] | None,
        writer: CheckpointWriter,
        progress: RunProgress,
        total_steps: int,
        read_data_wait_s: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare to act between the steps of a run.

        `evaluate` returns the score that chooses the best weights, higher is better, and all metrics; it is None if there are
        no validation images. `progress` is updated in place and saved with checkpoints.
        """
        self.recipe, self.runtime, self.logger, self.stop = recipe, runtime, logger, stop
        self.evaluate_model, self.writer, self.progress, self.total_steps = evaluate, writer, progress, total_steps
        num_times = 0 if evaluate is None else recipe.evaluation.num_times
        self.evaluation_steps = {max(1, round(total_steps * turn / num_times)) for turn in range(1, num_times + 1)}
        self.window = MetricWindow(progress.step)
        self.speed = SpeedMeter(recipe.loader.batch_size, progress, read_data_wait_s, clock)
        self.clock = clock
        self.started_s = self.saved_s = clock()
        self.seconds_before, self.device_seconds_before = progress.seconds, progress.device_seconds

    def after_step(self, state: TrainState, metrics: MetricAverager, lr: float) -> None:
        """Log, evaluate, save and stop where that is due after a step."""
        due = self.find_due(state.step)
        if "log" not in due:
            self.logger.show_step(state.step)
        if not due:
            return
        # The host waits for the device here. Metrics are read whenever anything is due, not only for logs: so their float32
        # means stay the same, and nothing is saved after a loss that was not finite, which raises an error here.
        self.window.add(state.step, {**metrics.read(), LEARNING_RATE: lr})
        if "log" in due:
            self.logger.log(state.step, {**self.window.take_mean(), **self.speed.measure(state.step)})
        start_s = self.clock()
        if "evaluate" in due:
            self.evaluate(state)
        self.progress.step = state.step
        if "save" in due or self.progress.stopped_early:
            self.save(state)
        state.is_stopped = "stop" in due or self.progress.stopped_early
        self.speed.paused_s += self.clock() - start_s

    def find_due(self, step: int) -> set[Action]:
        """Return what to do after a step, the same on all ranks. The last step is always logged and saved."""
        saving = self.recipe.saving
        is_last = step == self.total_steps
        wants_stop, is_time_to_save = (False, False) if is_last else self.ask_ranks(step)
        actions: dict[Action, bool] = {
            "log": is_last or wants_stop or step % self.recipe.report.every_steps == 0,
            "evaluate": step in self.evaluation_steps,
            "save": is_last or wants_stop or is_time_to_save or step % (saving.every_steps or self.total_steps) == 0,
            "stop": wants_stop,
        }
        return {action for action, is_due in actions.items() if is_due}

    def ask_ranks(self, step: int) -> list[bool]:
        """Return whether any rank wants to stop, and whether its clock says to save: ranks differ in both, and must agree."""
        if self.runtime.device.type != "cpu" and self.runtime.world_size > 1 and step % STEPS_BETWEEN_QUESTIONS != 0:
            return [False, False]
        is_time_to_save = self.clock() - self.saved_s >= 60 * self.recipe.saving.every_minutes
        return self.runtime.any_rank([self.stop.is_requested, is_time_to_save])

    def evaluate(self, state: TrainState) -> None:
        """Evaluate the model, save it if it is the best so far, and stop early if patience has run out."""
        assert self.evaluate_model is not None
        # Rank 0's, because ranks that compute the same may round differently, and all must agree on what is the best.
        score, metrics = self.runtime.broadcast(self.evaluate_model(state))
        shown = [f"{name} {value:.4f}" for name, value in metrics.items() if name not in self.logger.hidden]
        self.logger.print_message(f"step {state.step}  " + "  ".join(shown))
        self.logger.log(state.step, metrics)
        progress, patience = self.progress, self.recipe.evaluation.patience
        if progress.best is None or score > progress.best:
            progress.best, progress.best_step, progress.num_worse = score, state.step, 0
            self.writer.save_best(state)
        else:
            progress.num_worse += 1
        if patience and progress.num_worse >= patience and state.step < self.total_steps:
            progress.stopped_early = True
            best = f"no improvement since step {progress.best_step} in {patience} evaluations"
            self.logger.print_message(f"Stopped early at step {state.step}: {best}.")

    def save(self, state: TrainState) -> None:
        """Write a checkpoint to resume from."""
        seconds = self.clock() - self.started_s
        self.progress.seconds = self.seconds_before + seconds
        self.progress.device_seconds = self.device_seconds_before + seconds * self.runtime.world_size
        self.writer.save_training(state, self.progress)
        self.saved_s = self.clock()


class MetricWindow:
    """Metrics since the last logged line, read in several pieces if the run evaluated or saved in between."""

    def __init__(self, step: int) -> None:
        self.last_step = step
        self.pieces: list[tuple[int, Metrics]] = []

    def add(self, step: int, metrics: Metrics) -> None:
        """Add the means of the steps since the last call."""
        self.pieces.append((step - self.last_step, metrics))
        self.last_step = step

    def take_mean(self) -> Metrics:
        """Return the means over all steps of the window and empty it; the learning rate is that of the last step."""
        means: Metrics = {}
        for name in dict.fromkeys(name for _, metrics in self.pieces for name in metrics):
            # A piece whose steps were all skipped, in float16, has no gradient norm.
            found = [(steps, metrics[name]) for steps, metrics in self.pieces if name in metrics]
            means[name] = sum(steps * value for steps, value in found) / sum(steps for steps, _ in found)
        last = self.pieces[-1][1]
        self.pieces = []
        return {**means, LEARNING_RATE: last[LEARNING_RATE]}


class SpeedMeter:
    """Training speed since the last logged line, without the time spent on evaluating and saving."""

    def __init__(
        self, batch_size: int, progress: RunProgress, read_data_wait_s: Callable[[], float], clock: Callable[[], float]
    ) -> None:
        self.batch_size, self.read_data_wait_s, self.clock = batch_size, read_data_wait_s, clock
        self.started_s = self.last_s = clock()
        self.last_step, self.last_data_wait_s = progress.step, read_data_wait_s()
        self.seconds_before = progress.seconds
        self.paused_s = 0.0
        """Time spent on other things since the last call of `measure`; added to by the caller."""

    def measure(self, step: int) -> Metrics:
        """Return images per second, the fraction of time spent waiting for data, and the seconds of all attempts."""
        now_s, data_wait_s = self.clock(), self.read_data_wait_s()
        seconds = max(now_s - self.last_s - self.paused_s, 1e-9)
        speed = {
            "images_per_s": (step - self.last_step) * self.batch_size / seconds,
            "waited": min(1.0, (data_wait_s - self.last_data_wait_s) / seconds),
            "seconds": self.seconds_before + now_s - self.started_s,
        }
        self.last_s, self.last_step, self.last_data_wait_s, self.paused_s = now_s, step, data_wait_s, 0.0
        return speed


class RunLogger:
    """metrics.jsonl, TensorBoard if requested, and progress on standard error. Ranks other than 0 log nothing."""

    def __init__(
        self,
        metrics: MetricsLog | None,
        tensorboard: TensorBoard | None,
        progress: Progress | None,
        hidden: frozenset[str] = frozenset(),
    ) -> None:
        """Metrics in `hidden` go to the files and are not printed."""
        self.hidden = hidden
        self.files = [file for file in (metrics, tensorboard) if file is not None]
        self.progress = progress

    def log(self, step: int, metrics: Metrics) -> None:
        """Write metrics to the files; training metrics are shown in the terminal too."""
        for file in self.files:
            file.write({"step": step, **metrics})
        if self.progress is not None and "loss" in metrics:
            self.progress.update(step, metrics)

    def show_step(self, step: int) -> None:
        """Move the progress bar to a step that is not logged."""
        if self.progress is not None:
            self.progress.show_step(step)

    def track(self, batches: Iterator[Batch], total: int, title: str) -> Iterator[Batch]:
        """Show the progress of an evaluation below the progress bar."""
        return batches if self.progress is None else self.progress.track(batches, total, title)

    def print_message(self, text: str) -> None:
        """Print a line to standard error, above the progress bar."""
        if self.progress is not None:
            self.progress.print_message(text)


@contextmanager
def open_logger(
    recipe: Recipe,
    folder: RunFolder,
    runtime: Runtime,
    *,
    title: str,
    start_step: int,
    total_steps: int,
    metric_names: MetricNames,
) -> Iterator[RunLogger]:
    """Open the log files of a run and its progress display; a resumed run says where it continues."""
    if not runtime.is_main:
        yield RunLogger(None, None, None)
        return
    with ExitStack() as stack:
        metrics = stack.enter_context(MetricsLog(folder.metrics, start_step))
        tensorboard = None
        if recipe.report.tensorboard:
            tensorboard = stack.enter_context(TensorBoard(folder.tensorboard, start_step, metric_names.evaluation))
        progress = stack.enter_context(Progress(total_steps, start_step, title, metric_names.training))
        logger = RunLogger(metrics, tensorboard, progress, metric_names.hidden)
        if start_step > 0:
            logger.print_message(f"Resuming from step {start_step} ({folder.path}).")
        yield logger


# Ctrl-C, `kill` and schedulers, a lost connection, Ctrl-backslash.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class StopRequest:
    """A request to end the run, made by a signal. The current step is finished and saved first."""

    def __init__(self, print_message: Callable[[str], None] = print_error) -> None:
        self.print_message = print_message
        self.signal: int | None = None
        self.deadline: float | None = None
        """Time of `time.monotonic` at which to stop without a signal."""

    @property
    def is_requested(self) -> bool:
        return self.signal is not None or (self.deadline is not None and time.monotonic() >= self.deadline)

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Remember the signal; a Ctrl-C after any signal raises KeyboardInterrupt at once."""
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        is_first, self.signal = self.signal is None, number
        continue_children()  # or the batch of a stopped worker would be waited for
        if number == signal.SIGHUP:
            silence_lost_terminal()
        if is_first:
            self.print_message("Finishing this step and saving. Press Ctrl-C again to quit without saving.")


@contextmanager
def stop_on_signals(print_message: Callable[[str], None] = print_error) -> Iterator[StopRequest]:
    """Turn SIGNALS into a stop request while the block runs; restore the former handlers on exit."""
    stop = StopRequest(print_message)
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread may set signal handlers; other callers have their own way to stop
        return
    is_detached = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN  # by nohup: the run goes on without its terminal
    numbers = [number for number in SIGNALS if number != signal.SIGHUP or not is_detached]
    before = {number: signal.signal(number, stop.on_signal) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def silence_lost_terminal() -> None:
    """Discard further output to a terminal that is gone: printing to it would be an error and end the run before it saves."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream.isatty():
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        except (OSError, ValueError):  # closed, or not a file
            continue
