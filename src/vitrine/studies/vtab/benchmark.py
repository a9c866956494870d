"""VTAB-1k as in the paper: one setting for all tasks, each trained on 1000 images and tested on all its test images.

Appendix B.1.1 of arXiv:2010.11929: rate and length were chosen once for the whole suite, among two of each, by the mean
accuracy on 200 images after training on 800. Which images lie in which split is the matter of `data/vtab_splits.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from vitrine.core.console import summarise, warn_user
from vitrine.core.files import make_folder
from vitrine.core.runtime import start_runtime
from vitrine.data.sources.vtab import GROUPS
from vitrine.recipe import Recipe, with_changes
from vitrine.run.folder import RunSummary
from vitrine.run.run import Diverged, run_recipe
from vitrine.studies.sweeps import run_seeds
from vitrine.studies.vtab.config import VtabConfig
from vitrine.studies.vtab.protocol import FoundTask, Setting, apply_setting, build_task_recipe, list_settings
from vitrine.studies.vtab.scores import TaskResult, build_result


@dataclass(frozen=True)
class Sweep:
    accuracies: dict[Setting, tuple[float, ...]]
    """On the 200 images of each task that it was chosen by; without settings that diverged."""
    interrupted_by: RunSummary | None = None

    @property
    def best(self) -> Setting:
        """Of several alike, the first."""
        return max(self.accuracies, key=lambda setting: fmean(self.accuracies[setting]))


@dataclass(frozen=True)
class Suite:
    results: list[TaskResult]
    interrupted_by: RunSummary | None = None
    """The run that was stopped; then there are fewer results than tasks."""


def run_suite(recipe: Recipe, found: Sequence[FoundTask], seeds: Sequence[int], out: Path) -> Suite:
    """Every task with every seed, in folders of their own; finished ones are only read."""
    make_folder(out)
    results: list[TaskResult] = []
    with start_runtime(recipe.device):
        for place, each in enumerate(found, start=1):
            title = f"{each.task.name} ({place} of {len(found)})"
            summaries = run_seeds(build_task_recipe(recipe, each), seeds, out / each.task.name, title)
            if not summaries[-1].is_finished or len(summaries) < len(seeds):
                return Suite(results, summaries[-1])
            results.append(describe_result(each, summaries))
            if summaries[-1].interrupted_by is not None and place < len(found):
                return Suite(results, summaries[-1])
    return Suite(results)


def describe_result(found: FoundTask, summaries: Sequence[RunSummary]) -> TaskResult:
    return build_result(
        name=found.task.name,
        group=found.group,
        accuracies=[summary.test_top1 or 0.0 for summary in summaries],
        num_test_images=found.num_test_images,
        source=found.source,
        num_classes=found.num_classes,
        num_train_images=summaries[0].num_train_images,
    )


def sweep_settings(recipe: Recipe, config: VtabConfig, found: Sequence[FoundTask], out: Path) -> Sweep:
    """Each setting on every task of the benchmark, or on all where there is none of it; test images are not looked at."""
    chosen_by = [each for each in found if each.group in GROUPS] or list(found)
    evaluation = {"num_times": 1, "test": False}
    trials = {each: with_changes(apply_setting(recipe, each), evaluation=evaluation) for each in list_settings(recipe, config)}
    accuracies: dict[Setting, tuple[float, ...]] = {}
    with start_runtime(recipe.device):
        for setting, trial in trials.items():
            try:
                summaries = try_setting(trial, chosen_by, out / str(setting), f"rate {setting.learning_rate:g}")
            except Diverged as error:
                warn_user(f"The rate {setting.learning_rate:g} is out of the question: {summarise(error)}.")
                continue
            if len(summaries) == len(chosen_by) and summaries[-1].is_finished:
                accuracies[setting] = tuple(summary.best or 0.0 for summary in summaries)
            if summaries[-1].interrupted_by is not None:
                return Sweep(accuracies, summaries[-1])
    if not accuracies:
        raise ValueError("Every rate of the sweep is too high: give lower ones by --rates.")
    return Sweep(accuracies)


def try_setting(trial: Recipe, found: Sequence[FoundTask], out: Path, title: str) -> list[RunSummary]:
    """On the tasks one after another; an interruption ends the list."""
    make_folder(out)
    summaries: list[RunSummary] = []
    for each in found:
        recipe = build_task_recipe(trial, each, split="train")
        summaries.append(run_recipe(recipe, out / each.task.name, f"{title}, {trial.total_steps} steps: {each.task.name}"))
        if summaries[-1].interrupted_by is not None:
            break
    return summaries
