"""The choice of a learning rate: by held-out images alone, and never by those of the test."""

import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.run.test_run import COUNTS, interrupt_at, make_recipe, write_data
from vitrine.core.notices import Notice
from vitrine.recipe import Recipe, with_changes
from vitrine.run.folder import RunFolder
from vitrine.studies.rates import RateChoice, select_rate
from vitrine.train.metrics_file import read_records

RATES = (3.0, 0.01, 10.0)  # the high ones end with the same answer to all images


pytestmark = pytest.mark.usefixtures("short_runs")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    source = write_data(tmp_path_factory.mktemp("data") / "shades.npz")
    return make_recipe(source, evaluation={"num_times": 3, "patience": 1, "batch_size": 10})


@pytest.fixture(scope="module")
def chosen(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RateChoice]:
    out = tmp_path_factory.mktemp("runs") / "new" / "rates"
    return out, select_rate(recipe, RATES, 0.2, out, "shades")


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
    choice = select_rate(held_out, (0.01, 0.02), 0.2, tmp_path / "rates", "shades")
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
    assert select_rate(recipe, RATES, 0.2, out, "shades") == choice
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == times


def test_an_interruption_ends_it_without_a_choice(recipe: Recipe, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        interrupt_at(2, signal.SIGTERM, patch)
        choice = select_rate(recipe, RATES, 0.2, tmp_path / "rates", "shades")
    assert (choice.interrupted_by, choice.summaries) == (signal.SIGTERM, {})
    assert [path.name for path in (tmp_path / "rates").iterdir()] == ["rate-3"]


@pytest.mark.parametrize(("rates", "number"), [((), "no rates"), ((0.1,), "one rate")])
def test_there_has_to_be_a_choice(rates: tuple[float, ...], number: str, recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"has {number} to choose from: leave --select-rate out"):
        select_rate(recipe, rates, 0.2, tmp_path / "rates", "shades")
    assert list(tmp_path.iterdir()) == []


def test_without_images_to_choose_on_there_is_no_choice(recipe: Recipe, tmp_path: Path) -> None:
    """As with rules that have one rate and hold nothing out, if rates are given to them and the data has no val."""
    arrays = np.load(recipe.data.source)
    np.savez(tmp_path / "train.npz", allow_pickle=False, **{name: arrays[name] for name in ("x_train", "y_train")})
    undivided = with_changes(recipe, data={"source": str(tmp_path / "train.npz")}, total_steps=3)
    with pytest.raises(ValueError, match="held_out"):
        select_rate(undivided, (0.01, 0.02), 0.0, tmp_path / "rates", "shades")


@pytest.mark.parametrize("rates", [(0.01, -0.5), (0.01, float("nan")), (0.01, 0.01)])
def test_wrong_rates_are_refused_before_anything_is_trained(rates: tuple[float, ...], recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rate"):
        select_rate(recipe, rates, 0.2, tmp_path / "rates", "shades")
    assert not (tmp_path / "rates" / "rate-0.01" / "summary.json").exists()


def test_a_rate_that_is_too_high_to_train_with_is_not_the_end(recipe: Recipe, tmp_path: Path) -> None:
    """A grid is there to find out which rates are: the others are still tried, and one of them chosen."""
    wild = with_changes(recipe, optim={"max_grad_norm": None, "warmup_steps": 0}, total_steps=4)
    with pytest.warns(Notice, match="The rate 1e\\+30 is out of the question: .*not finite at step 2"):
        choice = select_rate(wild, (1e30, 1e-3, 2e-3), 0.2, tmp_path / "rates", "shades")
    assert choice.best in (1e-3, 2e-3)


def test_if_all_are_too_high_that_is_said(recipe: Recipe, tmp_path: Path) -> None:
    wild = with_changes(recipe, optim={"max_grad_norm": None, "warmup_steps": 0}, total_steps=4)
    with (
        pytest.warns(Notice, match="out of the question"),
        pytest.raises(ValueError, match=r"Every rate of 1e\+30, 1e\+31 is too high: give lower ones by --rates\."),
    ):
        select_rate(wild, (1e30, 1e31), 0.2, tmp_path / "rates", "shades")
