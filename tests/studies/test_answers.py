"""Answers of finished runs on test images, and the differences of two models."""

import numpy as np
import pytest

from vitrine.studies.answers import (
    Pair,
    Reading,
    build_pair,
    judge_change,
    judge_gap,
    judge_mean,
    leave_open,
    pack_hits,
    unpack_hits,
)
from vitrine.studies.claims import Claim, compute_difference

CLAIM = Claim(name="more", sentence="More is better.", measured="The gap", threshold=0.0, unit="points")


def make_reading(hits: np.ndarray) -> Reading:
    return {"accuracy": float(hits.mean()), "num_images": len(hits), "hits": pack_hits(hits)}


def make_pair(first: float, second: float, num_images: int = 1000, seeds: int = 3) -> Pair:
    """Return models that are right on the first images, which differ by one image between seeds."""

    def build(accuracy: float) -> list[Reading]:
        return [make_reading(np.arange(num_images) < round(accuracy * num_images) + seed) for seed in range(seeds)]

    return Pair(build(first), build(second))


def test_hits_survive_as_text() -> None:
    hits = np.random.default_rng(0).random(1003) < 0.3
    assert (unpack_hits(make_reading(hits)) == hits).all()


@pytest.mark.parametrize("unit", ["points", "logits"])
def test_gaps_are_differences_of_each_seed(unit: str) -> None:
    pair = make_pair(0.7, 0.5)
    expected = [compute_difference(0.7 + seed / 1000, 0.5 + seed / 1000, 1000, unit) for seed in range(3)]  # type: ignore[arg-type]
    assert pair.list_gaps(unit) == pytest.approx(expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(("first", "outcome"), [(0.7, "holds"), (0.3, "fails")])
def test_a_gap_is_judged_over_seeds_and_images(first: float, outcome: str) -> None:
    verdict = judge_gap(CLAIM, make_pair(first, 0.5))
    assert verdict.outcome == outcome
    (check,) = verdict.checks
    assert (check.outcome, check.unit) == (outcome, "points")
    assert check.estimate.value == pytest.approx(100 * (first - 0.5))


def test_means_of_several_classifiers_are_judged_over_seeds_alone() -> None:
    pair = Pair(
        *([{"accuracy": each["accuracy"], "num_images": 1000} for each in side] for side in vars(make_pair(0.7, 0.5)).values())
    )
    assert judge_gap(CLAIM, pair).checks == ()
    (logits,) = judge_change(CLAIM, pair, pair, "from here to there").checks
    assert logits.unit == "logits"


def test_a_change_counts_in_points_in_logits_and_over_images() -> None:
    before, after = make_pair(0.5, 0.8), make_pair(0.9, 0.95)
    verdict = judge_change(CLAIM, before, after, "from few to many")
    assert verdict.estimate is not None
    assert verdict.estimate.value == pytest.approx(25)
    logits, images = verdict.checks
    assert logits.unit == "logits"
    expected = np.mean(after.list_gaps("logits")) - np.mean(before.list_gaps("logits"))
    assert logits.estimate.value == pytest.approx(expected)
    assert images.estimate.value == pytest.approx(25)
    assert verdict.outcome == "holds"


def test_a_mean_gap_counts_in_points_in_logits_and_over_images() -> None:
    pairs = [make_pair(0.5, 0.4), make_pair(0.9, 0.6)]
    verdict = judge_mean(CLAIM, pairs, "mean of two")
    assert verdict.estimate is not None
    assert verdict.estimate.value == pytest.approx(20)
    logits, images = verdict.checks
    assert logits.estimate.value == pytest.approx(np.mean([pair.list_gaps("logits") for pair in pairs]))
    assert images.estimate.value == pytest.approx(20)
    assert verdict.outcome == "holds"


def test_pairs_are_of_seeds_that_have_all_numbers_of_images() -> None:
    readings = {
        (name, size, seed): {"accuracy": seed / 10, "num_images": size}
        for name in ("a", "b")
        for size in (20, 50)
        for seed in (0, 1)
        if (name, size, seed) != ("b", 50, 0)
    }
    pair = build_pair(readings, ("a", "b"), [20, 50], 50)
    assert pair == Pair([readings["a", 50, 1]], [readings["b", 50, 1]])
    first = build_pair(readings, ("a", "b"), [20])
    assert first is not None
    assert len(first.first) == 2
    assert build_pair(readings, ("a", "c"), [20]) is None


def test_a_claim_without_runs_is_open() -> None:
    verdict = leave_open(CLAIM, "No run.")
    assert (verdict.outcome, verdict.estimate, verdict.reason) == ("undecided", None, "No run.")
