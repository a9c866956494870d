"""Callbacks driven step by step with a fake clock; log files of the ranks; signals sent to this process."""

import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from vitrine.core.runtime import Runtime
from vitrine.data.config import LoaderConfig
from vitrine.evaluation.config import EvaluationConfig
from vitrine.recipe import Recipe
from vitrine.run.callbacks import (
    SIGNALS,
    STEPS_BETWEEN_QUESTIONS,
    Callbacks,
    MetricWindow,
    StopRequest,
    open_logger,
    stop_on_signals,
)
from vitrine.run.folder import RunFolder, RunProgress
from vitrine.training.config import ReportConfig, SavingConfig
from vitrine.training.loop import MetricAverager, Metrics
from vitrine.training.metrics_log import MetricNames, read_records
from vitrine.training.state import TrainState

ALONE = Runtime(torch.device("cpu"))
BATCH_SIZE = 32


@dataclass(frozen=True)
class GpuRank(Runtime):
    """One of several ranks on GPUs; the others request nothing."""

    def any_rank(self, flags: Sequence[bool]) -> list[bool]:
        return list(flags)


@dataclass
class Driver:
    """Calls callbacks as the training loop does, and records what they do. The loss of a step is its number."""

    total_steps: int
    recipe: Recipe
    runtime: Runtime = ALONE
    progress: RunProgress = field(default_factory=RunProgress)
    accuracies: dict[int, float] | None = None
    """Results of the evaluations by step; None: there are no validation images."""
    step_s: float = 1.0
    evaluation_s: float = 0.0
    now_s: float = 1000.0
    data_wait_s: float = 5.0
    stop: StopRequest = field(default_factory=StopRequest)
    done: list[tuple[Any, ...]] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    shown: list[int] = field(default_factory=list)
    """Steps that the bar was moved to without a logged line."""
    records: list[tuple[int, Metrics]] = field(default_factory=list)
    hidden: frozenset[str] = frozenset()
    """Metrics that are not printed."""

    def __post_init__(self) -> None:
        module = nn.Linear(1, 1)
        self.state = TrainState(module, torch.optim.SGD(module.parameters(), lr=0.1), step=self.progress.step)
        self.metrics = MetricAverager(ALONE)
        self.callbacks = Callbacks(
            self.recipe,
            self.runtime,
            logger=self,
            stop=self.stop,
            evaluate=None if self.accuracies is None else self.evaluate,
            writer=self,
            progress=self.progress,
            total_steps=self.total_steps,
            read_data_wait_s=lambda: self.data_wait_s,
            clock=lambda: self.now_s,
        )

    def log(self, step: int, metrics: Metrics) -> None:
        self.records.append((step, metrics))

    def print_message(self, text: str) -> None:
        self.messages.append(text)

    def show_step(self, step: int) -> None:
        self.shown.append(step)

    def evaluate(self, state: TrainState) -> tuple[float, Metrics]:
        assert self.accuracies is not None
        self.now_s += self.evaluation_s
        self.done.append(("evaluate", state.step))
        top1 = self.accuracies.get(state.step, 0.0)
        return top1, {"val_top1": top1}

    def save_training(self, state: TrainState, progress: RunProgress) -> None:
        self.done.append(("save", state.step, replace(progress)))

    def save_best(self, state: TrainState) -> None:
        self.done.append(("best", state.step))

    def run(self, stop_at: int | None = None) -> "Driver":
        while self.state.step < self.total_steps and not self.state.is_stopped:
            self.now_s += self.step_s
            self.data_wait_s += self.step_s / 4
            self.state.step += 1
            if self.state.step == stop_at:
                self.stop.on_signal(15, None)
            self.metrics.add({"loss": torch.tensor(float(self.state.step))})
            self.callbacks.after_step(self.state, self.metrics, lr=1 / self.state.step)
        return self

    def steps(self, action: str) -> list[int]:
        return [entry[1] for entry in self.done if entry[0] == action]

    @property
    def logged(self) -> list[int]:
        return [step for step, record in self.records if "loss" in record]


def make(num_times: int = 0, every_steps: int | None = None, report: int = 1000, **changes: Any) -> Recipe:
    return Recipe(
        loader=LoaderConfig(batch_size=BATCH_SIZE),
        total_steps=1000,
        evaluation=EvaluationConfig(num_times=num_times, patience=changes.pop("patience", None)),
        saving=SavingConfig(every_steps=every_steps, **changes),
        report=ReportConfig(every_steps=report),
    )


