"""`vitrine study`: the paper's experiments, with figures and verdicts."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from vitrine.commands.train import stop_here
from vitrine.core.arguments import format_own_command
from vitrine.core.console import format_number, print_lines, print_table
from vitrine.core.files import check_output_files, write_json
from vitrine.studies.config import StudyConfig
from vitrine.studies.registry import STUDIES, find_study

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vitrine.evaluation.intervals import Estimate
    from vitrine.studies.claims import Unit, Verdict
    from vitrine.studies.estimate import RunCost
    from vitrine.studies.search import SearchResult
    from vitrine.studies.study import StudyResult


def study(
    name: Annotated[Positional[str | None], arg(metavar="NAME")] = None,
    list: bool = False,
    dry_run: bool = False,
    search: bool = False,
    json: Path | None = None,
    *,
    config: Annotated[StudyConfig, arg(name="")],
) -> None:
    """Repeat an experiment of the paper: a table of runs, a figure, and verdicts on the paper's claims.

    The same command again continues. Runs that fail are reported and do not stop the rest.

    Args:
        name: The study, e.g. data-size.
        list: List the studies with their times.
        dry_run: List the runs with cost and time, and train nothing.
        search: Choose the settings of the study again, on held-out images; nothing is tested.
        json: Write the results to this file too.
    """
    if list:
        if name is not None or dry_run or search or json is not None or config != StudyConfig():
            raise ValueError("--list has no effect together with a study or other options: give it alone.")
        list_studies()
        return
    if name is None:
        raise ValueError("Missing: NAME, e.g. `vitrine study data-size`. All studies: `vitrine study --list`.")
    find_study(name)
    check_output_files(json)

    if search and config.seeds:
        raise ValueError("--seeds has no effect on --search, which has seed 0: leave out one of them.")
    from vitrine.studies.run_study import plan_study, run_study, search_study

    if dry_run:
        costs = plan_study(name, config, search=search)
        print_costs(costs, config.jobs)
        if json is not None:
            write_json(json, [cost_to_json(cost) for cost in costs])
        return
    if search:
        found = search_study(name, config)
        if found.interrupted_by is not None:
            stop_here(found.interrupted_by)
        print_found(found)
        if json is not None:
            write_json(json, found.to_json())
        return
    result = run_study(name, config, command=format_own_command())
    if result.interrupted_by is not None:
        stop_here(result.interrupted_by)
    print_result(result)
    if json is not None:
        write_json(json, result.to_json())


def list_studies() -> None:
    """Print all studies, their questions and times."""
    for name, entry in STUDIES.items():
        print_lines(f"{name}: {entry.question}", f"    repeats {entry.paper}")
        print_lines(*(f"    --scale {scale:<6} {time}" for scale, time in entry.times.items()))
        print_lines(f"    --search       {entry.search_time}")


def print_costs(costs: "list[RunCost]", jobs: int) -> None:
    """Print cost and time of every run, and of all together."""
    rows = [
        (
            cost.run.label,
            f"{cost.run.recipe.total_steps:,}",
            format_number(cost.macs / 1e6),
            f"{cost.exaflops:.3g}",
            "" if cost.seconds is None else f"{cost.seconds:,.0f}",
        )
        for cost in costs
    ]
    print_table(("run", "steps", "MMACs", "exaFLOPs", "seconds"), rows)
    print_lines(f"{len(costs)} runs, {sum(cost.exaflops for cost in costs):.3g} exaFLOPs.")
    seconds = [cost.seconds for cost in costs if cost.seconds is not None]
    if len(seconds) == len(costs):
        print_lines(f"About {sum(seconds) / jobs / 60:.3g} minutes, {jobs} at a time on this machine.")
    else:
        print_lines("Times are not estimated: the data is not here, or ten steps of the models take too long here.")


def cost_to_json(cost: "RunCost") -> dict[str, object]:
    """Return the cost of a run as JSON."""
    return {"label": cost.run.label, "macs": cost.macs, "exaflops": cost.exaflops, "seconds": cost.seconds}


def print_result(result: "StudyResult") -> None:
    """Print the runs, the verdicts, and where the page is."""
    from vitrine.studies.registry import load_study

    home = load_study(result.name)
    print_table(home.columns, home.rows(result.finished))
    print_lines("")
    rows = [row for verdict in result.verdicts for row in format_verdict(verdict)]
    print_table(("claim", "verdict", "rests on", "value", "95 % interval"), rows)
    if result.others:
        print_lines("", "The same claims, measured in other ways:")
        rows = [(measure.name, *next(format_verdict(verdict))) for measure in result.others for verdict in measure.verdicts]
        print_table(("measured", "claim", "outcome", "rests on", "value", "95 % interval"), rows)
    for outcome in result.failures:
        print_lines(f"Failed: {outcome.run.label}. {outcome.error}")
    print_lines(f"The page is {result.out / 'study.html'}, its numbers are in {result.out / 'study.json'}.")


def print_found(result: "SearchResult") -> None:
    """Print all values that a search has tried, and where its numbers are."""
    rows = []
    for found in result.found:
        describe = found.choice.describe
        for trial in found.trials:
            marks = [
                word for word, value in (("best", found.best), ("committed", found.choice.committed)) if trial.value == value
            ]
            each = ", ".join(f"{100 * accuracy:.1f}" for accuracy in trial.accuracies) or "failed"
            rows.append((found.choice.name, describe(trial.value), f"{100 * trial.score:.2f}", each, ", ".join(marks)))
    print_table(("setting", "value", "held-out accuracy, %", "of each run", ""), rows)
    for outcome in result.failures:
        print_lines(f"Failed: {outcome.run.label}. {outcome.error}")
    print_lines(f"The numbers are in {result.out / 'search.json'}.")


def format_verdict(verdict: "Verdict") -> "Iterator[tuple[str, ...]]":
    """Yield a claim's row of the printed table, and one for each further interval that its verdict rests on."""
    claim = verdict.claim
    if verdict.estimate is None:
        yield (claim.name, verdict.outcome, verdict.reason, "", "")
        return
    yield (claim.name, verdict.outcome, verdict.describe_seeds(), *format_estimate(verdict.estimate, claim.unit))
    for check in verdict.checks:
        yield ("", check.outcome, check.words, *format_estimate(check.estimate, check.unit))


def format_estimate(estimate: "Estimate", unit: "Unit") -> tuple[str, str]:
    """Return a value and its interval; without one, an empty cell. Ratios have no sign."""
    style = ".2f" if unit == "times" else "+.2f"
    interval = ""
    if estimate.low is not None and estimate.high is not None:
        interval = f"{estimate.low:{style}} .. {estimate.high:{style}}"
    return f"{estimate.value:{style}} {unit}", interval
