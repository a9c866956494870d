"""`vitrine.run_study`: the runs of a study, verdicts on its claims, study.json, study.png and study.html."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from vitrine.core.console import name_setting, print_notice
from vitrine.core.figures import WIDE, draw_png
from vitrine.core.files import write_json
from vitrine.data.open_data import find_data
from vitrine.studies.children import run_in_children
from vitrine.studies.claims import SEEDS_TO_DECIDE
from vitrine.studies.config import StudyConfig
from vitrine.studies.estimate import RunCost, estimate_costs
from vitrine.studies.folder import StudyFolder
from vitrine.studies.page import write_study_page
from vitrine.studies.registry import load_study
from vitrine.studies.runner import Report, RunOutcome, RunTable, StudyRun
from vitrine.studies.search import SearchResult, list_first_runs, read_held_out, search
from vitrine.studies.study import SearchPlan, Study, StudyPlan, StudyResult

FIGURE_HEIGHT = 3.6
PAPER_SETS = {"jft": "JFT-300M", "imagenet": "ImageNet"}  # by the folder that recipes of the paper have


def run_study(name: str, config: StudyConfig | None = None, *, command: str | None = None) -> StudyResult:
    """Run a study and judge the claims of the paper; finished runs in its folder are only read, others resume.

    Without `seeds` in the config, claims that are undecided at scale small get up to five seeds. Failed runs are reported and
    do not stop the rest. `command` is shown on the page. For the cost alone, see `plan_study`.
    """
    config = StudyConfig() if config is None else config
    refuse_torchrun()
    study = load_study(name)
    folder = StudyFolder(find_out(name, config))
    plan = study.build(config.scale, config.data, config.seeds)
    check_sources(plan)
    dataset = find_data(plan.source)
    folder.check(name, config)
    with folder.lock():
        folder.open(name, config, dataset)
        print_notice(f"{study.title}: {len(plan.runs)} runs, {config.jobs} at a time, in {folder.path}.")
        plan, table = make_runs(study, plan, config, folder)
        result = StudyResult(
            name=name,
            config=config,
            out=folder.path,
            plan=plan,
            outcomes=table.outcomes,
            verdicts=[],
            interrupted_by=table.interrupted_by if is_stopped(table, len(plan.runs)) else None,
        )
        if result.interrupted_by is None:
            verdicts = study.judge(plan, table.outcomes)
            result = replace(result, verdicts=verdicts, others=study.others(plan, result.finished))
            write_results(folder, result, command)
    return result


def make_runs(study: Study, plan: StudyPlan, config: StudyConfig, folder: StudyFolder) -> tuple[StudyPlan, RunTable]:
    """Make the runs of a plan and, where they leave claims undecided, those of further seeds; return all of them."""
    table = run_in_children(plan.runs, folder.runs, config.jobs, study.read, report_progress(len(plan.runs)))
    if config.seeds or config.scale != "small" or is_stopped(table, len(plan.runs)):
        return plan, table
    verdicts = study.judge(plan, table.outcomes)
    further = study.extend(plan, table.outcomes, verdicts, tuple(range(SEEDS_TO_DECIDE)))
    if not further:
        return plan, table
    print_notice(f"Claims are undecided: {len(further)} more runs, of {SEEDS_TO_DECIDE} seeds in all.")
    more = run_in_children(further, folder.runs, config.jobs, study.read, report_progress(len(further)))
    outcomes = [*table.outcomes, *more.outcomes]
    return replace(plan, runs=(*plan.runs, *further)), RunTable(outcomes, more.interrupted_by)


def search_study(name: str, config: StudyConfig | None = None) -> SearchResult:
    """Choose the settings of a study on held-out images, as its committed settings were chosen; search.json has the result.

    Finished runs in its folder are only read, others resume.
    """
    config = StudyConfig() if config is None else config
    refuse_torchrun()
    plan = plan_search(name, config)
    dataset = find_data(plan.source)
    folder = StudyFolder(find_out(f"{name}-search", config))
    folder.check(f"{name}, search", config)
    with folder.lock():
        folder.open(f"{name}, search", config, dataset)
        found, table = search(plan.choices, lambda runs: make_trials(runs, folder, config.jobs))
        interrupted_by = None if found else table.interrupted_by
        result = SearchResult(name=name, out=folder.path, found=found, failures=table.failures, interrupted_by=interrupted_by)
        if found:
            write_json(folder.search, result.to_json())
    return result


def plan_search(name: str, config: StudyConfig) -> SearchPlan:
    """Return what `--search` chooses; raise ValueError for a study or scale without anything to choose."""
    study = load_study(name)
    if study.search is None or config.scale == "paper":
        raise ValueError(
            f"Nothing is chosen by a search in {name} at scale {config.scale}: leave out {name_setting('search')}."
        )
    return study.search(config.scale, config.data)


def make_trials(runs: Sequence[StudyRun], folder: StudyFolder, jobs: int) -> RunTable:
    """Make the runs of a search, and print what becomes of them."""
    print_notice(f"{len(runs)} runs of the search, {jobs} at a time, in {folder.path}.")
    return run_in_children(runs, folder.runs, jobs, read_held_out, report_progress(len(runs)))


def is_stopped(table: RunTable, num_runs: int) -> bool:
    """Return whether a signal has ended a table before all of its runs were made."""
    is_whole = len(table.outcomes) == num_runs and all(each.is_finished or each.error for each in table.outcomes)
    return table.interrupted_by is not None and not is_whole


def refuse_torchrun() -> None:
    """Raise ValueError under torchrun."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError(f"A study starts its own processes: run it without torchrun, with {name_setting('jobs', 2)}.")


