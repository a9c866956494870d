"""`vitrine study NAME --search`: choose the settings of a study on held-out images. Test images are not read.

What was found is committed with the study; the search is there to be repeated, and for other data.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from vitrine.recipe import Recipe
from vitrine.run.folder import RunSummary
from vitrine.studies.runner import RunOutcome, RunTable, StudyRun

FACTOR = 2.0  # of neighbouring learning rates
NUM_FIRST = 3  # learning rates that are tried in any case
MAX_VALUES = 9  # of one choice: if still no value is better than its neighbours, something else is wrong


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A setting to choose: the value with the highest mean held-out accuracy of its runs."""

    name: str
    """E.g. learning rate of ViT."""
    values: tuple[Any, ...]
    """Values to try; with a factor, these are the first, in ascending order."""
    committed: Any
    """The value that the study uses."""
    build: Callable[[Any], tuple[StudyRun, ...]]
    """Builds the runs of a value. Those that others of them start from do not count for it."""
    prepare: tuple[StudyRun, ...] = ()
    """Runs that those of the values start from."""
    factor: float | None = None
    """Ratio of neighbouring values: further ones are tried until the best is neither the lowest nor the highest."""
    family: str | None = None
    """Choices of a family try the same values: what is tried further for one of them is tried for all."""
    describe: Callable[[Any], str] = "{:g}".format
    """Returns a value in words."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A value that was tried."""

    value: Any
    accuracies: tuple[float, ...]
    """Best held-out accuracy of each run; empty if one failed."""

    @property
    def score(self) -> float:
        return fmean(self.accuracies) if self.accuracies else 0.0


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a search found for one choice."""

    choice: Choice
    trials: list[Trial]
    """In the order of their values."""

    @property
    def best(self) -> Any:
        """The value with the highest score; of equal ones the first."""
        return max(self.trials, key=lambda trial: trial.score).value

    def to_json(self) -> dict[str, Any]:
        """Return the choice as in search.json."""
        describe = self.choice.describe
        return {
            "name": self.choice.name,
            "committed": describe(self.choice.committed),
            "best": describe(self.best),
            "trials": [
                {"value": describe(trial.value), "score": trial.score, "accuracies": [*trial.accuracies]}
                for trial in self.trials
            ],
        }


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """Result of `search_study`."""

    name: str
    out: Path
    found: list[Found]
    """Empty if the search was interrupted."""
    failures: list[RunOutcome] = field(default_factory=list)
    interrupted_by: int | None = None
    """The signal; the same call continues."""

    def to_json(self) -> dict[str, Any]:
        """Return the content of search.json."""
        return {"study": self.name, "choices": [found.to_json() for found in self.found]}


def read_held_out(run: StudyRun, folder: Path, summary: RunSummary) -> dict[str, Any]:
    """Return the best held-out accuracy of a run."""
    return {"accuracy": summary.best}


def search(choices: Sequence[Choice], make: Callable[[Sequence[StudyRun]], RunTable]) -> tuple[list[Found], RunTable]:
    """Try the values of all choices, and neighbours of the best where it is the lowest or the highest; return what was found.

    `make` makes a table of runs. Each run is made once, and the table that is returned has all of them.
    """
    values = {choice.name: [*choice.values] for choice in choices}
    made: dict[str, RunOutcome] = {}
    while True:
        table = make([run for run in list_runs(choices, values) if run.folder not in made])
        made |= {outcome.run.folder: outcome for outcome in table.outcomes}
        whole = RunTable([*made.values()], table.interrupted_by)
        if table.interrupted_by is not None:
            return [], whole
        found = [collect_trials(choice, values[choice.name], made) for choice in choices]
        further = share_values(found, {each.choice.name: list_neighbours(each) for each in found})
        if not any(further.values()):
            return found, whole
        values = {name: sorted([*tried, *further[name]]) if further[name] else tried for name, tried in values.items()}


def list_first_runs(choices: Sequence[Choice]) -> list[StudyRun]:
    """Return the runs of the values that are tried in any case."""
    return list_runs(choices, {choice.name: [*choice.values] for choice in choices})


def list_runs(choices: Iterable[Choice], values: dict[str, list[Any]]) -> list[StudyRun]:
    """Return the runs of all values, and first those that they start from; runs that several share once."""
    preparing = [run for choice in choices for run in choice.prepare]
    runs = [run for choice in choices for value in values[choice.name] for run in choice.build(value)]
    return [*{run.folder: run for run in [*preparing, *runs]}.values()]


def collect_trials(choice: Choice, values: Iterable[Any], made: Mapping[str, RunOutcome]) -> Found:
    """Return the accuracies of all values of a choice."""
    trials = []
    for value in values:
        runs = choice.build(value)
        starts = {run.start for run in runs}
        found = [made[run.folder].reading for run in runs if run.folder not in starts]
        accuracies = tuple(reading["accuracy"] for reading in found if reading is not None)
        trials.append(Trial(value=value, accuracies=accuracies if len(accuracies) == len(found) else ()))
    return Found(choice=choice, trials=trials)


def list_neighbours(found: Found) -> list[Any]:
    """Return the value beyond the best if that is the lowest or the highest that was tried."""
    factor, best = found.choice.factor, found.best
    if factor is None or len(found.trials) >= MAX_VALUES:
        return []
    if best == found.trials[0].value:
        return [best / factor]
    return [best * factor] if best == found.trials[-1].value else []


def share_values(found: Sequence[Found], further: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Return further values of each choice: its own, and those of the others of its family that it has not tried."""
    shared: dict[str, list[Any]] = {}
    for each in found:
        family = each.choice.family
        others = [other.choice.name for other in found if family is not None and other.choice.family == family]
        wanted = {value for name in (each.choice.name, *others) for value in further[name]}
        shared[each.choice.name] = sorted(wanted - {trial.value for trial in each.trials})
    return shared


def list_first_rates(*committed: float) -> tuple[float, ...]:
    """Return the learning rates to try first, in steps of the factor: each committed one lies between two others."""
    low, high = min(committed), max(committed)
    between = round(math.log(high / low, FACTOR))
    return tuple(low * FACTOR**index for index in range(-(NUM_FIRST // 2), between + NUM_FIRST // 2 + 1))


def measure_once(recipe: Recipe) -> Recipe:
    """Return a recipe that is measured at its end, on held-out images."""
    return replace(recipe, evaluation=replace(recipe.evaluation, num_times=1, test=False))


def build_trial(folder: str, recipe: Recipe, columns: dict[str, Any], start: str | None = None) -> StudyRun:
    """Build a run of a search, which is called as its folder."""
    return StudyRun(label=folder, recipe=recipe, folder=folder, title=folder, start=start, columns=columns)
