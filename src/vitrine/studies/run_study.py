"""`vitrine.run_study`: the runs of a study, verdicts on its claims, study.json, study.png and study.html."""

import os
from collections.abc import Sequence
from pathlib import Path

from vitrine.core.console import name_setting, print_notice
from vitrine.core.figures import WIDE, draw_png
from vitrine.core.files import write_json
from vitrine.data.open_data import find_data
from vitrine.studies.children import run_in_children
from vitrine.studies.config import StudyConfig
from vitrine.studies.estimate import RunCost, estimate_costs
from vitrine.studies.folder import StudyFolder
from vitrine.studies.page import write_study_page
from vitrine.studies.registry import load_study
from vitrine.studies.runner import Report, RunOutcome, StudyRun
from vitrine.studies.study import StudyResult

FIGURE_HEIGHT = 3.6


def run_study(name: str, config: StudyConfig | None = None, *, command: str | None = None) -> StudyResult:
    """Run a study and judge the claims of the paper; finished runs in its folder are only read, others resume.

    Failed runs are reported and do not stop the rest. `command` is shown on the page. For the cost alone, see `plan_study`.
    """
    config = StudyConfig() if config is None else config
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError(f"A study starts its own processes: run it without torchrun, with {name_setting('jobs', 2)}.")
    study = load_study(name)
    folder = StudyFolder(find_out(name, config))
    plan = study.build(config.scale, config.data, config.seeds)
    dataset = find_data(plan.source)
    folder.check(name, config)
    with folder.lock():
        folder.open(name, config, dataset)
        print_notice(f"{study.title}: {len(plan.runs)} runs, {config.jobs} at a time, in {folder.path}.")
        table = run_in_children(plan.runs, folder.runs, config.jobs, study.read, report_progress(plan.runs))
        is_whole = len(table.outcomes) == len(plan.runs) and all(each.is_finished or each.error for each in table.outcomes)
        interrupted_by = None if is_whole else table.interrupted_by
        result = StudyResult(
            name=name,
            config=config,
            out=folder.path,
            plan=plan,
            outcomes=table.outcomes,
            verdicts=[] if interrupted_by else study.judge(plan, table.outcomes),
            interrupted_by=interrupted_by,
        )
        if interrupted_by is None:
            write_results(folder, result, command)
    return result


def plan_study(name: str, config: StudyConfig | None = None) -> list[RunCost]:
    """Return the cost of every run of a study; times are estimated from some steps of each model on this machine.

    Without the data, e.g. JFT-300M, compute is counted and times are not estimated.
    """
    config = StudyConfig() if config is None else config
    plan = load_study(name).build(config.scale, config.data, config.seeds)
    return estimate_costs(plan, config.jobs, is_measured=has_data(plan.source))


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


def report_progress(runs: Sequence[StudyRun]) -> Report:
    """Return a function that prints a line for each run that has ended."""
    done: list[RunOutcome] = []

    def report(outcome: RunOutcome) -> None:
        done.append(outcome)
        print_notice(f"{len(done)}/{len(runs)}  {outcome.run.label}: {describe_outcome(outcome)}")

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
    if result.finished:
        draw_png(study.figure(result.plan, result.finished).draw, folder.figure, WIDE, FIGURE_HEIGHT)
    write_study_page(folder.page, study, result, command)
    write_json(folder.numbers, result.to_json())
