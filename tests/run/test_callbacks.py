"""Tests of run/callbacks.py.

What is due after which step, driven step by step with a clock of the test's own.
What the main process leaves in files, and that the others leave nothing.
Signals as the system sends them, to this very process.
"""

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
from vitrine.run.callbacks import SIGNALS, STEPS_BETWEEN_QUESTIONS, Actions, Callbacks, Stop, open_logger, stop_on_signals
from vitrine.run.folder import RunFolder, RunProgress
from vitrine.training.config import ReportConfig, SavingConfig
from vitrine.training.loop import Metrics
from vitrine.training.metrics_log import read_records
from vitrine.training.state import TrainState

ALONE = Runtime(torch.device("cpu"))
BATCH_SIZE = 32


@dataclass(frozen=True)
class ManyOnGpus(Runtime):
    """One of several processes, of which the others wish nothing."""

    def any_rank(self, wishes: Sequence[bool]) -> list[bool]:
        return list(wishes)


MANY = ManyOnGpus(torch.device("cuda"), 0, 2)


@dataclass
class Driver:
    """Does what the loop does with its hooks, and keeps what the course had done. The loss of a step is its number."""

    total_steps: int
    recipe: Recipe
    runtime: Runtime = ALONE
    standing: RunProgress = field(default_factory=RunProgress)
    accuracies: dict[int, float] | None = None
    """Found by an evaluation at a step; None: there is nothing to evaluate on."""
    step_s: float = 1.0
    evaluation_s: float = 0.0
    now_s: float = 1000.0
    data_wait_s: float = 5.0
    stop: Stop = field(default_factory=Stop)
    done: list[tuple[Any, ...]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    records: list[tuple[int, Metrics]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.losses: list[float] = []
        module = nn.Linear(1, 1)
        self.state = TrainState(module, torch.optim.SGD(module.parameters(), lr=0.1), step=self.standing.step)
        actions = Actions(
            report=lambda step, record: self.records.append((step, record)),
            evaluate=None if self.accuracies is None else self.evaluate,
            save=self.save,
            save_best=lambda state: self.done.append(("best", state.step)),
            say=self.said.append,
        )
        self.course = Callbacks(
            self.recipe,
            self.runtime,
            actions,
            self.stop,
            self.standing,
            self.total_steps,
            lambda: self.data_wait_s,
            lambda: self.now_s,
        )

    def evaluate(self, state: TrainState) -> tuple[float, Metrics]:
        assert self.accuracies is not None
        self.now_s += self.evaluation_s
        self.done.append(("evaluate", state.step))
        top1 = self.accuracies.get(state.step, 0.0)
        return top1, {"val_top1": top1}

    def save(self, state: TrainState, standing: RunProgress) -> Path:
        self.done.append(("save", state.step, replace(standing)))
        return Path("somewhere")

    def run(self, until: int | None = None, stop_at: int | None = None) -> "Driver":
        while self.state.step < (until or self.total_steps) and not self.state.is_stopped:
            self.now_s += self.step_s
            self.data_wait_s += self.step_s / 4
            self.state.step += 1
            if self.state.step == stop_at:
                self.stop.note(15, None)
            self.losses.append(self.state.step)
            if self.course.is_due(self.state.step) or self.state.step == self.total_steps:
                record = {"loss": sum(self.losses) / len(self.losses), "rate": 1 / self.state.step}
                self.losses = []
                self.course.act(self.state, record)
        return self

    def steps(self, what: str) -> list[int]:
        return [entry[1] for entry in self.done if entry[0] == what]

    @property
    def reported(self) -> list[int]:
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
def test_evaluations_are_evenly_spread_and_the_last_is_at_the_end(total_steps: int, num_times: int, steps: list[int]) -> None:
    assert Driver(total_steps, make(num_times), accuracies={}).run().steps("evaluate") == steps


def test_without_images_to_evaluate_on_nothing_is_evaluated() -> None:
    driver = Driver(20, make(num_times=4)).run()
    assert driver.steps("evaluate") == driver.steps("best") == []
    assert driver.standing.best is None


def test_a_report_is_of_all_steps_since_the_last_whatever_was_done_between() -> None:
    driver = Driver(23, make(num_times=2, every_steps=9, report=5), accuracies={}).run()
    assert driver.steps("evaluate") == [12, 23]
    assert driver.steps("save") == [9, 18, 23]
    assert driver.reported == [5, 10, 15, 20, 23]
    reports = [record for _, record in driver.records if "loss" in record]
    assert [record["loss"] for record in reports] == pytest.approx([3, 8, 13, 18, 22])  # 1 to 5, 6 to 10, ..
    assert [record["rate"] for record in reports] == [1 / step for step in driver.reported]  # that of the step


def test_the_end_is_saved_and_reported_in_any_case() -> None:
    driver = Driver(17, make()).run()
    assert driver.steps("save") == driver.reported == [17]


def test_saving_by_the_clock_counts_from_the_last_save_of_any_kind() -> None:
    """A step takes a second, so that a minute is 60 of them."""
    driver = Driver(170, make(every_minutes=1.0)).run()
    assert driver.steps("save") == [60, 120, 170]
    driver = Driver(170, make(every_minutes=1.0, every_steps=50)).run()
    assert driver.steps("save") == [50, 100, 150, 170]
    driver = Driver(170, make(every_minutes=1.0, every_steps=80)).run()
    assert driver.steps("save") == [60, 80, 140, 160, 170]


def test_of_several_processes_on_gpus_a_save_that_is_due_is_done_once() -> None:
    """They ask each other only now and then, and what they found the last time must not count again."""
    driver = Driver(100, make(every_minutes=0.5), MANY).run()
    assert driver.steps("save") == [32, 64, 96, 100]
    assert all(step % STEPS_BETWEEN_QUESTIONS == 0 for step in driver.steps("save")[:-1])


def test_of_several_processes_on_gpus_a_wish_to_stop_is_heard_at_the_next_question() -> None:
    driver = Driver(100, make(), MANY).run(stop_at=9)
    assert driver.steps("save") == [16]
    assert driver.state.step == 16


@pytest.mark.parametrize("stop_at", [1, 7, 10, 19])
def test_a_wish_to_stop_ends_the_run_after_the_step_and_saves_it(stop_at: int) -> None:
    driver = Driver(20, make(num_times=2), accuracies={}).run(stop_at=stop_at)
    assert driver.state.is_stopped
    assert driver.state.step == stop_at
    assert driver.steps("save") == [stop_at]
    assert driver.reported[-1] == stop_at
    assert not driver.standing.stopped_early


def test_what_is_saved_knows_what_was_found_at_its_step() -> None:
    """A run that is killed after it goes on as if it had not been."""
    driver = Driver(8, make(num_times=2, every_steps=4), accuracies={4: 0.5, 8: 0.25}).run()
    first, last = (entry[2] for entry in driver.done if entry[0] == "save")
    assert (first.step, first.best, first.best_step, first.num_worse) == (4, 0.5, 4, 0)
    assert (last.step, last.best, last.best_step, last.num_worse) == (8, 0.5, 4, 1)


def test_the_best_is_written_before_the_checkpoint_that_knows_of_it() -> None:
    """Killed between the two, a run evaluates again; the other way round it would have lost its best."""
    driver = Driver(8, make(num_times=2, every_steps=4), accuracies={4: 0.5, 8: 0.6}).run()
    assert [entry[:2] for entry in driver.done] == [(what, step) for step in (4, 8) for what in ("evaluate", "best", "save")]


def test_the_best_is_the_first_of_equals() -> None:
    driver = Driver(40, make(num_times=4), accuracies={10: 0.3, 20: 0.5, 30: 0.5, 40: 0.4}).run()
    assert driver.steps("best") == [10, 20]
    assert (driver.standing.best, driver.standing.best_step, driver.standing.num_worse) == (0.5, 20, 2)


def test_even_an_accuracy_of_nothing_is_a_best_one() -> None:
    assert Driver(10, make(num_times=1), accuracies={10: 0.0}).run().steps("best") == [10]


def test_patience_counts_evaluations_without_a_better_one() -> None:
    accuracies = {10: 0.1, 20: 0.05, 30: 0.2, 40: 0.2, 50: 0.1, 60: 0.9}
    driver = Driver(100, make(num_times=10, patience=2), accuracies=accuracies).run()
    assert driver.state.step == 50
    assert driver.standing.stopped_early
    assert driver.steps("save") == [50]
    [saved] = [entry[2] for entry in driver.done if entry[0] == "save"]
    assert saved.stopped_early  # or a run that is killed now would train on when it is resumed
    assert driver.said == ["Stopped at step 50: no better since step 30, 2 evaluations."]


def test_patience_of_nothing_takes_the_best_and_runs_to_the_end() -> None:
    driver = Driver(100, make(num_times=10, patience=0), accuracies={10: 0.9}).run()
    assert driver.state.step == 100
    assert not driver.standing.stopped_early


def test_a_run_that_ends_anyway_did_not_stop_early() -> None:
    driver = Driver(30, make(num_times=3, patience=2), accuracies={10: 0.9}).run()
    assert driver.state.step == 30
    assert not driver.standing.stopped_early
    assert driver.said == []


def test_a_resumed_run_counts_on() -> None:
    accuracies = {10: 0.5, 20: 0.4, 30: 0.3, 40: 0.2}
    first = Driver(100, make(num_times=10, patience=3), accuracies=accuracies).run(stop_at=25)
    second = Driver(100, make(num_times=10, patience=3), standing=replace(first.standing), accuracies=accuracies).run()
    assert second.steps("evaluate") == [30, 40]
    assert second.state.step == 40
    assert second.standing.stopped_early
    assert second.standing.best_step == 10


def test_speed_is_of_the_steps_alone() -> None:
    """Two steps a second, of which a quarter is waiting; evaluations of a minute do not count."""
    recipe = make(num_times=2, report=10)
    driver = Driver(40, recipe, accuracies={}, step_s=0.5, evaluation_s=60.0).run()
    records = [record for _, record in driver.records if "loss" in record]
    assert driver.reported == [10, 20, 30, 40]
    assert [record["images_per_s"] for record in records] == pytest.approx([2 * BATCH_SIZE] * 4)
    assert [record["waited"] for record in records] == pytest.approx([0.25] * 4)
    assert [record["seconds"] for record in records] == pytest.approx([5.0, 10.0, 75.0, 80.0])


def test_seconds_of_all_attempts_are_added() -> None:
    first = Driver(40, make()).run(stop_at=10)
    assert first.standing.seconds == pytest.approx(10)
    second = Driver(40, make(), standing=replace(first.standing), now_s=50_000.0).run()
    assert second.standing.seconds == pytest.approx(40)
    assert second.records[-1][1]["seconds"] == pytest.approx(40)
    assert second.records[-1][1]["images_per_s"] == pytest.approx(BATCH_SIZE)  # not of the ten steps before, too


RECIPE = Recipe(epochs=1, report=ReportConfig(tensorboard=True))
CPU = torch.device("cpu")


def test_records_go_to_every_file_and_losses_to_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder(tmp_path)
    with open_logger(RECIPE, folder, Runtime(CPU), "shades", 0, 20) as reporter:
        reporter.report(10, {"loss": 0.5, "rate": 0.1})
        reporter.report(10, {"val_top1": 0.25})
        reporter.say("a word")
    assert read_records(folder.metrics) == [{"step": 10, "loss": 0.5, "rate": 0.1}, {"step": 10, "val_top1": 0.25}]
    assert list(folder.tensorboard.iterdir())
    said = capsys.readouterr().err
    assert "step 10/20  loss 0.5" in said
    assert "a word" in said
    assert "val_top1" not in said


def test_a_resumed_run_says_where_it_goes_on_and_drops_what_it_will_do_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(tmp_path)
    folder.metrics.write_text('{"step": 5, "loss": 1.0}\n{"step": 9, "loss": 0.9}\n')
    with open_logger(Recipe(epochs=1), folder, Runtime(CPU), "shades", 5, 20):
        pass
    assert [record["step"] for record in read_records(folder.metrics)] == [5]
    assert f"Going on from step 5, saved in {tmp_path}." in capsys.readouterr().err


def test_the_other_processes_are_silent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_logger(RECIPE, RunFolder(tmp_path), Runtime(CPU, rank=1, world_size=2), "shades", 3, 20) as reporter:
        reporter.report(10, {"loss": 0.5})
        reporter.say("a word")
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err == ""


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Whatever a test leaves, the next begins with what pytest had."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_noted_and_nothing_is_broken_off(number: int) -> None:
    with stop_on_signals() as stop:
        assert not stop.is_wanted
        signal.raise_signal(number)
        assert stop.is_wanted
        assert stop.signal == number


@pytest.mark.parametrize("first", SIGNALS)
def test_ctrl_c_after_any_signal_ends_at_once(first: int) -> None:
    with stop_on_signals():
        signal.raise_signal(first)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_sigterm_again_is_patient() -> None:
    """Schedulers repeat it; the step under way is still to be finished and saved."""
    with stop_on_signals() as stop:
        for _ in range(3):
            signal.raise_signal(signal.SIGTERM)
        assert stop.is_wanted


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_the_handlers_before_come_back(error: type[BaseException] | None) -> None:
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


def test_one_run_after_another_begins_without_a_wish() -> None:
    with stop_on_signals():
        signal.raise_signal(signal.SIGTERM)
    with stop_on_signals() as stop:
        assert not stop.is_wanted


def test_another_thread_leaves_signals_alone() -> None:
    """A server or a notebook may train in a thread, where Python lets nobody set handlers."""
    found: list[tuple[Stop, bool]] = []
    before = signal.getsignal(signal.SIGINT)

    def work() -> None:
        with stop_on_signals() as stop:
            found.append((stop, signal.getsignal(signal.SIGINT) is before))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    [(stop, is_untouched)] = found
    assert is_untouched
    assert not stop.is_wanted
