"""Which test images finished runs classify correctly, and verdicts on how two models differ there.

Models that are compared have the same seeds and the same test images, so both are paired.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitrine.data.open_data import choose_test_split, find_data
from vitrine.evaluation.predictor import Predictor
from vitrine.run.folder import RunFolder
from vitrine.studies.claims import Check, Claim, Unit, Verdict, bootstrap_images, compute_difference, judge, student_interval
from vitrine.studies.runner import RunOutcome, StudyRun

Reading = dict[str, Any]
"""Accuracy of a run, number of test images, and, unless it is a mean of several classifiers, which of them are right."""
Readings = dict[tuple[str, int, int], Reading]
"""Readings by what is compared (e.g. the model), number of images and seed."""


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


def collect_readings(
    outcomes: Sequence[RunOutcome], compared: str, pick: Callable[[Mapping[str, Any], Reading], Reading | None]
) -> Readings:
    """Return what `pick` takes from columns and reading of each finished run, None for runs that do not count.

    `compared` is the column of what is compared, e.g. the model.
    """
    found: Readings = {}
    for outcome in outcomes:
        columns = outcome.run.columns
        picked = pick(columns, outcome.reading) if outcome.is_finished and outcome.reading is not None else None
        if picked is not None:
            found[columns[compared], columns["num_images"], columns["seed"]] = picked
    return found


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


def build_pair(readings: Readings, compared: tuple[str, str], sizes: Sequence[int], size: int | None = None) -> Pair | None:
    """Return the readings of both models on a number of images (default: the first), with seeds that have all of `sizes`."""
    seeds = sorted({seed for _, _, seed in readings})
    whole = [seed for seed in seeds if all((model, each, seed) in readings for model in compared for each in sizes)]
    first, second = ([readings[model, size or sizes[0], seed] for seed in whole] for model in compared)
    return Pair(first, second) if whole else None


def judge_gap(claim: Claim, pair: Pair) -> Verdict:
    """Return the verdict on the gap of a pair, in points over seeds and over test images."""
    checks = [check_images(claim, [(1.0, pair)])] if pair.has_hits else []
    return judge(claim, pair.list_gaps("points"), checks)


def judge_change(claim: Claim, before: Pair, after: Pair, words: str) -> Verdict:
    """Return the verdict on the gap of a pair minus that of another, in points and in logits: points mislead near 100 %."""
    return judge_sum(claim, [(1.0, after), (-1.0, before)], words)


def judge_mean(claim: Claim, pairs: Sequence[Pair], words: str) -> Verdict:
    """Return the verdict on the mean gap of pairs that have the same seeds, in points and in logits."""
    return judge_sum(claim, [(1 / len(pairs), pair) for pair in pairs], words)


def judge_sum(claim: Claim, terms: Sequence[tuple[float, Pair]], words: str) -> Verdict:
    """Return the verdict on a weighted sum of the gaps of pairs, which have the same seeds and the same test images."""
    points, logits = (sum_gaps(terms, unit) for unit in ("points", "logits"))
    in_logits = Check(words=f"in logits, {words}", estimate=student_interval(logits), threshold=claim.threshold, unit="logits")
    checks = [in_logits]
    if all(pair.has_hits for _, pair in terms):
        checks.append(check_images(claim, terms))
    return judge(claim, points, checks)


def sum_gaps(terms: Sequence[tuple[float, Pair]], unit: Unit) -> list[float]:
    """Return the weighted sum of the gaps of pairs, for each seed."""
    weights = [weight for weight, _ in terms]
    by_seed = zip(*(pair.list_gaps(unit) for _, pair in terms), strict=True)
    return [sum(weight * gap for weight, gap in zip(weights, gaps, strict=True)) for gaps in by_seed]


def check_images(claim: Claim, terms: Sequence[tuple[float, Pair]]) -> Check:
    """Return the interval of a weighted sum of gaps over test images."""
    weights = [weight for weight, _ in terms]

    def compute(*hits: np.ndarray) -> float:
        gaps = [compute_gap(first, second) for first, second in zip(hits[::2], hits[1::2], strict=True)]
        return sum(weight * gap for weight, gap in zip(weights, gaps, strict=True))

    estimate = bootstrap_images(compute, *(hits for _, pair in terms for hits in pair.stack_hits()))
    words = f"over {terms[0][1].num_images:,} test images"
    return Check(words=words, estimate=estimate, threshold=claim.threshold, unit="points")


def compute_gap(first: np.ndarray, second: np.ndarray) -> float:
    """Return the difference of accuracies in points from right answers, bool (N, seeds)."""
    return 100 * (float(first.mean()) - float(second.mean()))


def leave_open(claim: Claim, reason: str) -> Verdict:
    """Return the verdict on a claim whose runs are missing."""
    return Verdict(claim=claim, outcome="undecided", estimate=None, num_seeds=0, reason=reason)
