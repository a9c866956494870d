"""Tests of studies/sweeps.py.

The choice of a learning rate: by held-out images alone, and never by those of the test.
Several seeds: each is the run that it would be alone, in a folder of its own.
"""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.run.test_run import COUNTS, are_equal, interrupt_at, make_recipe, measure, read_weights, write_data
from vitrine.core.console import VitrineWarning
from vitrine.core.files import write_json
from vitrine.recipe import Recipe, with_changes
from vitrine.run.folder import RunFolder, RunSummary
from vitrine.run.run import run_recipe
from vitrine.studies.sweeps import RateChoice, run_seeds, search_learning_rate
from vitrine.training.metrics_log import read_records

RATES = (3.0, 0.01, 10.0)  # the high ones end with the same answer to all images


pytestmark = pytest.mark.usefixtures("short_runs")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    source = write_data(tmp_path_factory.mktemp("data") / "shades.npz")
    return make_recipe(source, evaluation={"num_times": 3, "patience": 1, "batch_size": 10})


@pytest.fixture(scope="module")
def chosen(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RateChoice]:
    out = tmp_path_factory.mktemp("runs") / "new" / "rates"
    return out, search_learning_rate(recipe, RATES, 0.2, out, "shades")


def test_the_rate_that_learns_is_chosen(chosen: tuple[Path, RateChoice]) -> None:
    out, choice = chosen
    assert choice.interrupted_by is None
    assert choice.best == 0.01
    assert list(choice.summaries) == list(RATES)
    assert [summary.learning_rate for summary in choice.summaries.values()] == list(RATES)
    assert sorted(path.name for path in out.iterdir()) == ["rate-0.01", "rate-10", "rate-3"]


def test_it_is_chosen_on_images_kept_out_of_train(chosen: tuple[Path, RateChoice]) -> None:
    """Not on those for validation either, though this data has them: the paper chooses on a part of train."""
    for summary in chosen[1].summaries.values():
        assert summary.num_train_images == round(0.8 * COUNTS["train"])
        assert summary.watched_on == "held_out"
        assert summary.best is not None


def test_it_is_evaluated_once_at_the_end(chosen: tuple[Path, RateChoice]) -> None:
    out, choice = chosen
    for summary in choice.summaries.values():
        records = read_records(out / f"rate-{summary.learning_rate:g}" / "metrics.jsonl")
        (found,) = [record for record in records if "held_out_top1" in record]
        assert (found["step"], found["held_out_top1"]) == (summary.total_steps, summary.best)
        assert summary.stopped_early is False


def test_the_test_images_are_not_looked_at(chosen: tuple[Path, RateChoice]) -> None:
    out, choice = chosen
    for summary in choice.summaries.values():
        assert (summary.test_top1, summary.test_loss, summary.num_test_images) == (None, None, None)
    assert not [record for record in read_records(out / "rate-0.01" / "metrics.jsonl") if "test_top1" in record]


def test_a_share_in_the_recipe_is_kept(recipe: Recipe, tmp_path: Path) -> None:
    held_out = with_changes(recipe, data={"held_out": 0.4}, total_steps=3)
    choice = search_learning_rate(held_out, (0.01, 0.02), 0.2, tmp_path / "rates", "shades")
    assert {summary.num_train_images for summary in choice.summaries.values()} == {round(0.6 * COUNTS["train"])}
    assert RunFolder(tmp_path / "rates" / "rate-0.01").read_recipe().data.held_out == 0.4


def test_of_rates_alike_the_lowest_is_taken(chosen: tuple[Path, RateChoice]) -> None:
    some = chosen[1].summaries[RATES[0]]

    def choose(accuracies: dict[float, float]) -> float:
        return RateChoice({rate: replace(some, best=accuracy) for rate, accuracy in accuracies.items()}, True).best

    assert choose({0.1: 0.5, 0.01: 0.5, 0.03: 0.5}) == 0.01
    assert choose({0.1: 0.6, 0.01: 0.5, 0.03: 0.6}) == 0.03
    assert choose({0.1: 0.0, 0.01: 0.0}) == 0.01


def test_finished_trials_are_read_and_not_run_again(chosen: tuple[Path, RateChoice], recipe: Recipe) -> None:
    out, choice = chosen
    times = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert search_learning_rate(recipe, RATES, 0.2, out, "shades") == choice
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == times