def plan_study(name: str, config: StudyConfig | None = None, *, search: bool = False) -> list[RunCost]:
    """Return the cost of every run of a study, or of the first runs of its search.

    Times are estimated from some steps of each model on this machine. Without the data, e.g. JFT-300M, compute is counted and
    times are not estimated.
    """
    config = StudyConfig() if config is None else config
    plan = plan_search(name, config) if search else load_study(name).build(config.scale, config.data, config.seeds)
    runs = plan.runs if isinstance(plan, StudyPlan) else list_first_runs(plan.choices)
    return estimate_costs(runs, plan.num_classes, config.jobs, is_measured=has_data(plan.source))


def check_sources(plan: StudyPlan) -> None:
    """Raise FileNotFoundError, before the first run, unless the images of all runs are there."""
    for source in dict.fromkeys((plan.source, *(run.recipe.data.source for run in plan.runs))):
        if source in PAPER_SETS and not has_data(source):
            own = f"give your images with {name_setting('data')}" if source == plan.source else "put it there"
            raise FileNotFoundError(
                f"Scale {plan.scale} needs {PAPER_SETS[source]} in the folder {source}: {own}, or use "
                f"{name_setting('dry_run')} for its cost."
            )


def has_data(source: str) -> bool:
    """Return whether the data of a study is there."""
    try:
        find_data(source)
    except FileNotFoundError:
        return False
    return True


def find_out(name: str, config: StudyConfig) -> Path:
    """Return the folder of a study."""
    return Path("studies") / f"{name}-{config.scale}" if config.out is None else config.out


def report_progress(num_runs: int) -> Report:
    """Return a function that prints a line for each run that has ended."""
    done: list[RunOutcome] = []

    def report(outcome: RunOutcome) -> None:
        done.append(outcome)
        print_notice(f"{len(done)}/{num_runs}  {outcome.run.label}: {describe_outcome(outcome)}")

    return report


def describe_outcome(outcome: RunOutcome) -> str:
    """Return what became of a run in some words."""
    if outcome.error is not None:
        return f"failed. {outcome.error}"
    assert outcome.summary is not None
    if not outcome.summary.is_finished:
        return f"stopped and saved at step {outcome.summary.steps:,} of {outcome.summary.total_steps:,}."
    accuracy = "" if outcome.reading is None else f"{100 * outcome.reading['accuracy']:.1f} %, "
    return f"{accuracy}{3600 * outcome.summary.device_hours:.0f} s"


def write_results(folder: StudyFolder, result: StudyResult, command: str | None) -> None:
    """Write the page, the figure and, last, the numbers."""
    study = load_study(result.name)
    figures = study.figures(result.plan, result.finished) if result.finished else []
    if figures:
        draw_png(figures[0].draw, folder.figure, WIDE, FIGURE_HEIGHT)
    write_study_page(folder.page, study, result, command)
    write_json(folder.numbers, result.to_json())
