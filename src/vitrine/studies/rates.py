"""The paper's choice of a learning rate: a grid, tried on a held-out part of train (appendix B.1.1 of arXiv:2010.11929).

The test images are not looked at here; what is chosen is then trained on all of train.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitrine.recipe import Recipe, with_changes
from vitrine.run.run import run_recipe
from vitrine.run.summary import Summary


@dataclass(frozen=True)
class RateChoice:
    summaries: dict[float, Summary]
    """By rate; fewer than were to be tried, if it was interrupted."""
    is_finished: bool

    @property
    def best(self) -> float:
        """The rate of the highest held-out accuracy; of several alike, the lowest."""
        return max(sorted(self.summaries), key=lambda rate: self.summaries[rate].best or 0.0)


def select_rate(recipe: Recipe, rates: Sequence[float], held_out: float, out: Path, title: str) -> RateChoice:
    """Train with each rate on what is left of train, and measure on what is held out, once, at the end."""
    if len(rates) < 2:
        raise ValueError(f"This recipe has {'no rates' if not rates else 'one rate'} to choose from: leave --select-rate out.")
    out.mkdir(parents=True, exist_ok=True)
    summaries: dict[float, Summary] = {}
    for rate in rates:
        trial = with_changes(
            recipe,
            optim={"learning_rate": rate},
            data={"held_out": recipe.data.held_out or held_out},
            evaluation={"num_times": 1, "test": False, "patience": None},
        )
        summary = run_recipe(trial, out / f"rate-{rate:g}", f"{title}, rate {rate:g}")
        if not summary.is_finished:
            return RateChoice(summaries, False)
        summaries[rate] = summary
    return RateChoice(summaries, True)
