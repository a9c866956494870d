"""The suite: each task is the run that it would be alone, a second call goes on, and the sweep never sees a test image."""

import signal
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from tests.run.test_run import are_equal, interrupt_at, make_recipe, read_weights
from vitrine.core.console import VitrineWarning
from vitrine.data.sources.vtab import VtabTask
from vitrine.recipe import Recipe, with_changes
from vitrine.run.folder import RunSummary
from vitrine.run.run import run_recipe
from vitrine.studies.vtab.benchmark import Suite, Sweep, benchmark, run_suite, sweep_settings
from vitrine.studies.vtab.config import VtabConfig
from vitrine.studies.vtab.protocol import FoundTask, Setting, build_task_recipe

pytestmark = pytest.mark.usefixtures("short_runs")

NUM_TRAIN, NUM_TEST = 60, 20  # 48 to train on and 12 for validation, by the task's share


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> list[FoundTask]:
    """Shades to tell apart, in four classes and in two; the first counts as one of the benchmark's."""
    folder = tmp_path_factory.mktemp("tasks")
    found: list[FoundTask] = []
    for name, num_classes in (("pets", 4), ("photos", 2)):
        arrays: dict[str, np.ndarray] = {}
        for place, (split, count) in enumerate((("train", NUM_TRAIN), ("test", NUM_TEST))):
            labels = np.arange(count) % num_classes
            noise = np.random.default_rng(place).integers(0, 90, (count, 8, 8))
            arrays |= {f"x_{split}": (noise + 55 * labels[:, None, None]).astype(np.uint8), f"y_{split}": labels}
        np.savez(folder / f"{name}.npz", allow_pickle=False, **arrays)
        task = VtabTask(name=name, group="natural" if name == "pets" else "other", flip=name == "pets")
        found.append(FoundTask(task, task.group, f"vtab:{name}:{folder / name}.npz", num_classes, NUM_TRAIN, NUM_TEST))
    return found


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return make_recipe("tasks", evaluation={"num_times": 0}, total_steps=6, augment={"flip": True})


@pytest.fixture(scope="module")
def finished(recipe: Recipe, tasks: list[FoundTask], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Suite]:
    out = tmp_path_factory.mktemp("runs") / "new" / "vtab"
    return out, run_suite(recipe, tasks, (0, 3), out)


def test_every_task_has_a_run_for_each_seed(finished: tuple[Path, Suite]) -> None:
    out, suite = finished
    assert suite.interrupted_by is None
    assert sorted(str(path.parent.relative_to(out)) for path in out.glob("*/*/summary.json")) == [
        "pets/seed-0",
        "pets/seed-3",
        "photos/seed-0",
        "photos/seed-3",
    ]
    assert [(each.name, each.group, each.num_classes) for each in suite.results] == [
        ("pets", "natural", 4),
        ("photos", "other", 2),
    ]
    for result in suite.results:
        assert (result.num_train_images, result.num_test_images) == (NUM_TRAIN, NUM_TEST)
        assert result.mean == pytest.approx(fmean(result.accuracies))
        assert len(result.accuracies) == 2


def test_a_task_is_the_run_that_it_would_be_alone(
    finished: tuple[Path, Suite], recipe: Recipe, tasks: list[FoundTask], tmp_path: Path
) -> None:
    own = with_changes(recipe, data={"source": tasks[1].source, "split": "train800val200"}, augment={"flip": False}, seed=3)
    alone = run_recipe(own, tmp_path / "alone", "alone")
    out, suite = finished
    assert are_equal(read_weights(out / "photos" / "seed-3" / "model"), read_weights(tmp_path / "alone" / "model"))
    assert suite.results[1].accuracies[1] == alone.test_top1


def test_what_is_finished_is_read(finished: tuple[Path, Suite], recipe: Recipe, tasks: list[FoundTask]) -> None:
    out, suite = finished
    times = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert run_suite(recipe, tasks, (0, 3), out) == suite
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == times


def test_an_interruption_keeps_what_is_done_and_goes_on(
    finished: tuple[Path, Suite], recipe: Recipe, tasks: list[FoundTask], tmp_path: Path
) -> None:
    run_suite(recipe, tasks[:1], (0, 3), tmp_path)  # so that the interruption is in the second task
    with pytest.MonkeyPatch.context() as patch:
        interrupt_at(4, signal.SIGINT, patch)
        stopped = run_suite(recipe, tasks, (0, 3), tmp_path)
    assert [each.name for each in stopped.results] == ["pets"]
    assert stopped.interrupted_by is not None
    assert (stopped.interrupted_by.steps, stopped.interrupted_by.interrupted_by) == (4, signal.SIGINT)
    assert not (tmp_path / "photos" / "seed-3").exists()
    again, whole = run_suite(recipe, tasks, (0, 3), tmp_path), finished[1]
    assert [each.accuracies for each in again.results] == [each.accuracies for each in whole.results]