@pytest.mark.parametrize(
    ("total_steps", "num_times", "steps"),
    [
        (100, 10, [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]),
        (7, 3, [2, 5, 7]),
        (3, 10, [1, 2, 3]),
        (1, 10, [1]),
        (10, 1, [10]),
        (10, 0, []),
        (1000, 7, [143, 286, 429, 571, 714, 857, 1000]),
    ],
)
def test_evaluations_are_evenly_spaced_up_to_the_last_step(total_steps: int, num_times: int, steps: list[int]) -> None:
    assert Driver(total_steps, make(num_times), accuracies={}).run().steps("evaluate") == steps


def test_without_validation_images_nothing_is_evaluated() -> None:
    driver = Driver(20, make(num_times=4)).run()
    assert driver.steps("evaluate") == driver.steps("best") == []
    assert driver.progress.best is None


def test_a_log_line_averages_all_steps_since_the_last_line() -> None:
    driver = Driver(23, make(num_times=2, every_steps=9, report=5), accuracies={}).run()
    assert driver.steps("evaluate") == [12, 23]
    assert driver.steps("save") == [9, 18, 23]
    assert driver.logged == [5, 10, 15, 20, 23]
    assert sorted(driver.shown + driver.logged) == list(range(1, 24))  # the bar moves at every step
    lines = [record for _, record in driver.records if "loss" in record]
    assert [line["loss"] for line in lines] == pytest.approx([3, 8, 13, 18, 22])  # steps 1 to 5, 6 to 10, ..
    assert [line["rate"] for line in lines] == [1 / step for step in driver.logged]  # that of the step


def test_metrics_are_read_whenever_anything_is_due_and_only_then() -> None:
    driver = Driver(20, make(num_times=2, every_steps=3, report=5), accuracies={})
    reads: list[int] = []
    read = driver.metrics.read
    driver.metrics.read = lambda: reads.append(driver.state.step) or read()
    driver.run()
    assert reads == [3, 5, 6, 9, 10, 12, 15, 18, 20]


def test_the_last_step_is_always_saved_and_logged() -> None:
    driver = Driver(17, make()).run()
    assert driver.steps("save") == driver.logged == [17]


def test_saving_by_the_clock_counts_from_the_last_checkpoint_of_any_kind() -> None:
    """A step takes a second, so a minute has 60 of them."""
    assert Driver(170, make(every_minutes=1.0)).run().steps("save") == [60, 120, 170]
    assert Driver(170, make(every_minutes=1.0, every_steps=50)).run().steps("save") == [50, 100, 150, 170]
    assert Driver(170, make(every_minutes=1.0, every_steps=80)).run().steps("save") == [60, 80, 140, 160, 170]


def test_several_gpu_ranks_save_once_when_it_is_time() -> None:
    """They ask each other every few steps only, and an earlier answer must not count again."""
    driver = Driver(100, make(every_minutes=0.5), GpuRank(torch.device("cuda"), 0, 2)).run()
    assert driver.steps("save") == [32, 64, 96, 100]
    assert all(step % STEPS_BETWEEN_QUESTIONS == 0 for step in driver.steps("save")[:-1])


def test_several_gpu_ranks_stop_at_the_next_question() -> None:
    driver = Driver(100, make(), GpuRank(torch.device("cuda"), 0, 2)).run(stop_at=9)
    assert driver.steps("save") == [16]
    assert driver.state.step == 16


@pytest.mark.parametrize("stop_at", [1, 7, 10, 19])
def test_a_stop_request_ends_the_run_after_the_step_and_saves_it(stop_at: int) -> None:
    driver = Driver(20, make(num_times=2), accuracies={}).run(stop_at=stop_at)
    assert driver.state.is_stopped
    assert driver.state.step == stop_at
    assert driver.steps("save") == [stop_at]
    assert driver.logged[-1] == stop_at
    assert not driver.progress.stopped_early


def test_a_checkpoint_includes_the_evaluation_of_its_step() -> None:
    """A run that is killed right after it resumes as if it had not been."""
    driver = Driver(8, make(num_times=2, every_steps=4), accuracies={4: 0.5, 8: 0.25}).run()
    first, last = (entry[2] for entry in driver.done if entry[0] == "save")
    assert (first.step, first.best, first.best_step, first.num_worse) == (4, 0.5, 4, 0)
    assert (last.step, last.best, last.best_step, last.num_worse) == (8, 0.5, 4, 1)


