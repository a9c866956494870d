"""Scores of VTAB and their figure, like figure 2 of arXiv:2010.11929.

The VTAB score is the plain mean over tasks, not over groups (table 9).
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from vitrine.core.figures import ACCENT, INK, SCRATCH, draw_png, shorten_label
from vitrine.data.sources.vtab import GROUPS, TASKS, Group
from vitrine.evaluation.intervals import compute_spread, wilson_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OVERALL = "VTAB"


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """Test accuracy on one task."""

    name: str
    group: Group
    source: str = ""
    num_classes: int = 0
    num_train_images: int = 0
    num_test_images: int
    accuracies: tuple[float, ...]
    """Top-1 on the test images, one for each seed."""
    mean: float
    std: float | None
    """Standard deviation over seeds; None for a single one."""
    low: float | None
    """Lower end of the 95 % interval for this number of test images."""
    high: float | None


@dataclass(frozen=True, kw_only=True)
class Score:
    """Mean accuracy of a group of tasks, or of all tasks of the benchmark."""

    name: str
    num_tasks: int
    num_all: int | None
    """Number of tasks that the benchmark has in this group; None for groups of ours."""
    mean: float
    std: float | None
    """Standard deviation over the means of each seed; None for a single one."""

    @property
    def is_complete(self) -> bool:
        """Return whether all tasks of the group were run."""
        return self.num_tasks == self.num_all


def build_task_result(name: str, group: Group, accuracies: Sequence[float], num_test_images: int, **facts: Any) -> TaskResult:
    """Build the result of a task from its accuracies, with mean, spread and interval; `facts` are its other fields."""
    spread = compute_spread(accuracies)
    interval = wilson_interval(spread.mean, num_test_images)
    return TaskResult(
        name=name,
        group=group,
        num_test_images=num_test_images,
        accuracies=tuple(accuracies),
        mean=spread.mean,
        std=spread.std,
        low=interval.low,
        high=interval.high,
        **facts,
    )


def compute_scores(results: Sequence[TaskResult]) -> list[Score]:
    """Average results by group, over all tasks of the benchmark, and over other groups; groups without results are left out."""
    sizes: dict[str, int | None] = {group: sum(task.group == group for task in TASKS.values()) for group in GROUPS}
    parts = {group: [each for each in results if each.group == group] for group in (*GROUPS, "generated", "other")}
    parts[OVERALL] = [each for group in GROUPS for each in parts[group]]
    sizes[OVERALL] = len(TASKS)
    order = (*GROUPS, OVERALL, "generated", "other")
    return [compute_score(name, parts[name], sizes.get(name)) for name in order if parts[name]]


def compute_score(name: str, results: Sequence[TaskResult], num_all: int | None) -> Score:
    """Average the results of a group of tasks, seed by seed."""
    by_seed = [fmean(accuracies) for accuracies in zip(*(result.accuracies for result in results), strict=True)]
    spread = compute_spread(by_seed)
    return Score(name=name, num_tasks=len(results), num_all=num_all, mean=spread.mean, std=spread.std)


def find_overall(scores: Sequence[Score]) -> Score | None:
    """Return the VTAB score, or None if no task of the benchmark was run."""
    return next((score for score in scores if score.name == OVERALL), None)


LETTERS_PER_INCH = 15  # of the note below the axis
DOTS: dict[str, Any] = {"linestyle": "", "marker": "o", "markersize": 5, "color": INK, "markeredgecolor": "white"}


def draw_scores(scores: Sequence[Score], results: Sequence[TaskResult], model: str, note: str, path: Path) -> None:
    """Draw a bar for each group, with its spread over several seeds and a dot for each task, and save it as PNG."""
    width = 2.2 + 1.35 * len(scores)

    def draw(figure: "Figure") -> None:
        panel = figure.add_subplot()
        panel.set_title(f"VTAB-1k: {shorten_label(model)}")
        for index, score in enumerate(scores):
            groups = GROUPS if score.name == OVERALL else (score.name,)
            draw_bar(panel, index, score, [each.mean for each in results if each.group in groups])
        panel.set_xticks(range(len(scores)), [label_bar(score) for score in scores])
        panel.set_ylim(0.0, 108.0)
        panel.set_yticks(range(0, 101, 20), [*map(str, range(0, 100, 20)), "100 %"])
        panel.set_xlabel(textwrap.fill(note, int(LETTERS_PER_INCH * width)), labelpad=10)

    draw_png(draw, path, width, 4.4)


def draw_bar(panel: "Axes", index: int, score: Score, means: Sequence[float]) -> None:
    """Draw the bar of a score at a position of the axis, the whole benchmark darker, with dots at the means of its tasks."""
    spread = 100 * (score.std or 0.0)
    colour = ACCENT if score.name == OVERALL else SCRATCH
    panel.bar(index, 100 * score.mean, width=0.66, color=colour, zorder=2)
    if score.std is not None:
        panel.errorbar(index, 100 * score.mean, yerr=spread, color=INK, zorder=4)
    panel.plot([index - 0.24] * len(means), [100 * mean for mean in means], zorder=3, clip_on=False, **DOTS)
    text, above = f"{100 * score.mean:.1f}", (index, 100 * score.mean + spread)
    panel.annotate(text, above, (0, 3), textcoords="offset points", ha="center", zorder=5)


def label_bar(score: Score) -> str:
    """Return the text below a bar: the group and its number of tasks."""
    tasks = f"{score.num_tasks}" if score.num_all is None or score.is_complete else f"{score.num_tasks} of {score.num_all}"
    return f"{score.name}\n{tasks} task{'' if tasks == '1' else 's'}"
