"""The contract of a study: a question, claims of the paper, runs, how each is read, and how verdicts follow."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrine.studies.claims import Claim, Verdict
from vitrine.studies.config import Scale, StudyConfig
from vitrine.studies.runner import Read, RunOutcome, StudyRun
from vitrine.studies.search import Choice

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class TriedSetting:
    """A setting of a study that was chosen before its runs."""

    name: str
    """E.g. learning rate of ViT."""
    chosen: str
    tried: tuple[str, ...]
    """All values that were tried, the chosen one among them."""


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """The runs of a study at one scale and with its data."""

    scale: Scale
    data: str | None = None
    """Images that were given; None: those of the scale."""
    source: str
    """The images, as DATA of any command."""
    runs: tuple[StudyRun, ...]
    num_classes: int
    remark: str = ""
    """How the settings were chosen."""
    regime: str = ""
    """What the claims were tested on, in a sentence."""
    tried: tuple[TriedSetting, ...] = ()
    """The settings that were chosen on held-out images, each with all values that were tried."""


@dataclass(frozen=True, kw_only=True)
class SearchPlan:
    """What `--search` chooses, on held-out images."""

    source: str
    """The images, as DATA of any command."""
    num_classes: int
    choices: tuple[Choice, ...]


@dataclass(frozen=True, kw_only=True)
class StudyFigure:
    """A figure of a study's page."""

    draw: "Callable[[Figure], None]"
    alt: str
    look: str
    caption: str
    columns: tuple[str, ...] = ()
    """Columns of a table of its numbers, the first of which is text."""
    rows: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, kw_only=True)
class OtherMeasure:
    """The claims of a study once more, measured in another way; its verdicts are not the study's own."""

    name: str
    """E.g. after fine-tuning on digits."""
    verdicts: list[Verdict]


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
    rows: Callable[[Sequence[RunOutcome]], list[tuple[str, ...]]]
    """Returns the rows of that table from the finished runs."""
    figures: Callable[[StudyPlan, Sequence[RunOutcome]], list[StudyFigure]]
    """Returns the figures from the finished runs, the paper's first; none if those that they show are missing."""
    extend: Callable[[StudyPlan, Sequence[RunOutcome], Sequence[Verdict], tuple[int, ...]], tuple[StudyRun, ...]]
    """Returns the further runs, with these seeds, that undecided claims rest on; none if all are decided."""
    search: Callable[[Scale, str | None], SearchPlan] | None = None
    """Builds what `--search` chooses; None if nothing was chosen by a search."""
    others: Callable[[StudyPlan, Sequence[RunOutcome]], list[OtherMeasure]] = lambda plan, outcomes: []
    """Returns the claims measured in other ways from the finished runs."""


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
    others: list[OtherMeasure] = field(default_factory=list)
    interrupted_by: int | None = None
    """The signal; the same call continues."""

    @property
    def finished(self) -> list[RunOutcome]:
        """Runs that are finished and measured."""
        return [outcome for outcome in self.outcomes if outcome.is_measured]

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
            "others": [{"name": each.name, "verdicts": [one.to_json() for one in each.verdicts]} for each in self.others],
            "tried": [asdict(each) for each in self.plan.tried],
            "runs": [outcome_to_json(outcome) for outcome in self.outcomes],
        }


def outcome_to_json(outcome: RunOutcome) -> dict[str, Any]:
    """Return a run as in study.json. The model that it starts from is named by its run: paths differ between machines."""
    start = {} if outcome.run.start is None else {"model": outcome.run.start}
    return {
        "label": outcome.run.label,
        "folder": outcome.run.folder,
        **outcome.run.columns,
        "summary": None if outcome.summary is None else {**vars(outcome.summary), **start},
        "reading": outcome.reading,
        "error": None if outcome.error is None else str(outcome.error),
    }