def test_the_best_model_is_written_before_the_checkpoint_that_refers_to_it() -> None:
    """Killed between the two, a run evaluates again; in the other order it would have lost its best model."""
    driver = Driver(8, make(num_times=2, every_steps=4), accuracies={4: 0.5, 8: 0.6}).run()
    actions = [(action, step) for step in (4, 8) for action in ("evaluate", "best", "save")]
    assert [entry[:2] for entry in driver.done] == actions


def test_the_best_is_the_first_of_equal_evaluations() -> None:
    driver = Driver(40, make(num_times=4), accuracies={10: 0.3, 20: 0.5, 30: 0.5, 40: 0.4}).run()
    assert driver.steps("best") == [10, 20]
    assert (driver.progress.best, driver.progress.best_step, driver.progress.num_worse) == (0.5, 20, 2)


def test_an_accuracy_of_zero_can_be_the_best() -> None:
    assert Driver(10, make(num_times=1), accuracies={10: 0.0}).run().steps("best") == [10]


def test_patience_counts_evaluations_without_improvement() -> None:
    accuracies = {10: 0.1, 20: 0.05, 30: 0.2, 40: 0.2, 50: 0.1, 60: 0.9}
    driver = Driver(100, make(num_times=10, patience=2), accuracies=accuracies).run()
    assert driver.state.step == 50
    assert driver.progress.stopped_early
    assert driver.steps("save") == [50]
    [saved] = [entry[2] for entry in driver.done if entry[0] == "save"]
    assert saved.stopped_early  # otherwise a run killed now would train on when it is resumed
    assert "step 50" in driver.messages[-1]
    assert "step 30" in driver.messages[-1]


def test_patience_of_zero_runs_to_the_end() -> None:
    driver = Driver(100, make(num_times=10, patience=0), accuracies={10: 0.9}).run()
    assert driver.state.step == 100
    assert not driver.progress.stopped_early


def test_patience_that_runs_out_at_the_last_step_is_not_early_stopping() -> None:
    driver = Driver(30, make(num_times=3, patience=2), accuracies={10: 0.9}).run()
    assert driver.state.step == 30
    assert not driver.progress.stopped_early
    assert len(driver.messages) == 3  # the evaluations


def test_a_resumed_run_continues_to_count_evaluations() -> None:
    accuracies = {10: 0.5, 20: 0.4, 30: 0.3, 40: 0.2}
    first = Driver(100, make(num_times=10, patience=3), accuracies=accuracies).run(stop_at=25)
    second = Driver(100, make(num_times=10, patience=3), progress=replace(first.progress), accuracies=accuracies).run()
    assert second.steps("evaluate") == [30, 40]
    assert second.state.step == 40
    assert second.progress.stopped_early
    assert second.progress.best_step == 10


def test_speed_excludes_evaluations() -> None:
    """Two steps a second, a quarter of it data wait; evaluations of a minute do not count."""
    driver = Driver(40, make(num_times=2, report=10), accuracies={}, step_s=0.5, evaluation_s=60.0).run()
    lines = [record for _, record in driver.records if "loss" in record]
    assert driver.logged == [10, 20, 30, 40]
    assert [line["images_per_s"] for line in lines] == pytest.approx([2 * BATCH_SIZE] * 4)
    assert [line["waited"] for line in lines] == pytest.approx([0.25] * 4)
    assert [line["seconds"] for line in lines] == pytest.approx([5.0, 10.0, 75.0, 80.0])


def test_seconds_of_all_attempts_are_added() -> None:
    first = Driver(40, make()).run(stop_at=10)
    assert first.progress.seconds == pytest.approx(10)
    second = Driver(40, make(), progress=replace(first.progress), now_s=50_000.0).run()
    assert second.progress.seconds == pytest.approx(40)
    assert second.records[-1][1]["seconds"] == pytest.approx(40)
    assert second.records[-1][1]["images_per_s"] == pytest.approx(BATCH_SIZE)  # without the first ten steps


def test_device_seconds_count_every_rank() -> None:
    driver = Driver(40, make(), GpuRank(torch.device("cuda"), 0, 2)).run()
    assert driver.progress.device_seconds == pytest.approx(80)


CPU = torch.device("cpu")
NAMES = MetricNames(("accuracy",), {"val_top1": "val top-1"})


