"""Claims of the paper and verdicts on them: an interval against a threshold that was fixed before the runs.

No torch here. An interval over seeds says what other runs would give, one over test images what other images would; a claim is
decided only if each of them lies on one side of its threshold.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any, Literal

import numpy as np

from vitrine.evaluation.intervals import Estimate, bootstrap_interval

Unit = Literal["points", "logits", "times"]
"""Accuracies are compared by their difference, in points or logits; amounts, e.g. of compute, by their ratio, in times."""
Outcome = Literal["holds", "fails", "undecided"]
CONFIDENCE = 0.95
SEEDS_TO_DECIDE = 5  # an undecided claim gets so many


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of the paper that a study tests. It holds above its threshold and fails below it."""

    name: str
    sentence: str
    """What the paper says."""
    measured: str
    """What is measured, in words."""
    threshold: float
    unit: Unit


@dataclass(frozen=True, kw_only=True)
class Check:
    """A further interval that must lie on the same side: of the same thing in another unit, or over test images."""

    words: str
    """What it is, e.g. over 5,000 test images."""
    estimate: Estimate
    threshold: float
    unit: Unit

    @property
    def outcome(self) -> Outcome:
        return decide(self.estimate, self.threshold)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a claim holds, and the intervals that this rests on."""

    claim: Claim
    outcome: Outcome
    estimate: Estimate | None
    """Mean over the seeds with its interval; None if the runs that it needs are missing."""
    num_seeds: int
    num_left_out: int = 0
    """Number of further seeds whose runs are finished and give no value."""
    checks: tuple[Check, ...] = ()
    reason: str = ""
    """Why there is no estimate."""

    def describe_seeds(self) -> str:
        """Return the number of seeds in words, e.g. 4 seeds (1 left out)."""
        left_out = f" ({self.num_left_out} left out)" if self.num_left_out > 0 else ""
        return f"{self.num_seeds} seed{'' if self.num_seeds == 1 else 's'}{left_out}"

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as in study.json."""
        return asdict(self)


def judge(claim: Claim, values: Sequence[float], checks: Sequence[Check] = ()) -> Verdict:
    """Return the verdict on a claim from its value for each seed, in the unit of the claim, and from further intervals."""
    estimate = ratio_interval(values) if claim.unit == "times" else student_interval(values)
    outcome = decide(estimate, claim.threshold)
    if any(check.outcome != outcome for check in checks):
        outcome = "undecided"
    return Verdict(claim=claim, outcome=outcome, estimate=estimate, num_seeds=len(values), checks=tuple(checks))


def decide(estimate: Estimate, threshold: float) -> Outcome:
    """Return whether the whole interval lies above the threshold (holds) or below it (fails); without one, undecided."""
    if estimate.low is None or estimate.high is None:
        return "undecided"
    if estimate.low > threshold:
        return "holds"
    return "fails" if estimate.high < threshold else "undecided"


def student_interval(values: Sequence[float]) -> Estimate:
    """Return the mean over seeds with Student's 95 % interval; one seed gives none.

    For two models, pass the difference of each seed: seeds are paired, because both see the same data in the same order.
    """
    from scipy.stats import t

    mean = fmean(values)
    if len(values) == 1:
        return Estimate(mean, None, None)
    half = float(t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    return Estimate(mean, mean - half, mean + half)


def ratio_interval(ratios: Sequence[float]) -> Estimate:
    """Return the geometric mean of ratios over seeds with Student's 95 % interval of their logarithms; one seed gives none."""
    return exponentiate(student_interval([math.log(ratio) for ratio in ratios]))


def exponentiate(estimate: Estimate) -> Estimate:
    """Return the ratio whose logarithm was estimated."""
    low, high = (None if end is None else math.exp(end) for end in (estimate.low, estimate.high))
    return Estimate(math.exp(estimate.value), low, high)


def compute_difference(first: float, second: float, num_images: int, unit: Unit) -> float:
    """Return the accuracy of a model minus that of another on the same number of images, in points or in logits."""
    if unit == "points":
        return 100 * (first - second)
    return compute_logit(first, num_images) - compute_logit(second, num_images)


def compute_logit(accuracy: float, num_images: int) -> float:
    """Return the logarithm of the odds of a right answer; half an image on either side keeps it finite (Haldane, 1956)."""
    num_hits = accuracy * num_images
    return math.log((num_hits + 0.5) / (num_images - num_hits + 0.5))


def bootstrap_images(compute: Callable[..., float], *hits: np.ndarray) -> Estimate:
    """Return a signed value with its bootstrap 95 % interval over test images.

    `compute` takes columns such as `hits`: whether each image was classified correctly, (N) or (N, seeds), of one or several
    models on the same images.
    """
    shapes = [each.shape[0] for each in hits]
    if len(set(shapes)) != 1 or 0 in shapes:
        raise ValueError(f"Answers for {shapes} images cannot be compared: use the same test images for all models.")
    return bootstrap_interval(compute, *hits, is_signed=True)