def test_a_signal_with_the_last_step_of_a_task_ends_there(recipe: Recipe, tasks: list[FoundTask], tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        interrupt_at(6, signal.SIGTERM, patch)
        stopped = run_suite(recipe, tasks, (0,), tmp_path)
    assert [each.name for each in stopped.results] == ["pets"]
    assert stopped.interrupted_by is not None
    assert not (tmp_path / "photos").exists()


def test_the_sweep_chooses_by_val_and_by_the_benchmark_s_tasks(
    recipe: Recipe, tasks: list[FoundTask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = VtabConfig(sweep=True, rates=(10.0, 0.01), lengths=(3, 12))  # the high one ends with one answer to all images
    summaries: list[tuple[Recipe, RunSummary]] = []

    def run_and_note(trial: Recipe, out: Path, title: str) -> RunSummary:
        summaries.append((trial, run_recipe(trial, out, title)))
        return summaries[-1][1]

    monkeypatch.setattr(benchmark, "run_recipe", run_and_note)
    sweep = sweep_settings(recipe, config, tasks, tmp_path / "sweep")
    assert list(sweep.accuracies) == [Setting(10.0, 3), Setting(10.0, 12), Setting(0.01, 3), Setting(0.01, 12)]
    assert sweep.best.learning_rate == 0.01
    assert len(summaries) == 4  # of the first task alone: the other is none of the benchmark's
    for setting, (trial, summary) in zip(sweep.accuracies, summaries, strict=True):
        assert (summary.num_train_images, summary.watched_on, summary.test_top1) == (0.8 * NUM_TRAIN, "val", None)
        assert sweep.accuracies[setting] == (summary.best,)
        assert (trial.data.split, trial.total_steps) == ("train", setting.total_steps)
    assert run_again_is_read(recipe, config, tasks, tmp_path / "sweep", sweep)


def run_again_is_read(recipe: Recipe, config: VtabConfig, tasks: list[FoundTask], out: Path, sweep: Sweep) -> bool:
    times = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    is_same = sweep_settings(recipe, config, tasks, out) == sweep
    return is_same and times == {path: path.stat().st_mtime_ns for path in out.rglob("*")}


def test_without_one_of_the_benchmark_all_tasks_choose(recipe: Recipe, tasks: list[FoundTask], tmp_path: Path) -> None:
    others = [replace(each, group="other") for each in tasks]
    sweep = sweep_settings(recipe, VtabConfig(sweep=True, rates=(0.01,), lengths=(3,)), others, tmp_path / "sweep")
    assert [len(found) for found in sweep.accuracies.values()] == [2]


def test_a_setting_that_diverges_is_out(recipe: Recipe, tasks: list[FoundTask], tmp_path: Path) -> None:
    wild = with_changes(recipe, optim={"kind": "sgd", "max_grad_norm": None, "warmup_steps": 0})
    config = VtabConfig(sweep=True, rates=(1e30, 0.01), lengths=(6,))
    with pytest.warns(VitrineWarning, match=r"The rate 1e\+30 is out of the question"):
        sweep = sweep_settings(wild, config, tasks[:1], tmp_path / "sweep")
    assert list(sweep.accuracies) == [Setting(0.01, 6)]
    with (
        pytest.warns(VitrineWarning, match="is out of the question"),
        pytest.raises(ValueError, match=r"Every rate of the sweep is too high: give lower ones by --rates"),
    ):
        sweep_settings(wild, replace(config, rates=(1e30,)), tasks[:1], tmp_path / "other")


def test_a_sweep_can_be_interrupted(recipe: Recipe, tasks: list[FoundTask], tmp_path: Path) -> None:
    config = VtabConfig(sweep=True, rates=(0.01,), lengths=(6, 7))
    with pytest.MonkeyPatch.context() as patch:
        interrupt_at(7, signal.SIGINT, patch)
        stopped = sweep_settings(recipe, config, tasks[:1], tmp_path / "sweep")
    assert next(iter(stopped.accuracies)) == Setting(0.01, 6)
    assert stopped.interrupted_by is not None
    assert sweep_settings(recipe, config, tasks[:1], tmp_path / "sweep").interrupted_by is None


def test_recipes_of_tasks_are_checked_by_the_runs_themselves(recipe: Recipe, tasks: list[FoundTask], tmp_path: Path) -> None:
    """A folder of another protocol is not taken for this one's."""
    run_suite(recipe, tasks[:1], (0,), tmp_path)
    with pytest.raises(ValueError, match="total_steps was 6 and is 7"):
        run_suite(replace(recipe, total_steps=7), tasks[:1], (0,), tmp_path)
    assert build_task_recipe(recipe, tasks[0]).augment.flip