def open_in(path: Path, recipe: Recipe, start_step: int = 0, runtime: Runtime = ALONE) -> Any:
    folder = RunFolder(path)
    return open_logger(recipe, folder, runtime, title="shades", start_step=start_step, total_steps=20, metric_names=NAMES)


TENSORBOARD = Recipe(epochs=1, report=ReportConfig(tensorboard=True))


def test_metrics_go_to_every_file_and_those_of_training_to_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_in(tmp_path, TENSORBOARD) as logger:
        logger.log(10, {"loss": 0.5, "accuracy": 0.75, "rate": 0.1})
        logger.log(10, {"val_top1": 0.25})
        logger.print_message("a message")
    assert read_records(tmp_path / "metrics.jsonl") == [
        {"step": 10, "loss": 0.5, "accuracy": 0.75, "rate": 0.1},
        {"step": 10, "val_top1": 0.25},
    ]
    assert list((tmp_path / "tensorboard").iterdir())
    printed = capsys.readouterr().err
    assert "step 10/20  loss 0.5  accuracy 0.750  lr 0.1" in printed
    assert "a message" in printed
    assert "val_top1" not in printed


def test_a_resumed_run_drops_the_records_of_steps_that_it_repeats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 5, "loss": 1.0}\n{"step": 9, "loss": 0.9}\n')
    with open_in(tmp_path, Recipe(epochs=1), start_step=5):
        pass
    assert [record["step"] for record in read_records(tmp_path / "metrics.jsonl")] == [5]
    assert f"step 5 ({tmp_path})" in capsys.readouterr().err


def test_other_ranks_log_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_in(tmp_path, TENSORBOARD, 3, Runtime(CPU, rank=1, world_size=2)) as logger:
        logger.log(10, {"loss": 0.5})
        logger.print_message("a message")
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err == ""


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Restore the signal handlers after each test."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_becomes_a_stop_request(number: int) -> None:
    with stop_on_signals() as stop:
        assert not stop.is_requested
        signal.raise_signal(number)
        assert stop.is_requested
        assert stop.signal == number


@pytest.mark.parametrize("first", SIGNALS)
def test_ctrl_c_after_any_signal_ends_at_once(first: int) -> None:
    with stop_on_signals():
        signal.raise_signal(first)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_repeated_sigterm_still_saves() -> None:
    """Schedulers repeat the signal; the current step is still finished and saved."""
    with stop_on_signals() as stop:
        for _ in range(3):
            signal.raise_signal(signal.SIGTERM)
        assert stop.is_requested


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_former_handlers_are_restored(error: type[BaseException] | None) -> None:
    seen: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def run() -> None:
        with stop_on_signals():
            assert {number: signal.getsignal(number) for number in SIGNALS} != before
            if error is not None:
                raise error

    if error is None:
        run()
    else:
        with pytest.raises(error):
            run()
    assert {number: signal.getsignal(number) for number in SIGNALS} == before
    signal.raise_signal(signal.SIGTERM)
    assert seen == [signal.SIGTERM]


def test_the_next_run_starts_without_a_stop_request() -> None:
    with stop_on_signals():
        signal.raise_signal(signal.SIGTERM)
    with stop_on_signals() as stop:
        assert not stop.is_requested


def test_a_run_under_nohup_goes_on_without_its_terminal() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with stop_on_signals() as stop:
        signal.raise_signal(signal.SIGHUP)
        assert not stop.is_requested
        signal.raise_signal(signal.SIGTERM)
        assert stop.is_requested
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_another_thread_leaves_signals_alone() -> None:
    """A server or a notebook may train in a thread, where Python does not allow signal handlers."""
    found: list[tuple[StopRequest, bool]] = []
    before = signal.getsignal(signal.SIGINT)

    def work() -> None:
        with stop_on_signals() as stop:
            found.append((stop, signal.getsignal(signal.SIGINT) is before))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    [(stop, is_untouched)] = found
    assert is_untouched
    assert not stop.is_requested


def test_a_piece_of_skipped_steps_has_no_gradient_norm() -> None:
    window = MetricWindow(20)
    window.add(21, {"loss": 4.0, "rate": 0.1})
    window.add(24, {"loss": 2.0, "grad_norm": 5.0, "rate": 0.2})
    window.add(25, {"loss": 2.0, "rate": 0.3})
    assert window.take_mean() == pytest.approx({"loss": 2.4, "grad_norm": 5.0, "rate": 0.3})
