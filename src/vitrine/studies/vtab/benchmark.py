"""`vitrine.vtab`: a checkpoint on the tasks of VTAB-1k, each trained on 1000 images and tested on all its test images.

All tasks share one setting. The paper chose its learning rate and length once for the whole suite, from two of each, by the
mean accuracy on 200 images after training on 800 (appendix B.1.1 of arXiv:2010.11929). How the images of a task are divided is
in data/sources/vtab.py.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from vitrine.core.console import name_setting
from vitrine.core.files import make_folder, write_json
from vitrine.core.runtime import start_runtime
from vitrine.data.sources.vtab import GROUPS
from vitrine.recipe import Recipe, resolve_changes, with_changes
from vitrine.recipes.registry import short_model_name
from vitrine.run.folder import RunSummary
from vitrine.run.run import Diverged
from vitrine.studies.runner import StudyRun, run_here
from vitrine.studies.sweeps import build_seed_run, warn_if_diverged
from vitrine.studies.vtab.config import VtabConfig
from vitrine.studies.vtab.protocol import (
    FoundTask,
    Setting,
    apply_setting,
    build_protocol,
    build_task_recipe,
    check_recipe,
    describe_protocol,
    find_tasks,
    list_departures,
    list_settings,
)
from vitrine.studies.vtab.scores import Score, TaskResult, build_task_result, compute_scores, draw_scores, find_overall


@dataclass(frozen=True)
class Sweep:
    """Result of `sweep_settings`."""

    accuracies: dict[Setting, tuple[float, ...]]
    """Validation accuracy of each task; settings that diverged are left out."""
    interrupted_by: RunSummary | None = None

    @property
    def best(self) -> Setting:
        """The setting with the highest mean accuracy; of equal ones, the first."""
        return max(self.accuracies, key=lambda setting: fmean(self.accuracies[setting]))

    def to_json(self) -> list[dict[str, Any]]:
        """Return each setting with its accuracies, as in vtab.json."""
        return [
            asdict(setting) | {"mean": sum(values) / len(values), "accuracies": list(values), "is_chosen": setting == self.best}
            for setting, values in self.accuracies.items()
        ]


@dataclass(frozen=True, kw_only=True)
class VtabResult:
    """Result of `vtab`: accuracies of the tasks, and their means."""

    model: str
    seeds: tuple[int, ...]
    recipe: Recipe
    """Recipe of all tasks, with the learning rate and length that a sweep chose."""
    departures: list[str]
    """Settings that are not the paper's, and tasks with too few training images; empty under the paper's protocol."""
    missing: tuple[str, ...]
    """Requested tasks of the benchmark that were not found."""
    tasks: list[TaskResult]
    """Results of the tasks; fewer than were found if a run was interrupted."""
    sweep: Sweep | None = None
    interrupted_by: RunSummary | None = None
    """The run that was interrupted, if any; the same call resumes it."""

    @property
    def scores(self) -> list[Score]:
        """Mean accuracy of each group of tasks, and of all tasks of the benchmark."""
        return compute_scores(self.tasks)

    @property
    def score(self) -> Score | None:
        """The VTAB score: the mean over tasks; None if no task of the benchmark was run."""
        return find_overall(self.scores)

    @property
    def protocol(self) -> str:
        """The settings in one sentence, and whether they are the paper's."""
        return describe_protocol(self.recipe, self.departures, self.sweep is not None)

    def to_json(self) -> dict[str, Any]:
        """Return the content of vtab.json."""
        return {
            "model": self.model,
            "seeds": list(self.seeds),
            "is_paper_protocol": not self.departures,
            "departures": self.departures,
            "missing": list(self.missing),
            **({} if self.sweep is None else {"sweep": self.sweep.to_json()}),
            "recipe": self.recipe.to_json(),
            "protocol": self.protocol,
            "tasks": [asdict(task) for task in self.tasks],
            "groups": [asdict(score) for score in self.scores],
            "score": None if self.score is None else asdict(self.score),
        }


