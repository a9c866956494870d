"""FitResult: what a fit has found, and the steps of its ladder."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from vitrine.evaluation.classification_report import EvaluationResult
from vitrine.evaluation.intervals import Estimate
from vitrine.evaluation.label_issues import LabelIssue
from vitrine.evaluation.multi_label import MultiLabelResult
from vitrine.fitting.budget import Part
from vitrine.fitting.finetune import Contest
from vitrine.fitting.images import FitImages
from vitrine.fitting.learning_curve import LearningCurve
from vitrine.formats.checkpoint import Checkpoint

Outcome = Literal["replaced", "kept", "not better", "not surely better"]


@dataclass(frozen=True)
class LadderStep:
    """A model that was tried: what it is, when it was ready, and what it reached on images that it was not fitted to."""

    name: str
    detail: str
    seconds: float
    """Since the start."""
    accuracy: Estimate
    log_loss: float
    outcome: Outcome


@dataclass(frozen=True)
class FitResult:
    """What `fit` returns."""

    out: Path
    model: str
    """The starting point."""
    data: str
    images: FitImages
    checkpoint: Checkpoint
    steps: list[LadderStep]
    expected: Estimate
    """Accuracy to expect on as many new images as the test split has, or on any number, from cross-validation."""
    result: EvaluationResult
    """Of the test split; without one, of training images in cross-validation, or held out from fine-tuning that won."""
    is_tested: bool
    uncalibrated_error: float
    """Calibration error of the same answers without the temperature."""
    curve: LearningCurve | None
    contest: Contest | None
    parts: list[Part]
    minutes: float
    seconds: float
    interrupted_by: int | None = None
    notes: list[str] = field(default_factory=list)
    labels: MultiLabelResult | None = None
    """What `result` cannot say of several labels per image; None for one."""
    suspects: list[LabelIssue] = field(default_factory=list)
    """Training labels that cross-validation contradicts, the most doubtful first."""
    why_not_tuned: str | None = None
    """Why fine-tuning was not tried, as the end of a sentence; None if it was, or if there was no time."""
    is_unmeasured: bool = False
    """Whether the final model is an earlier fine-tuned one that was fitted to the images here, so that only a test can tell."""

    @property
    def is_tuned(self) -> bool:
        """Whether the final model is a fine-tuned one that was compared with the best head."""
        return self.contest is not None and self.contest.is_won
