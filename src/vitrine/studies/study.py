"""The contract of a study: a question, claims of the paper, runs, how each is read, and how verdicts follow."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrine.studies.claims import Claim, Verdict
from vitrine.studies.config import Scale, StudyConfig
from vitrine.studies.runner import Read, RunOutcome, StudyRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """The runs of a study at one scale and with its data."""

    scale: Scale
    source: str
    """The images, as DATA of any command."""
    runs: tuple[StudyRun, ...]
    num_classes: int
    remark: str = ""
    """How the settings were chosen."""
    regime: str = ""
    """What the claims were tested on, in a sentence."""


@dataclass(frozen=True, kw_only=True)
class StudyFigure:
    """A figure of a study's page."""

    draw: "Callable[[Figure], None]"
    alt: str
    look: str
    caption: str


@dataclass(frozen=True, kw_only=True)
class Study:
    """A question about the paper that runs answer. Rules of claims are fixed in the code before the runs."""

    name: str
    title: str
    """Its name on the page."""
    claims: tuple[Claim, ...]
    paper: str
    """What the paper reports, in some sentences."""
    build: Callable[[Scale, str | None, tuple[int, ...]], StudyPlan]
    """Builds the runs from scale, data and seeds; nothing is trained."""
    read: Read
    """Measures a finished run, in its process."""
    judge: Callable[[StudyPlan, Sequence[RunOutcome]], list[Verdict]]
    """Returns the verdict on each claim from the finished runs."""
    columns: tuple[str, ...]
    """Columns of the table of runs."""
    row: Callable[[RunOutcome], tuple[str, ...]]
    """Returns a finished run's row of that table."""
    figure: Callable[[StudyPlan, Sequence[RunOutcome]], StudyFigure]
    """Returns the figure from the finished runs, of which there is at least one."""


@dataclass(frozen=True, kw_only=True)
class StudyResult:
    """Result of `run_study`."""

    name: str
    config: StudyConfig
    out: Path
    plan: StudyPlan
    outcomes: list[RunOutcome]
    """In the order of the runs; those that were not begun are missing."""
    verdicts: list[Verdict]
    """Empty if the study was interrupted."""
    interrupted_by: int | None = None
    """The signal; the same call continues."""

    @property
    def finished(self) -> list[RunOutcome]:
        """Runs that are finished and measured."""
        return [outcome for outcome in self.outcomes if outcome.is_finished and outcome.reading is not None]

    @property
    def failures(self) -> list[RunOutcome]:
        return [outcome for outcome in self.outcomes if outcome.error is not None]

    def to_json(self) -> dict[str, Any]:
        """Return the content of study.json."""
        return {
            "study": self.name,
            "scale": self.config.scale,
            "data": self.plan.source,
            "regime": self.plan.regime,
            "remark": self.plan.remark,
            "verdicts": [verdict.to_json() for verdict in self.verdicts],
            "runs": [outcome_to_json(outcome) for outcome in self.outcomes],
        }


def outcome_to_json(outcome: RunOutcome) -> dict[str, Any]:
    """Return a run as in study.json."""
    return {
        "label": outcome.run.label,
        "folder": outcome.run.folder,
        **outcome.run.columns,
        "summary": None if outcome.summary is None else vars(outcome.summary),
        "reading": outcome.reading,
        "error": None if outcome.error is None else str(outcome.error),
    }
