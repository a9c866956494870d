"""The one loop over many runs: seeds, learning rates, the tasks of VTAB, and studies.

Runs are made one after the other in this process (or in those of torchrun), or in child processes (children.py), several at a
time. Either way finished runs are only read, others resume, and an interruption ends the table.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitrine.core.files import make_folder, read_json, write_json
from vitrine.core.runtime import start_runtime
from vitrine.data.open_data import DatasetHandle
from vitrine.formats.checkpoint import Checkpoint
from vitrine.recipe import Recipe, with_changes
from vitrine.run.folder import RunFolder, RunSummary
from vitrine.run.run import run_recipe

READING = "reading.json"  # what a study has measured of a finished run, in the run's folder


@dataclass(frozen=True, kw_only=True)
class StudyRun:
    """A run of a table."""

    label: str
    """The row's name in tables."""
    recipe: Recipe
    folder: str
    """Folder below that of the table, e.g. seed-0."""
    title: str
    """What progress and figures call the run."""
    start: str | None = None
    """Folder of the run whose model this one starts from: `recipe.model.checkpoint` stands for it until the run is made,
    unless it is the path of that model."""
    group: str | None = None
    """Runs that are of use only together: after a failure, the others of its group are left out."""
    dataset: DatasetHandle | None = None
    """The recipe's data, if it was found already. Child processes find it again."""
    checkpoint: Checkpoint | None = None
    """The recipe's checkpoint, if it is loaded already. Child processes load it again."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """What else tells the run from others, e.g. its model and its number of images."""


Read = Callable[[StudyRun, Path, RunSummary], dict[str, Any]]
"""Measures a finished run in its folder; the result is kept as JSON. For child processes, a function of a module."""


@dataclass(frozen=True)
class RunOutcome:
    """What became of a run."""

    run: StudyRun
    summary: RunSummary | None
    """None if it failed."""
    reading: dict[str, Any] | None = None
    """What was measured of the finished run."""
    error: Exception | None = None
    """Why it failed."""

    @property
    def is_finished(self) -> bool:
        return self.summary is not None and self.summary.is_finished

    @property
    def is_measured(self) -> bool:
        """Return whether the run is finished and its reading is known."""
        return self.is_finished and self.reading is not None

    @property
    def interrupted_by(self) -> int | None:
        """The signal, which may have come with the last step."""
        return None if self.summary is None else self.summary.interrupted_by


class StartMissing(Exception):
    """Recorded for a run that starts from the model of a run that failed."""


Report = Callable[[RunOutcome], None]
"""Called after each run, e.g. to say that it failed."""


@dataclass(frozen=True)
class RunTable:
    """Result of `run_here` and `run_in_children`."""

    outcomes: list[RunOutcome]
    """In the order of the runs; those that were not begun are missing."""
    interrupted_by: int | None = None
    """The signal, which may have come with the last step of all."""

    @property
    def summaries(self) -> list[RunSummary]:
        """Summaries of all runs that did not fail."""
        return [outcome.summary for outcome in self.outcomes if outcome.summary is not None]

    @property
    def failures(self) -> list[RunOutcome]:
        return [outcome for outcome in self.outcomes if outcome.error is not None]


def run_here(
    runs: Sequence[StudyRun], out: Path, recorded: tuple[type[Exception], ...] = (), report: Report = lambda outcome: None
) -> RunTable:
    """Make the runs one after the other in this process, or in those of torchrun.

    Errors in `recorded` become outcomes; others are raised.
    """
    make_folder(out)
    outcomes: list[RunOutcome] = []
    with start_runtime(runs[0].recipe.device):  # once for all runs: the processes of torchrun can meet only once
        for run in runs:
            if run.group is not None and any(each.error is not None and each.run.group == run.group for each in outcomes):
                continue
            try:
                require_start(run, [each.run.folder for each in outcomes if each.error is not None])
                outcomes.append(make_run(run, out))
            except (StartMissing, *recorded) as error:
                outcomes.append(RunOutcome(run, None, error=error))
            report(outcomes[-1])
            if outcomes[-1].interrupted_by is not None:
                return RunTable(outcomes, outcomes[-1].interrupted_by)
    return RunTable(outcomes)


def require_start(run: StudyRun, failed: Sequence[str]) -> None:
    """Raise StartMissing if the run whose model this one starts from is among those that failed."""
    if run.start in failed:
        raise StartMissing(f"It starts from the model of {run.start}, which failed.")


def make_run(run: StudyRun, out: Path, read: Read | None = None) -> RunOutcome:
    """Begin, resume or read one run, and measure it once if it is finished."""
    folder, recipe = out / run.folder, run.recipe
    if run.start is not None:
        recipe = with_changes(recipe, model={"checkpoint": find_start(run, RunFolder(folder), RunFolder(out / run.start))})
    summary = run_recipe(recipe, folder, run.title, run.dataset, run.checkpoint)
    if read is None or not summary.is_finished:
        return RunOutcome(run, summary)
    path = folder / READING
    if not path.is_file():
        write_json(path, read(run, folder, summary))
    return RunOutcome(run, summary, read_json(path))


def find_start(run: StudyRun, folder: RunFolder, start: RunFolder) -> str:
    """Return the path of the model that a run starts from: as the recipe has it, if that leads there already.

    A finished run is only read, so it keeps the path that it had: since then its table may have been moved.
    """
    path, written = start.model.absolute(), run.recipe.model.checkpoint
    if written is not None and Path(written).absolute() == path:
        return written
    recorded = folder.read_recipe().model.checkpoint if folder.summary.is_file() else None
    is_same = recorded is not None and Path(recorded).parts[-2:] == path.parts[-2:]
    return recorded if is_same and recorded is not None else str(path)


def is_done(run: StudyRun, out: Path) -> bool:
    """Return whether a run is finished and measured, so that `make_run` only reads it."""
    folder = out / run.folder
    return RunFolder(folder).summary.is_file() and (folder / READING).is_file()
