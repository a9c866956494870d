"""Which test images finished runs classify correctly, and verdicts on how two models differ there.

Models that are compared have the same seeds and the same test images, so both are paired.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitrine.data.open_data import choose_test_split, find_data
from vitrine.evaluation.predictor import Predictor
from vitrine.run.folder import RunFolder
from vitrine.studies.claims import Check, Claim, Unit, Verdict, bootstrap_images, compute_difference, judge, student_interval
from vitrine.studies.runner import StudyRun

Reading = dict[str, Any]
"""Accuracy of a run, number of test images, and, unless it is a mean of several classifiers, which of them are right."""


def read_answers(run: StudyRun, folder: Path) -> Reading:
    """Measure which test images of its data a finished run classifies correctly."""
    dataset = find_data(run.recipe.data.source)
    predictor = Predictor(RunFolder(folder).model, run.recipe.device)
    predictions = predictor.predict_source(dataset.open(choose_test_split(dataset)), top=1)
    hits = predictions.hits[predictions.index.argsort(), 0].numpy()
    return {"accuracy": float(hits.mean()), "num_images": len(hits), "hits": pack_hits(hits)}


def pack_hits(hits: np.ndarray) -> str:
    """Return bool (N) as text, a bit for each image."""
    return base64.b64encode(np.packbits(hits).tobytes()).decode("ascii")


def unpack_hits(reading: Reading) -> np.ndarray:
    """Return which images were classified correctly, bool (N)."""
    packed = np.frombuffer(base64.b64decode(reading["hits"]), dtype=np.uint8)
    return np.unpackbits(packed, count=reading["num_images"]).astype(bool)


@dataclass(frozen=True)
class Pair:
    """The readings of two models, seed by seed."""

    first: Sequence[Reading]
    second: Sequence[Reading]

    @property
    def num_images(self) -> int:
        return self.first[0]["num_images"]

    @property
    def has_hits(self) -> bool:
        return all("hits" in reading for reading in (*self.first, *self.second))

    def list_gaps(self, unit: Unit) -> list[float]:
        """Return the accuracy of the first model minus that of the second, for each seed."""
        return [
            compute_difference(first["accuracy"], second["accuracy"], self.num_images, unit)
            for first, second in zip(self.first, self.second, strict=True)
        ]

    def stack_hits(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the right answers of both models, bool (N, seeds) each."""
        first, second = (np.stack([unpack_hits(each) for each in side], axis=1) for side in (self.first, self.second))
        return first, second


def judge_gap(claim: Claim, pair: Pair) -> Verdict:
    """Return the verdict on the gap of a pair, in points over seeds and over test images."""
    checks = [check_images(claim, pair.num_images, compute_gap, *pair.stack_hits())] if pair.has_hits else []
    return judge(claim, pair.list_gaps("points"), checks)


def judge_change(claim: Claim, before: Pair, after: Pair, words: str) -> Verdict:
    """Return the verdict on the gap of a pair minus that of another, in points and in logits: points mislead near 100 %."""
    points, logits = (
        [late - early for early, late in zip(before.list_gaps(unit), after.list_gaps(unit), strict=True)]
        for unit in ("points", "logits")
    )
    in_logits = Check(words=f"in logits, {words}", estimate=student_interval(logits), threshold=claim.threshold, unit="logits")
    checks = [in_logits]
    if before.has_hits and after.has_hits:
        checks.append(check_images(claim, after.num_images, compute_change, *after.stack_hits(), *before.stack_hits()))
    return judge(claim, points, checks)


def check_images(claim: Claim, num_images: int, compute: Any, *hits: np.ndarray) -> Check:
    """Return the interval of a claim over test images."""
    words, estimate = f"over {num_images:,} test images", bootstrap_images(compute, *hits)
    return Check(words=words, estimate=estimate, threshold=claim.threshold, unit="points")


def compute_gap(first: np.ndarray, second: np.ndarray) -> float:
    """Return the difference of accuracies in points from right answers, bool (N, seeds)."""
    return 100 * (float(first.mean()) - float(second.mean()))


def compute_change(first: np.ndarray, second: np.ndarray, first_before: np.ndarray, second_before: np.ndarray) -> float:
    """Return the gap of a pair minus that of another."""
    return compute_gap(first, second) - compute_gap(first_before, second_before)


def leave_open(claim: Claim, reason: str) -> Verdict:
    """Return the verdict on a claim whose runs are missing."""
    return Verdict(claim=claim, outcome="undecided", estimate=None, num_seeds=0, reason=reason)
