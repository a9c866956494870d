"""Several seeds: each is the run that it would be alone, in a folder of its own."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.run.test_run import are_equal, interrupt_at, make_recipe, measure, read_weights, write_data
from vitrine.core.files import write_json
from vitrine.recipe import Recipe
from vitrine.run.run import run_recipe
from vitrine.run.summary import Summary
from vitrine.studies.seeds import run_seeds

SEEDS = (3, 0)


pytestmark = pytest.mark.usefixtures("short_runs")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    return make_recipe(write_data(tmp_path_factory.mktemp("data") / "shades.npz"))


@pytest.fixture(scope="module")
def finished(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Summary]]:
    out = tmp_path_factory.mktemp("runs") / "new" / "seeds"
    return out, run_seeds(recipe, SEEDS, out, "shades")


def test_each_seed_has_its_run(finished: tuple[Path, list[Summary]], recipe: Recipe) -> None:
    out, summaries = finished
    assert sorted(path.name for path in out.iterdir()) == ["seed-0", "seed-3"]
    assert [summary.seed for summary in summaries] == list(SEEDS)
    for summary in summaries:
        top1, _, _ = measure(out / f"seed-{summary.seed}" / "model", recipe.data.source, "test")
        assert summary.is_finished
        assert summary.test_top1 == top1


def test_a_seed_is_the_run_that_it_would_be_alone(finished: tuple[Path, list[Summary]], recipe: Recipe, tmp_path: Path) -> None:
    alone = run_recipe(replace(recipe, seed=3), tmp_path / "alone", "alone")
    out, summaries = finished
    assert are_equal(read_weights(out / "seed-3" / "model"), read_weights(tmp_path / "alone" / "model"))
    assert replace(summaries[0], device_hours=alone.device_hours) == alone
    assert not are_equal(read_weights(out / "seed-3" / "model"), read_weights(out / "seed-0" / "model"))


def test_finished_ones_are_read_and_not_run_again(finished: tuple[Path, list[Summary]], recipe: Recipe) -> None:
    out, summaries = finished
    times = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert run_seeds(recipe, tuple(reversed(SEEDS)), out, "shades") == list(reversed(summaries))
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == times


def test_an_interruption_ends_the_list_and_can_be_resumed(
    finished: tuple[Path, list[Summary]], recipe: Recipe, tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        interrupt_at(5, signal.SIGTERM, patch)
        (summary,) = run_seeds(recipe, SEEDS, tmp_path / "seeds", "shades")
    assert (summary.is_finished, summary.steps, summary.interrupted_by) == (False, 5, signal.SIGTERM)
    assert not (tmp_path / "seeds" / "seed-0").exists()
    (resumed,) = run_seeds(recipe, SEEDS[:1], tmp_path / "seeds", "shades")
    out, summaries = finished
    assert replace(resumed, device_hours=0) == replace(summaries[0], device_hours=0)
    assert are_equal(read_weights(tmp_path / "seeds" / "seed-3" / "model"), read_weights(out / "seed-3" / "model"))


def test_a_seed_twice_is_refused_before_anything_is_trained(recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"seeds=\(1, 2, 1\) has one of them twice"):
        run_seeds(recipe, (1, 2, 1), tmp_path / "seeds", "shades")
    assert list(tmp_path.iterdir()) == []


def test_two_processes_make_all_the_runs(recipe: Recipe, tmp_path: Path) -> None:
    """They can meet once only: the second run must not try again."""
    write_json(tmp_path / "recipe.json", replace(recipe, total_steps=3).to_json())
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = ["-m", "vitrine", "train", "recipe.json", "--out", "runs", "--seeds", "0", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*launcher, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "over 2 seeds" in done.stdout
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"seed-0", "seed-1"}