def vtab(
    model: str | Path,
    root: str | Path,
    /,  # so that `changes` may have the recipe's field `model`
    out: str | Path | None = None,
    *,
    tasks: Sequence[str] = (),
    generated: bool = False,
    test_images: int | None = None,
    seeds: Sequence[int] = (),
    sweep: bool = False,
    rates: Sequence[float] = (),
    lengths: Sequence[int] = (),
    recipe: Recipe | None = None,
    **changes: Any,
) -> VtabResult:
    """Fine-tune a checkpoint on each task of VTAB-1k and average the test accuracies; finished runs are only read.

    Args:
        model: Checkpoint: a folder or file in any known format, or hf://org/name.
        root: Folder with a dataset for each task, named like the task.
        out: Folder of the runs, vtab.json and vtab.png (default: below runs/, named after the model).
        tasks: Names of tasks to run (default: all that are found).
        generated: Add three tasks on generated images, with their own mean.
        test_images: Test on at most this many images of each task (default: all).
        seeds: Run each task once with each of these seeds (default: the recipe's).
        sweep: First choose learning rate and length, once for all tasks, on 200 of the 1000 images.
        rates: Learning rates to choose from (default: the recipe's, and 0.3 times it).
        lengths: Numbers of steps to choose from (default: the recipe's, and 0.4 times it).
        recipe: Recipe of all tasks (default: the paper's, from `build_protocol`).
        changes: Changed fields of the recipe, e.g. total_steps=500; the results then list them as departures.
    """
    choices: dict[str, Any] = {"tasks": tasks, "seeds": seeds, "rates": rates, "lengths": lengths}
    choices = {name: tuple(values) for name, values in choices.items()}
    config = VtabConfig(generated=generated, test_images=test_images, sweep=sweep, **choices)
    protocol = build_protocol(str(model), str(root))
    recipe = with_changes(protocol if recipe is None else resolve_changes(recipe, protocol), **changes)
    check_recipe(recipe, protocol)
    folder = Path("runs") / f"{short_model_name(model)}-vtab" if out is None else Path(out)
    found = find_tasks(Path(root), config, folder)
    results: dict[str, Any] = {
        "model": str(model),
        "seeds": config.seeds or (recipe.seed,),
        "departures": list_departures(recipe, protocol, config, found.tasks),
        "missing": found.missing,
    }
    with start_runtime(recipe.device) as runtime:  # once for all runs: the processes of torchrun can meet only once
        make_folder(folder)
        if config.sweep:
            trials = results["sweep"] = sweep_settings(recipe, config, found.tasks, folder / "sweep")
            if trials.interrupted_by is not None:
                return VtabResult(**results, recipe=recipe, tasks=[], interrupted_by=trials.interrupted_by)
            recipe = apply_setting(recipe, trials.best)
        task_results, interrupted_by = run_tasks(recipe, found.tasks, results["seeds"], folder)
        result = VtabResult(**results, recipe=recipe, tasks=task_results, interrupted_by=interrupted_by)
        if runtime.is_main and interrupted_by is None:
            write_json(folder / "vtab.json", result.to_json())
            draw_scores(result.scores, result.tasks, short_model_name(model), result.protocol, folder / "vtab.png")
    return result


def run_tasks(
    recipe: Recipe, tasks: Sequence[FoundTask], seeds: Sequence[int], out: Path
) -> tuple[list[TaskResult], RunSummary | None]:
    """Run every task with every seed, each in its folder; return the results, and the run that was interrupted, if any."""
    runs = []
    for number, found in enumerate(tasks, start=1):
        name, task_recipe = found.task.name, build_task_recipe(recipe, found)
        title = f"{name} ({number} of {len(tasks)})"
        runs += [build_seed_run(task_recipe, seed, title, folder=f"{name}/") for seed in seeds]
    summaries = run_here(runs, out).summaries
    finished = [summary for summary in summaries if summary.is_finished]
    num_seeds = len(seeds)
    results = [
        summarise_task(found, finished[start : start + num_seeds])
        for found, start in zip(tasks, range(0, len(finished) - num_seeds + 1, num_seeds), strict=False)
    ]
    # A signal may come with the last step of all, when nothing is left to do.
    return results, None if len(finished) == len(runs) else summaries[-1]


def summarise_task(found: FoundTask, runs: Sequence[RunSummary]) -> TaskResult:
    """Return the result of a task from its runs, one for each seed."""
    accuracies = [run.test_top1 or 0.0 for run in runs]
    facts = {"source": found.source, "num_classes": found.num_classes, "num_train_images": runs[0].num_train_images}
    return build_task_result(found.task.name, found.group, accuracies, found.num_test_images, **facts)


def sweep_settings(recipe: Recipe, config: VtabConfig, tasks: Sequence[FoundTask], out: Path) -> Sweep:
    """Train and validate with each setting on the tasks of VTAB, or on all given tasks if none is; no test image is used."""
    tasks = [task for task in tasks if task.group in GROUPS] or tasks
    recipe = with_changes(recipe, evaluation={"num_times": 1, "test": False})
    settings = list_settings(recipe, config)
    runs = [build_trial(recipe, setting, task) for setting in settings for task in tasks]
    table = run_here(runs, out, (Diverged,), warn_if_diverged)
    accuracies: dict[Setting, tuple[float, ...]] = {}
    for setting in settings:
        trials = [each.summary for each in table.outcomes if each.run.group == setting.folder and each.is_finished]
        if len(trials) == len(tasks):
            accuracies[setting] = tuple(trial.best or 0.0 for trial in trials if trial is not None)
    if table.interrupted_by is not None:
        return Sweep(accuracies, table.summaries[-1])
    if not accuracies:
        raise ValueError(f"All learning rates of the sweep are too high: lower {name_setting('rates')}.")
    return Sweep(accuracies)


def build_trial(recipe: Recipe, setting: Setting, found: FoundTask) -> StudyRun:
    """Build the run of a task with a setting: it trains on 800 images and validates on 200."""
    name = found.task.name
    return StudyRun(
        label=f"{setting.folder}, {name}",
        recipe=build_task_recipe(apply_setting(recipe, setting), found, split="train"),
        folder=f"{setting.folder}/{name}",
        title=f"lr {setting.learning_rate:g}, {setting.total_steps} steps: {name}",
        group=setting.folder,
    )
