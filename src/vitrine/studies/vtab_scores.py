"""The score of VTAB: the plain mean over tasks, not over groups, as table 9 of arXiv:2010.11929 has it."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from vitrine.data.vtab_tasks import GROUPS, TASKS, Group
from vitrine.evaluate.uncertainty import compute_spread, estimate_share

OVERALL = "VTAB"


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    name: str
    group: Group
    source: str
    num_classes: int
    num_train_images: int
    num_test_images: int
    accuracies: tuple[float, ...]
    """Top-1 on the test images, for each seed."""
    mean: float
    std: float | None
    """Over seeds; None for a single one."""
    low: float | None
    """Where 95 of 100 test sets of that size would lie."""
    high: float | None


@dataclass(frozen=True, kw_only=True)
class Score:
    """The mean of some tasks."""

    name: str
    num_tasks: int
    num_all: int | None
    """How many the benchmark has; None for what is none of its groups."""
    mean: float
    std: float | None
    """Of the means of each seed; None for a single one. Nothing is made up in its place."""

    @property
    def is_complete(self) -> bool:
        return self.num_tasks == self.num_all


def build_result(
    *,
    name: str,
    group: Group,
    accuracies: Sequence[float],
    num_test_images: int,
    source: str = "",
    num_classes: int = 0,
    num_train_images: int = 0,
) -> TaskResult:
    spread = compute_spread(accuracies)
    interval = estimate_share(spread.mean, num_test_images)
    return TaskResult(
        name=name,
        group=group,
        source=source,
        num_classes=num_classes,
        num_train_images=num_train_images,
        num_test_images=num_test_images,
        accuracies=tuple(accuracies),
        mean=spread.mean,
        std=spread.std,
        low=interval.low,
        high=interval.high,
    )


def compute_scores(results: Sequence[TaskResult]) -> list[Score]:
    """Of each group of the benchmark, of all its tasks together, and of other groups; without those that have no task."""
    sizes: dict[str, int | None] = {group: sum(task.group == group for task in TASKS.values()) for group in GROUPS}
    parts = {group: [each for each in results if each.group == group] for group in (*GROUPS, "generated", "other")}
    parts[OVERALL] = [each for group in GROUPS for each in parts[group]]
    sizes[OVERALL] = len(TASKS)
    order = (*GROUPS, OVERALL, "generated", "other")
    return [compute_score(name, parts[name], sizes.get(name)) for name in order if parts[name]]


def compute_score(name: str, results: Sequence[TaskResult], num_all: int | None) -> Score:
    by_seed = [fmean(accuracies) for accuracies in zip(*(result.accuracies for result in results), strict=True)]
    spread = compute_spread(by_seed)
    return Score(name=name, num_tasks=len(results), num_all=num_all, mean=spread.mean, std=spread.std)


def find_overall(scores: Sequence[Score]) -> Score | None:
    """The VTAB score, or None where no task of the benchmark was run."""
    return next((score for score in scores if score.name == OVERALL), None)
