"""StepResult: what a step of the demo found and what it cost."""

from collections.abc import Sequence
from dataclasses import dataclass

from vitrine.demo.plan import Family, Kind
from vitrine.evaluation.intervals import Estimate


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """Result of a step and what it cost."""

    key: str
    family: Family
    kind: Kind
    title: str
    command: str
    seconds: float
    """Computing time, over all attempts."""
    accuracy: Estimate | None = None
    """Top-1 on the test images, with its 95 % interval; None: nothing was tested."""
    num_test_images: int | None = None
    num_parameters: int | None = None
    macs: int | None = None
    """Multiply-accumulates per image."""
    num_images: int | None = None
    """Images seen in training, or whose features were extracted."""
    exaflops: float | None = None


def find_accuracy(results: Sequence[StepResult], family: Family, kind: Kind) -> Estimate | None:
    """Return the accuracy of a step; None if the demo has no such step."""
    return next((result.accuracy for result in results if (result.family, result.kind) == (family, kind)), None)
