"""The paper's choice of a learning rate: a grid, tried on a held-out part of train (appendix B.1.1 of arXiv:2010.11929).

The test images are not looked at here; what is chosen is then trained on all of train.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitrine.core.files import make_folder
from vitrine.core.notices import notice
from vitrine.core.runtime import start_runtime
from vitrine.core.sentences import list_names, summarise
from vitrine.recipe import Recipe, with_changes
from vitrine.run.run import Diverged, run_recipe
from vitrine.run.summary import Summary


@dataclass(frozen=True)
class RateChoice:
    summaries: dict[float, Summary]
    """By rate, without those that diverged; fewer than were to be tried, if it was interrupted."""
    interrupted_by: int | None = None
    """The signal."""

    @property
    def best(self) -> float:
        """The rate of the highest held-out accuracy; of several alike, the lowest."""
        return max(sorted(self.summaries), key=lambda rate: self.summaries[rate].best or 0.0)


def select_rate(recipe: Recipe, rates: Sequence[float], held_out: float, out: Path, title: str) -> RateChoice:
    """Train with each rate on what is left of train, and measure on what is held out, once, at the end."""
    trials = build_trials(recipe, rates, recipe.data.held_out or held_out)
    make_folder(out)
    summaries: dict[float, Summary] = {}
    with start_runtime(recipe.device):
        for rate, trial in trials.items():
            try:
                summary = run_recipe(trial, out / f"rate-{rate:g}", f"{title}, rate {rate:g}")
            except Diverged as error:
                notice(f"The rate {rate:g} is out of the question: {summarise(error)}.")
                continue
            if summary.is_finished:
                summaries[rate] = summary
            if summary.interrupted_by is not None:
                return RateChoice(summaries, summary.interrupted_by)
    if not summaries:
        raise ValueError(
            f"Every rate of {list_names([f'{rate:g}' for rate in rates])} is too high: give lower ones by --rates."
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
