"""Each task is the run that it would be alone, a second call resumes, and a sweep uses no test images."""

import signal
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from tests.run.test_run import are_equal, interrupt_at, make_recipe, read_weights
from vitrine.core.console import VitrineWarning
from vitrine.data.sources.vtab import VtabTask
from vitrine.recipe import Recipe, with_changes
from vitrine.run.folder import RunSummary
from vitrine.run.run import run_recipe
from vitrine.studies import runner
from vitrine.studies.vtab.benchmark import run_tasks, sweep_settings
from vitrine.studies.vtab.config import VtabConfig
from vitrine.studies.vtab.protocol import FoundTask, Setting, build_task_recipe
from vitrine.studies.vtab.scores import TaskResult

pytestmark = pytest.mark.usefixtures("short_runs")

NUM_TRAIN, NUM_TEST = 60, 20  # a sweep trains on 48 and validates on 12


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> list[FoundTask]:
    """Two datasets of grey levels, with four and two classes; the first counts as a task of the benchmark."""
    folder = tmp_path_factory.mktemp("tasks")
    tasks: list[FoundTask] = []
    for name, num_classes in (("pets", 4), ("photos", 2)):
        arrays: dict[str, np.ndarray] = {}
        for seed, (split, count) in enumerate((("train", NUM_TRAIN), ("test", NUM_TEST))):
            labels = np.arange(count) % num_classes
            noise = np.random.default_rng(seed).integers(0, 90, (count, 8, 8))
            arrays |= {f"x_{split}": (noise + 55 * labels[:, None, None]).astype(np.uint8), f"y_{split}": labels}
        np.savez(folder / f"{name}.npz", allow_pickle=False, **arrays)
        task = VtabTask(name=name, group="natural" if name == "pets" else "other", flip=name == "pets")
        tasks.append(FoundTask(task, task.group, f"vtab:{name}:{folder / name}.npz", num_classes, NUM_TRAIN, NUM_TEST))
    return tasks


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return make_recipe("tasks", evaluation={"num_times": 0}, total_steps=6, augment={"flip": True})


@pytest.fixture(scope="module")
def finished(recipe: Recipe, tasks: list[FoundTask], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[TaskResult]]:
    out = tmp_path_factory.mktemp("runs") / "new" / "vtab"
    results, interrupted_by = run_tasks(recipe, tasks, (0, 3), out)
    assert interrupted_by is None
    return out, results


def test_every_task_has_a_run_for_each_seed(finished: tuple[Path, list[TaskResult]]) -> None:
    out, results = finished
    assert sorted(str(path.parent.relative_to(out)) for path in out.glob("*/*/summary.json")) == [
        "pets/seed-0",
        "pets/seed-3",
        "photos/seed-0",
        "photos/seed-3",
    ]
    assert [(each.name, each.group, each.num_classes) for each in results] == [
        ("pets", "natural", 4),
        ("photos", "other", 2),
    ]
    for result in results:
        assert (result.num_train_images, result.num_test_images) == (NUM_TRAIN, NUM_TEST)
        assert result.mean == pytest.approx(fmean(result.accuracies))
        assert len(result.accuracies) == 2


def test_a_task_is_the_run_that_it_would_be_alone(
    finished: tuple[Path, list[TaskResult]], recipe: Recipe, tasks: list[FoundTask], tmp_path: Path
) -> None:
    own = with_changes(recipe, data={"source": tasks[1].source, "split": "train800val200"}, augment={"flip": False}, seed=3)
    alone = run_recipe(own, tmp_path / "alone", "alone")
    out, results = finished
    assert are_equal(read_weights(out / "photos" / "seed-3" / "model"), read_weights(tmp_path / "alone" / "model"))
    assert results[1].accuracies[1] == alone.test_top1


def test_finished_tasks_are_only_read(finished: tuple[Path, list[TaskResult]], recipe: Recipe, tasks: list[FoundTask]) -> None:
    out, results = finished
    times = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert run_tasks(recipe, tasks, (0, 3), out) == (results, None)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == times


def test_interrupted_tasks_are_resumed(
    finished: tuple[Path, list[TaskResult]], recipe: Recipe, tasks: list[FoundTask], tmp_path: Path
) -> None:
    run_tasks(recipe, tasks[:1], (0, 3), tmp_path)  # so that the interruption is in the second task
    with pytest.MonkeyPatch.context() as patch:
        interrupt_at(4, signal.SIGINT, patch)
        results, interrupted = run_tasks(recipe, tasks, (0, 3), tmp_path)
    assert [each.name for each in results] == ["pets"]
    assert interrupted is not None
    assert (interrupted.steps, interrupted.interrupted_by) == (4, signal.SIGINT)
    assert not (tmp_path / "photos" / "seed-3").exists()
    resumed, _ = run_tasks(recipe, tasks, (0, 3), tmp_path)
    assert [each.accuracies for each in resumed] == [each.accuracies for each in finished[1]]


