"""Runs in child processes: the same numbers for any number of jobs and after any interruption; failures are recorded."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch

from tests.run.test_resume import require_same_run
from tests.run.test_run import make_recipe, write_data
from vitrine.models.settings import ModelSettings
from vitrine.run.folder import RunSummary
from vitrine.studies.children import RunFailed, run_in_children
from vitrine.studies.runner import RunOutcome, RunTable, StartMissing, StudyRun
from vitrine.training.config import SavingConfig

pytestmark = pytest.mark.usefixtures("short_runs")

SEEDS = (0, 1, 2)
PATIENCE_S = 120.0  # until what hangs is an error; no limit on speed


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_data(tmp_path_factory.mktemp("data") / "shades.npz")


def build_run(source: str, name: str, **changes: Any) -> StudyRun:
    recipe = make_recipe(source, **{"saving": SavingConfig(every_steps=1), **changes})
    return StudyRun(label=name, recipe=recipe, folder=f"runs/{name}", title=name)


def build_runs(source: str) -> list[StudyRun]:
    return [build_run(source, f"seed-{seed}", seed=seed) for seed in SEEDS]


def read_threads(run: StudyRun, folder: Path, summary: RunSummary) -> dict[str, Any]:
    """Measure a finished run, in a child process."""
    return {"accuracy": summary.test_top1, "threads": torch.get_num_threads(), "limit": os.environ["OMP_NUM_THREADS"]}


def read_environment(run: StudyRun, folder: Path, summary: RunSummary) -> dict[str, Any]:
    """Return a variable of the environment in a child process."""
    return {"value": os.environ["VITRINE_OF_THIS_TEST"]}


def fail(run: StudyRun, folder: Path, summary: RunSummary) -> dict[str, Any]:
    """Stand for a mistake of ours."""
    raise AssertionError("a mistake")


def kill_own_process(run: StudyRun, folder: Path, summary: RunSummary) -> dict[str, Any]:
    """Stand for the kernel that ends a process where memory has run out."""
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def make_all(runs: Sequence[StudyRun], out: Path, jobs: int = 2, report: Callable[[RunOutcome], None] = print) -> RunTable:
    return run_in_children(runs, out, jobs, read_threads, report)


@pytest.fixture(scope="module")
def undisturbed(source: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunTable]:
    out = tmp_path_factory.mktemp("runs") / "new" / "study"
    return out, make_all(build_runs(source), out, jobs=1)


def require_same_study(out: Path, whole: Path) -> None:
    for seed in SEEDS:
        require_same_run(out / "runs" / f"seed-{seed}", whole / "runs" / f"seed-{seed}")


def test_runs_are_finished_and_measured_in_order(undisturbed: tuple[Path, RunTable], source: str) -> None:
    _, table = undisturbed
    assert [outcome.run for outcome in table.outcomes] == build_runs(source)
    assert all(outcome.is_finished for outcome in table.outcomes)
    assert table.interrupted_by is None
    assert table.failures == []
    for outcome in table.outcomes:
        assert outcome.summary is not None
        assert outcome.reading == {"accuracy": outcome.summary.test_top1, "threads": 1, "limit": "1"}


def test_output_of_a_run_goes_to_its_log(
    undisturbed: tuple[Path, RunTable], source: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make_all(build_runs(source)[:1], tmp_path, report=lambda outcome: None)
    assert capfd.readouterr().err == ""
    assert "step" in (tmp_path / "runs" / "seed-0.log").read_text()


def test_two_jobs_give_the_same_numbers_as_one(undisturbed: tuple[Path, RunTable], source: str, tmp_path: Path) -> None:
    table = make_all(build_runs(source), tmp_path, jobs=2)
    require_same_study(tmp_path, undisturbed[0])
    assert [each.reading for each in table.outcomes] == [each.reading for each in undisturbed[1].outcomes]


def test_finished_runs_are_only_read(undisturbed: tuple[Path, RunTable], source: str) -> None:
    out, table = undisturbed
    times = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert make_all(build_runs(source), out).outcomes == table.outcomes
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == times


def test_failures_are_recorded_and_the_rest_finishes(source: str, tmp_path: Path) -> None:
    wild = {"kind": "sgd", "learning_rate": 1e30, "max_grad_norm": None, "warmup_steps": 0}
    runs = [
        build_run(source, "wild", optim=wild),
        build_run(str(tmp_path / "missing.npz"), "missing"),
        build_run(source, "tame", total_steps=3, optim={"warmup_steps": 1}),
    ]
    table = make_all(runs, tmp_path)
    assert [outcome.is_finished for outcome in table.outcomes] == [False, False, True]
    diverged, missing = table.failures
    assert isinstance(diverged.error, RunFailed)
    assert "learning_rate" in str(diverged.error)
    assert "missing.npz" in str(missing.error)
    assert table.interrupted_by is None


def test_a_run_waits_for_the_run_that_it_starts_from(source: str, tmp_path: Path) -> None:
    """With two places, the third run goes first: the second waits for the first."""
    first, third = build_run(source, "first"), build_run(source, "third", total_steps=3, optim={"warmup_steps": 1})
    second = build_run(source, "second", model=ModelSettings(checkpoint="runs/first"))
    runs = [first, replace(second, start="runs/first"), third]
    table = make_all(runs, tmp_path)
    assert [(each.run.label, each.is_finished) for each in table.outcomes] == [(run.label, True) for run in runs]
    assert make_all(runs, tmp_path).outcomes == table.outcomes


@pytest.mark.parametrize("checkpoint", ["runs/first", "study/runs/first/model"])
def test_a_run_with_a_start_is_read_again_below_a_relative_folder(
    checkpoint: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    second = build_run(source, "second", model=ModelSettings(checkpoint=checkpoint), total_steps=3, optim={"warmup_steps": 1})
    runs = [build_run(source, "first", total_steps=3, optim={"warmup_steps": 1}), replace(second, start="runs/first")]
    table = make_all(runs, Path("study"))
    assert [each.error for each in table.outcomes] == [None, None]
    assert make_all(runs, Path("study")).outcomes == table.outcomes


def test_a_run_whose_start_failed_is_a_failure(source: str, tmp_path: Path) -> None:
    second = build_run(source, "second", model=ModelSettings(checkpoint="runs/missing"))
    runs = [build_run(str(tmp_path / "missing.npz"), "missing"), replace(second, start="runs/missing")]
    missing, waiting = make_all(runs, tmp_path).failures
    assert "missing.npz" in str(missing.error)
    assert isinstance(waiting.error, StartMissing)


def test_children_share_the_present_folder_and_environment(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server of the processes has been started elsewhere, by an earlier test."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("data.npz").write_bytes(Path(source).read_bytes())
    monkeypatch.setenv("VITRINE_OF_THIS_TEST", "7")
    runs = [build_run("data.npz", "run", total_steps=3, optim={"warmup_steps": 1})]
    (outcome,) = run_in_children(runs, Path("out"), 1, read_environment, print).outcomes
    assert outcome.reading == {"value": "7"}
    assert (tmp_path / "here" / "out" / "runs" / "run" / "summary.json").is_file()


def test_a_mistake_of_ours_is_recorded_with_its_log(source: str, tmp_path: Path) -> None:
    runs = [build_run(source, "run", total_steps=3, optim={"warmup_steps": 1})]
    (outcome,) = run_in_children(runs, tmp_path, 1, fail, print).failures
    assert "AssertionError: a mistake" in str(outcome.error)
    assert "Traceback" in (tmp_path / "runs" / "run.log").read_text()


def test_a_killed_child_is_recorded_and_continued(source: str, tmp_path: Path, undisturbed: tuple[Path, RunTable]) -> None:
    runs = build_runs(source)
    table = run_in_children(runs, tmp_path, 2, kill_own_process, print)
    assert len(table.failures) == len(runs)
    assert all("SIGKILL" in str(failure.error) for failure in table.failures)
    assert table.interrupted_by is None
    make_all(runs, tmp_path)
    require_same_study(tmp_path, undisturbed[0])


def test_a_folder_of_another_recipe_is_a_failure(undisturbed: tuple[Path, RunTable], source: str) -> None:
    other = build_run(source, "seed-0", seed=7)
    (failure,) = make_all([other], undisturbed[0]).failures
    assert "seed" in str(failure.error)


def hold(run: StudyRun, folder: Path, summary: RunSummary) -> dict[str, Any]:
    """Measure a finished run, and wait there until the process is told to end."""
    (folder / "held").touch()
    time.sleep(PATIENCE_S)
    return {}


def signal_when(is_there: Callable[[], bool], number: int, pid: Callable[[], int] = os.getpid) -> Thread:
    """Send a signal as soon as something is there."""

    def wait_and_send() -> None:
        until = time.monotonic() + PATIENCE_S
        while not is_there() and time.monotonic() < until:
            time.sleep(0.002)
        os.kill(pid(), number)

    thread = Thread(target=wait_and_send, daemon=True)
    thread.start()
    return thread


def count_checkpoints(out: Path) -> int:
    return len(list(out.glob("runs/*/checkpoints/step-*")))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_study_equals_an_uninterrupted_one(
    number: signal.Signals, source: str, tmp_path: Path, undisturbed: tuple[Path, RunTable]
) -> None:
    runs = [build_run(source, f"seed-{seed}", seed=seed, total_steps=12) for seed in SEEDS]
    thread = signal_when(lambda: count_checkpoints(tmp_path) > 0, number)
    table = make_all(runs, tmp_path)
    thread.join()
    assert table.interrupted_by == number
    assert not all(outcome.is_finished for outcome in table.outcomes) or len(table.outcomes) < len(runs)
    assert table.failures == []
    resumed = make_all(runs, tmp_path)
    assert resumed.interrupted_by is None
    require_same_study(tmp_path, undisturbed[0])
    assert [each.reading for each in resumed.outcomes] == [each.reading for each in undisturbed[1].outcomes]


def test_a_child_that_is_told_to_stop_before_or_after_its_run_is_no_failure(source: str, tmp_path: Path) -> None:
    runs = [build_run(source, "run", total_steps=3, optim={"warmup_steps": 1})]
    thread = signal_when(lambda: (tmp_path / "runs" / "run" / "held").exists(), signal.SIGTERM)
    table = run_in_children(runs, tmp_path, 1, hold, print)
    thread.join()
    assert (table.outcomes, table.interrupted_by) == ([], signal.SIGTERM)
    (outcome,) = make_all(runs, tmp_path).outcomes
    assert outcome.is_finished


def test_no_child_outlives_a_second_ctrl_c(source: str, tmp_path: Path) -> None:
    runs = build_runs(source)[:2]

    def interrupt(outcome: RunOutcome) -> None:
        raise KeyboardInterrupt

    before = set(active_children())  # of other tests in this process, e.g. loader workers that are still ending
    with pytest.raises(KeyboardInterrupt):
        make_all(runs, tmp_path, report=interrupt)
    assert set(active_children()) <= before
