"""What `scaling` has measured of a family: compute and right answers of all its models, seed by seed.

Shapes: N test images, S seeds, M models of a family.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from vitrine.run.folder import RunSummary
from vitrine.studies.answers import unpack_hits
from vitrine.studies.claims import compute_logit
from vitrine.studies.frontier import Frontier, fit_frontier
from vitrine.studies.runner import RunOutcome
from vitrine.studies.scaling_grid import Family
from vitrine.studies.study import StudyPlan


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A way to measure what a run costs."""

    name: str
    """E.g. training compute."""
    unit: str
    """E.g. exaFLOPs."""
    pick: Callable[[RunSummary], float]


COMPUTE = Measure(name="training compute", unit="exaFLOPs", pick=lambda summary: summary.exaflops)
TIME = Measure(name="time", unit="seconds", pick=lambda summary: 3600 * summary.device_hours)


@dataclass(frozen=True, kw_only=True)
class FamilyRuns:
    """The runs of all models of a family with some seeds."""

    cost: np.ndarray
    """Compute or time, (S, M)."""
    hits: np.ndarray
    """Right answers: True where a run classifies a test image correctly, bool (N, S, M)."""

    @property
    def num_images(self) -> int:
        return len(self.hits)

    @property
    def logits(self) -> np.ndarray:
        """Logits of the accuracies, (S, M)."""
        return compute_logits(self.hits.mean(axis=0), self.num_images)

    def select(self, is_kept: np.ndarray) -> "FamilyRuns":
        """Return the runs with some of the seeds, bool (S)."""
        return FamilyRuns(cost=self.cost[is_kept], hits=self.hits[:, is_kept])

    def fit(self) -> Frontier:
        """Fit the frontier of each seed (S)."""
        return fit_frontier(self.cost, self.logits)

    def fit_draws(self, draws: np.ndarray) -> Frontier:
        """Fit the frontiers (D, S) of test images that were drawn, of which `draws` has the counts (N, D)."""
        num_hits = draws.T.astype(np.float64) @ self.hits.reshape(self.num_images, -1)  # (D, S * M)
        accuracies = num_hits.reshape(-1, *self.cost.shape) / self.num_images  # (D, S, M)
        return fit_frontier(self.cost, compute_logits(accuracies, self.num_images))


def compute_logits(accuracies: np.ndarray, num_images: int) -> np.ndarray:
    """Return the logits of accuracies on the same number of images."""
    return np.vectorize(compute_logit, otypes=[float])(accuracies, num_images)


def list_whole_seeds(plan: StudyPlan, outcomes: Sequence[RunOutcome], families: Iterable[Family]) -> list[int]:
    """Return the seeds with which every model of some families is finished."""
    wanted = {run.columns["model"] for run in plan.runs if run.columns["family"] in families}
    found = {(each.run.columns["model"], each.run.columns["seed"]) for each in outcomes if each.is_measured}
    seeds = sorted({seed for _, seed in found})
    return [seed for seed in seeds if wanted and all((model, seed) in found for model in wanted)]


def collect_family(outcomes: Sequence[RunOutcome], family: Family, seeds: Sequence[int], measure: Measure) -> FamilyRuns:
    """Return all runs of a family with some seeds, with which every model of it is finished."""
    table = {
        (each.run.columns["model"], each.run.columns["seed"]): each
        for each in outcomes
        if each.run.columns["family"] == family and each.is_measured
    }
    models = [*dict.fromkeys(model for model, _ in table)]
    rows = [[table[model, seed] for model in models] for seed in seeds]
    return FamilyRuns(
        cost=np.array([[read_cost(each, measure) for each in row] for row in rows]),
        hits=np.stack([np.stack([read_hits(each) for each in row], axis=1) for row in rows], axis=1),
    )


def read_cost(outcome: RunOutcome, measure: Measure) -> float:
    """Return what a finished run cost."""
    assert outcome.summary is not None
    return measure.pick(outcome.summary)


def read_hits(outcome: RunOutcome) -> np.ndarray:
    """Return which test images a finished run classifies correctly, bool (N)."""
    assert outcome.reading is not None
    return unpack_hits(outcome.reading)
