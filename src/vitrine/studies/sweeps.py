"""Seeds and learning-rate search.

The paper's choice of a learning rate: a grid, tried on a held-out part of train (appendix B.1.1 of arXiv:2010.11929).

The test images are not looked at here; what is chosen is then trained on all of train.
The same recipe with several seeds: the mean and the spread of what it reaches (table 2 of arXiv:2010.11929 has three).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vitrine.core.console import join_names, summarise, warn_user
from vitrine.core.files import make_folder
from vitrine.core.runtime import start_runtime
from vitrine.recipe import Recipe, with_changes
from vitrine.run.folder import RunSummary
from vitrine.run.run import Diverged, run_recipe


@dataclass(frozen=True)
class RateChoice:
    summaries: dict[float, RunSummary]
    """By rate, without those that diverged; fewer than were to be tried, if it was interrupted."""
    interrupted_by: int | None = None
    """The signal."""

    @property
    def best(self) -> float:
        """The rate of the highest held-out accuracy; of several alike, the lowest."""
        return max(sorted(self.summaries), key=lambda rate: self.summaries[rate].best or 0.0)


def search_learning_rate(recipe: Recipe, rates: Sequence[float], held_out: float, out: Path, title: str) -> RateChoice:
    """Train with each rate on what is left of train, and measure on what is held out, once, at the end."""
    trials = build_trials(recipe, rates, recipe.data.held_out or held_out)
    make_folder(out)
    summaries: dict[float, RunSummary] = {}
    with start_runtime(recipe.device):
        for rate, trial in trials.items():
            try:
                summary = run_recipe(trial, out / f"rate-{rate:g}", f"{title}, rate {rate:g}")
            except Diverged as error:
                warn_user(f"The rate {rate:g} is out of the question: {summarise(error)}.")
                continue
            if summary.is_finished:
                summaries[rate] = summary
            if summary.interrupted_by is not None:
                return RateChoice(summaries, summary.interrupted_by)
    if not summaries:
        raise ValueError(
            f"Every rate of {join_names([f'{rate:g}' for rate in rates])} is too high: give lower ones by --rates."
        )
    return RateChoice(summaries)


def build_trials(recipe: Recipe, rates: Sequence[float], held_out: float) -> dict[float, Recipe]:
    """All of them, so that a mistake in one is found before the first is run."""
    if len(rates) < 2:
        raise ValueError(f"This recipe has {'no rates' if not rates else 'one rate'} to choose from: leave --select-rate out.")
    if len({f"{rate:g}" for rate in rates}) != len(rates):
        raise ValueError(f"rates={tuple(rates)} has one of them twice, or two that are nearly the same: give each once.")
    if held_out == 0:
        raise ValueError("data.held_out=0 leaves no images to choose a rate on: give a share, as --data.held-out 0.1.")
    evaluation = {"num_times": 1, "test": False, "patience": None}
    return {
        rate: with_changes(recipe, optim={"learning_rate": rate}, data={"held_out": held_out}, evaluation=evaluation)
        for rate in rates
    }


def run_seeds(recipe: Recipe, seeds: Sequence[int], out: Path, title: str) -> list[RunSummary]:
    """Each in a folder of its own, those that are finished already only read; an interruption ends the list."""
    require_distinct(seeds)
    make_folder(out)
    summaries: list[RunSummary] = []
    with start_runtime(recipe.device):
        for seed in seeds:
            summaries.append(run_recipe(replace(recipe, seed=seed), out / f"seed-{seed}", f"{title}, seed {seed}"))
            if summaries[-1].interrupted_by is not None:
                break
    return summaries


def require_distinct(seeds: Sequence[int]) -> None:
    if len(set(seeds)) != len(seeds):
        raise ValueError(f"seeds={tuple(seeds)} has one of them twice: each can count once only.")