def test_signal_in_the_last_step_of_a_task_stops_before_the_next(
    recipe: Recipe, tasks: list[FoundTask], tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        interrupt_at(6, signal.SIGTERM, patch)
        results, interrupted = run_tasks(recipe, tasks, (0,), tmp_path)
    assert [each.name for each in results] == ["pets"]
    assert interrupted is not None
    assert not (tmp_path / "photos").exists()


def test_sweep_chooses_by_validation_accuracy_on_the_benchmark_s_tasks(
    recipe: Recipe, tasks: list[FoundTask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = VtabConfig(
        sweep=True, rates=(10.0, 0.01), lengths=(3, 12)
    )  # with the high one, all predictions are the same class
    summaries: list[tuple[Recipe, RunSummary]] = []

    def run_and_record(trial: Recipe, out: Path, *others: Any) -> RunSummary:
        summaries.append((trial, run_recipe(trial, out, *others)))
        return summaries[-1][1]

    monkeypatch.setattr(runner, "run_recipe", run_and_record)
    sweep = sweep_settings(recipe, config, tasks, tmp_path / "sweep")
    assert list(sweep.accuracies) == [Setting(10.0, 3), Setting(10.0, 12), Setting(0.01, 3), Setting(0.01, 12)]
    assert sweep.best.learning_rate == 0.01
    assert len(summaries) == 4  # only of the first task: the other is not in the benchmark
    for setting, (trial, summary) in zip(sweep.accuracies, summaries, strict=True):
        assert (summary.num_train_images, summary.watched_on, summary.test_top1) == (0.8 * NUM_TRAIN, "val", None)
        assert sweep.accuracies[setting] == (summary.best,)
        assert (trial.data.split, trial.total_steps) == ("train", setting.total_steps)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert sweep_settings(recipe, config, tasks, tmp_path / "sweep") == sweep
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == times


def test_sweep_uses_other_tasks_if_none_is_of_the_benchmark(recipe: Recipe, tasks: list[FoundTask], tmp_path: Path) -> None:
    others = [replace(each, group="other") for each in tasks]
    sweep = sweep_settings(recipe, VtabConfig(sweep=True, rates=(0.01,), lengths=(3,)), others, tmp_path / "sweep")
    assert [len(values) for values in sweep.accuracies.values()] == [2]


def test_sweep_leaves_out_settings_that_diverge(recipe: Recipe, tasks: list[FoundTask], tmp_path: Path) -> None:
    wild = with_changes(recipe, optim={"kind": "sgd", "max_grad_norm": None, "warmup_steps": 0})
    config = VtabConfig(sweep=True, rates=(1e30, 0.01), lengths=(6,))
    with pytest.warns(VitrineWarning, match=r"1e\+30"):
        sweep = sweep_settings(wild, config, tasks[:1], tmp_path / "sweep")
    assert list(sweep.accuracies) == [Setting(0.01, 6)]
    with (
        pytest.warns(VitrineWarning, match="too high"),
        pytest.raises(ValueError, match="rates"),
    ):
        sweep_settings(wild, replace(config, rates=(1e30,)), tasks[:1], tmp_path / "other")


def test_interrupted_sweep_is_resumed(recipe: Recipe, tasks: list[FoundTask], tmp_path: Path) -> None:
    config = VtabConfig(sweep=True, rates=(0.01,), lengths=(6, 7))
    with pytest.MonkeyPatch.context() as patch:
        interrupt_at(7, signal.SIGINT, patch)
        stopped = sweep_settings(recipe, config, tasks[:1], tmp_path / "sweep")
    assert next(iter(stopped.accuracies)) == Setting(0.01, 6)
    assert stopped.interrupted_by is not None
    assert sweep_settings(recipe, config, tasks[:1], tmp_path / "sweep").interrupted_by is None


def test_runs_of_another_protocol_are_not_resumed(
    finished: tuple[Path, list[TaskResult]], recipe: Recipe, tasks: list[FoundTask]
) -> None:
    with pytest.raises(ValueError, match="total_steps"):
        run_tasks(replace(recipe, total_steps=7), tasks[:1], (0,), finished[0])
    assert build_task_recipe(recipe, tasks[0]).augment.flip
