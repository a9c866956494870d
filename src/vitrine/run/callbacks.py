"""Log, evaluate, save, stop; signals.

What the main process writes and says in the course of a run; the others are silent.
Ctrl-C and SIGTERM: the step is finished and saved before the run ends.
The course of a run: after each step, whatever is due of reporting, evaluating, saving and stopping.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FrameType

from vitrine.core.console import print_error
from vitrine.core.runtime import Runtime
from vitrine.recipe import Recipe
from vitrine.run.folder import RunFolder, RunProgress
from vitrine.training.loop import Metrics
from vitrine.training.metrics_log import MetricsLog, TensorBoard
from vitrine.training.progress import Progress
from vitrine.training.state import TrainState


class RunLogger:
    """metrics.jsonl, TensorBoard's files if they are wanted, and the bar or lines on standard error."""

    def __init__(self, metrics: MetricsLog | None, tensorboard: TensorBoard | None, progress: Progress | None) -> None:
        self.files = [file for file in (metrics, tensorboard) if file is not None]
        self.progress = progress

    def report(self, step: int, record: Metrics) -> None:
        for file in self.files:
            file.write({"step": step, **record})
        if self.progress is not None and "loss" in record:
            self.progress.update(step, record)

    def say(self, text: str) -> None:
        if self.progress is not None:
            self.progress.say(text)


@contextmanager
def open_logger(
    recipe: Recipe, folder: RunFolder, runtime: Runtime, title: str, start_step: int, total_steps: int
) -> Iterator[RunLogger]:
    if not runtime.is_main:
        yield RunLogger(None, None, None)
        return
    with ExitStack() as stack:
        metrics = stack.enter_context(MetricsLog(folder.metrics, start_step))
        tensorboard = TensorBoard(folder.tensorboard, start_step) if recipe.report.tensorboard else None
        if tensorboard is not None:
            stack.enter_context(tensorboard)
        reporter = RunLogger(metrics, tensorboard, stack.enter_context(Progress(total_steps, start_step, title)))
        if start_step > 0:
            reporter.say(f"Going on from step {start_step}, saved in {folder.path}.")
        yield reporter


SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Whether someone wishes the run to end."""

    def __init__(self, say: Callable[[str], None] = print_error) -> None:
        self.say = say
        self.signal: int | None = None

    @property
    def is_wanted(self) -> bool:
        return self.signal is not None

    def note(self, number: int, frame: FrameType | None) -> None:
        if self.is_wanted and number == signal.SIGINT:
            raise KeyboardInterrupt  # asked a second time: at once
        if not self.is_wanted:
            self.say("Finishing the step and saving; Ctrl-C once more stops at once, without.")
        self.signal = number


@contextmanager
def stop_on_signals(say: Callable[[str], None] = print_error) -> Iterator[Stop]:
    stop = Stop(say)
    if threading.current_thread() is not threading.main_thread():
        yield stop  # signals are the main thread's, and whoever runs us in another has their own way to stop
        return
    before = {number: signal.signal(number, stop.note) for number in SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# On a GPU, asking all processes whether one of them is to stop makes the host wait for the device.
STEPS_BETWEEN_QUESTIONS = 8


@dataclass(frozen=True)
class Actions:
    """What a course calls. Evaluating and saving are done by all processes together, reporting by the main one."""

    report: Callable[[int, Metrics], None]
    evaluate: Callable[[TrainState], tuple[float, Metrics]] | None
    """What the best is chosen by, the higher the better, and all that was measured; None: there is nothing to evaluate on."""
    save: Callable[[TrainState, RunProgress], None]
    save_best: Callable[[TrainState], None]
    say: Callable[[str], None]


class Callbacks:
    """As one hook of the loop: `is_due` after every step, `act` when something is."""

    def __init__(
        self,
        recipe: Recipe,
        runtime: Runtime,
        actions: Actions,
        stop: Stop,
        standing: RunProgress,
        total_steps: int,
        read_waited_s: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.recipe, self.runtime, self.actions, self.stop, self.standing = recipe, runtime, actions, stop, standing
        self.total_steps = total_steps
        num_times = recipe.evaluation.num_times if actions.evaluate is not None else 0
        self.evaluation_steps = {max(1, round(total_steps * turn / num_times)) for turn in range(1, num_times + 1)}
        self.read_waited_s = read_waited_s
        self.clock = clock
        self.started_s = self.saved_s = self.marked_s = clock()
        self.marked_step, self.marked_waited_s = standing.step, read_waited_s()
        self.paused_s = 0.0
        self.seconds_before, self.device_seconds_before = standing.seconds, standing.device_seconds
        self.read_step = standing.step
        self.records: list[tuple[int, Metrics]] = []
        """Of evaluations and checkpoints between two reports, each with its number of steps."""
        self.wants_stop = self.wants_save = False

    def is_due(self, step: int) -> bool:
        self.ask_all(step)
        return self.is_report_due(step) or step in self.evaluation_steps or self.is_saving_due(step) or self.wants_stop

    def is_report_due(self, step: int) -> bool:
        return step % self.recipe.report.every_steps == 0 or step == self.total_steps

    def ask_all(self, step: int) -> None:
        """Signals reach processes at different moments, and clocks differ: all have to agree on the step."""
        if self.runtime.device.type != "cpu" and self.runtime.world_size > 1 and step % STEPS_BETWEEN_QUESTIONS != 0:
            return
        is_time = self.clock() - self.saved_s >= 60 * self.recipe.saving.every_minutes
        self.wants_stop, self.wants_save = self.runtime.any_rank([self.stop.is_wanted, is_time])

    def is_saving_due(self, step: int) -> bool:
        every = self.recipe.saving.every_steps
        return self.wants_save or self.wants_stop or step == self.total_steps or (every is not None and step % every == 0)

    def act(self, state: TrainState, record: Metrics) -> None:
        self.records.append((state.step - self.read_step, record))
        self.read_step = state.step
        if self.is_report_due(state.step) or self.wants_stop:
            self.actions.report(state.step, {**average(self.records), **self.measure_speed(state.step)})
            self.records = []
        start_s = self.clock()
        if state.step in self.evaluation_steps:
            self.evaluate(state)
        self.standing.step = state.step
        if self.is_saving_due(state.step) or state.is_stopped:
            self.save(state)
        if self.wants_stop:
            state.is_stopped = True
        self.paused_s += self.clock() - start_s

    def measure_speed(self, step: int) -> Metrics:
        """Since the last report, without what was done in between."""
        now_s, data_wait_s = self.clock(), self.read_waited_s()
        seconds = max(now_s - self.marked_s - self.paused_s, 1e-9)
        speed = {
            "images_per_s": (step - self.marked_step) * self.recipe.loader.batch_size / seconds,
            "waited": min(1.0, (data_wait_s - self.marked_waited_s) / seconds),
            "seconds": self.seconds_before + now_s - self.started_s,
        }
        self.marked_s, self.marked_step, self.marked_waited_s, self.paused_s = now_s, step, data_wait_s, 0.0
        return speed

    def evaluate(self, state: TrainState) -> None:
        assert self.actions.evaluate is not None
        score, record = self.actions.evaluate(state)
        self.actions.report(state.step, record)
        standing, patience = self.standing, self.recipe.evaluation.patience
        if standing.best is None or score > standing.best:
            standing.best, standing.best_step, standing.num_worse = score, state.step, 0
            self.actions.save_best(state)
        else:
            standing.num_worse += 1
        if patience and standing.num_worse >= patience and state.step < self.total_steps:
            standing.stopped_early = state.is_stopped = True
            self.actions.say(
                f"Stopped at step {state.step}: no better since step {standing.best_step}, {patience} evaluations."
            )

    def save(self, state: TrainState) -> None:
        seconds = self.clock() - self.started_s
        self.standing.seconds = self.seconds_before + seconds
        self.standing.device_seconds = self.device_seconds_before + seconds * self.runtime.world_size
        self.actions.save(state, self.standing)
        self.saved_s = self.clock()
        self.wants_save = False


def average(records: list[tuple[int, Metrics]]) -> Metrics:
    """Over the steps of all of them; the rate is that of the last one."""
    num_steps = sum(steps for steps, _ in records)
    last = records[-1][1]
    means = {name: sum(steps * record[name] for steps, record in records) / num_steps for name in last}
    return {**means, "rate": last["rate"]}