def test_an_interruption_ends_it_without_a_choice(recipe: Recipe, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        interrupt_at(2, signal.SIGTERM, patch)
        choice = search_learning_rate(recipe, RATES, 0.2, tmp_path / "rates", "shades")
    assert (choice.interrupted_by, choice.summaries) == (signal.SIGTERM, {})
    assert [path.name for path in (tmp_path / "rates").iterdir()] == ["rate-3"]


@pytest.mark.parametrize(("rates", "number"), [((), "no rates"), ((0.1,), "one rate")])
def test_there_has_to_be_a_choice(rates: tuple[float, ...], number: str, recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"has {number} to choose from: leave --select-rate out"):
        search_learning_rate(recipe, rates, 0.2, tmp_path / "rates", "shades")
    assert list(tmp_path.iterdir()) == []


def test_without_images_to_choose_on_there_is_no_choice(recipe: Recipe, tmp_path: Path) -> None:
    """As with rules that have one rate and hold nothing out, if rates are given to them and the data has no val."""
    arrays = np.load(recipe.data.source)
    np.savez(tmp_path / "train.npz", allow_pickle=False, **{name: arrays[name] for name in ("x_train", "y_train")})
    undivided = with_changes(recipe, data={"source": str(tmp_path / "train.npz")}, total_steps=3)
    with pytest.raises(ValueError, match="held_out"):
        search_learning_rate(undivided, (0.01, 0.02), 0.0, tmp_path / "rates", "shades")


@pytest.mark.parametrize("rates", [(0.01, -0.5), (0.01, float("nan")), (0.01, 0.01)])
def test_wrong_rates_are_refused_before_anything_is_trained(rates: tuple[float, ...], recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rate"):
        search_learning_rate(recipe, rates, 0.2, tmp_path / "rates", "shades")
    assert not (tmp_path / "rates" / "rate-0.01" / "summary.json").exists()


def test_a_rate_that_is_too_high_to_train_with_is_not_the_end(recipe: Recipe, tmp_path: Path) -> None:
    """A grid is there to find out which rates are: the others are still tried, and one of them chosen."""
    wild = with_changes(recipe, optim={"max_grad_norm": None, "warmup_steps": 0}, total_steps=4)
    with pytest.warns(VitrineWarning, match="The rate 1e\\+30 is out of the question: .*not finite at step 2"):
        choice = search_learning_rate(wild, (1e30, 1e-3, 2e-3), 0.2, tmp_path / "rates", "shades")
    assert choice.best in (1e-3, 2e-3)


def test_if_all_are_too_high_that_is_said(recipe: Recipe, tmp_path: Path) -> None:
    wild = with_changes(recipe, optim={"max_grad_norm": None, "warmup_steps": 0}, total_steps=4)
    with (
        pytest.warns(VitrineWarning, match="out of the question"),
        pytest.raises(ValueError, match=r"Every rate of 1e\+30, 1e\+31 is too high: give lower ones by --rates\."),
    ):
        search_learning_rate(wild, (1e30, 1e31), 0.2, tmp_path / "rates", "shades")


SEEDS = (3, 0)


pytestmark_seeds = pytest.mark.usefixtures("short_runs")


@pytest.fixture(scope="module")
def recipe_seeds(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    return make_recipe(write_data(tmp_path_factory.mktemp("data") / "shades.npz"))


@pytest.fixture(scope="module")
def finished(recipe_seeds: Recipe, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[RunSummary]]:
    out = tmp_path_factory.mktemp("runs") / "new" / "seeds"
    return out, run_seeds(recipe_seeds, SEEDS, out, "shades")


def test_each_seed_has_its_run(finished: tuple[Path, list[RunSummary]], recipe_seeds: Recipe) -> None:
    out, summaries = finished
    assert sorted(path.name for path in out.iterdir()) == ["seed-0", "seed-3"]
    assert [summary.seed for summary in summaries] == list(SEEDS)
    for summary in summaries:
        top1, _, _ = measure(out / f"seed-{summary.seed}" / "model", recipe_seeds.data.source, "test")
        assert summary.is_finished
        assert summary.test_top1 == top1


def test_a_seed_is_the_run_that_it_would_be_alone(
    finished: tuple[Path, list[RunSummary]], recipe_seeds: Recipe, tmp_path: Path
) -> None:
    alone = run_recipe(replace(recipe_seeds, seed=3), tmp_path / "alone", "alone")
    out, summaries = finished
    assert are_equal(read_weights(out / "seed-3" / "model"), read_weights(tmp_path / "alone" / "model"))
    assert replace(summaries[0], device_hours=alone.device_hours) == alone
    assert not are_equal(read_weights(out / "seed-3" / "model"), read_weights(out / "seed-0" / "model"))


def test_finished_ones_are_read_and_not_run_again(finished: tuple[Path, list[RunSummary]], recipe_seeds: Recipe) -> None:
    out, summaries = finished
    times = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert run_seeds(recipe_seeds, tuple(reversed(SEEDS)), out, "shades") == list(reversed(summaries))
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == times


def test_an_interruption_ends_the_list_and_can_be_resumed(
    finished: tuple[Path, list[RunSummary]], recipe_seeds: Recipe, tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        interrupt_at(5, signal.SIGTERM, patch)
        (summary,) = run_seeds(recipe_seeds, SEEDS, tmp_path / "seeds", "shades")
    assert (summary.is_finished, summary.steps, summary.interrupted_by) == (False, 5, signal.SIGTERM)
    assert not (tmp_path / "seeds" / "seed-0").exists()
    (resumed,) = run_seeds(recipe_seeds, SEEDS[:1], tmp_path / "seeds", "shades")
    out, summaries = finished
    assert replace(resumed, device_hours=0) == replace(summaries[0], device_hours=0)
    assert are_equal(read_weights(tmp_path / "seeds" / "seed-3" / "model"), read_weights(out / "seed-3" / "model"))


def test_a_seed_twice_is_refused_before_anything_is_trained(recipe_seeds: Recipe, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"seeds=\(1, 2, 1\) has one of them twice"):
        run_seeds(recipe_seeds, (1, 2, 1), tmp_path / "seeds", "shades")
    assert list(tmp_path.iterdir()) == []


def test_two_processes_make_all_the_runs(recipe_seeds: Recipe, tmp_path: Path) -> None:
    """They can meet once only: the second run must not try again."""
    write_json(tmp_path / "recipe.json", replace(recipe_seeds, total_steps=3).to_json())
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = ["-m", "vitrine", "train", "recipe.json", "--out", "runs", "--seeds", "0", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*launcher, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "over 2 seeds" in done.stdout
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"seed-0", "seed-1"}
