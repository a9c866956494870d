"""Intervals against scipy.stats and closed forms; verdicts on intervals around a threshold."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from vitrine.evaluation.intervals import Estimate
from vitrine.studies.claims import (
    Check,
    Claim,
    bootstrap_images,
    compute_difference,
    compute_logit,
    decide,
    judge,
    ratio_interval,
    student_interval,
)

CLAIM = Claim(name="The gap narrows", sentence="ViTs gain.", measured="gap", threshold=0.0, unit="points")
GAPS = st.lists(st.floats(-50, 50), min_size=2, max_size=8).filter(lambda values: np.std(values) > 1e-3)


@given(GAPS)
def test_interval_over_seeds_equals_scipy(values: list[float]) -> None:
    estimate = student_interval(values)
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert estimate.value == pytest.approx(np.mean(values), abs=1e-12)
    assert (estimate.low, estimate.high) == pytest.approx((expected.low, expected.high), rel=1e-9, abs=1e-9)


@given(GAPS)
def test_pairs_of_seeds_give_the_paired_test(values: list[float]) -> None:
    """The interval of the differences excludes 0 exactly if the paired t-test rejects equality at 5 %."""
    random = np.random.default_rng(0)
    first = random.normal(size=len(values)) * 20
    second = first - values
    p_value = stats.ttest_rel(first, second).pvalue
    is_decided = decide(student_interval([*(first - second)]), 0.0) != "undecided"
    assert is_decided == (p_value < 0.05)


@given(st.lists(st.floats(0.01, 100), min_size=2, max_size=8).filter(lambda values: np.std(np.log(values)) > 1e-3))
def test_ratios_have_the_interval_of_their_logarithms(ratios: list[float]) -> None:
    """The reciprocals have the reciprocal interval, so it does not matter which model is divided by which."""
    estimate = ratio_interval(ratios)
    expected = stats.ttest_1samp(np.log(ratios), 0).confidence_interval(0.95)
    assert estimate.value == pytest.approx(stats.gmean(ratios))
    assert (estimate.low, estimate.high) == pytest.approx((np.exp(expected.low), np.exp(expected.high)), rel=1e-9)
    inverse = ratio_interval([1 / ratio for ratio in ratios])
    assert inverse.low == pytest.approx(1 / (estimate.high or math.nan))


def test_a_claim_in_times_is_judged_on_logarithms() -> None:
    times = replace(CLAIM, threshold=1.0, unit="times")
    ratios = [1.1, 1.4, 2.9]
    verdict = judge(times, ratios)
    assert verdict.estimate == ratio_interval(ratios)
    assert verdict.estimate != student_interval(ratios)
    assert judge(times, [1.4, 1.5, 1.45]).outcome == "holds"
    assert judge(times, [0.7, 0.75, 0.72]).outcome == "fails"
    assert judge(times, [1.4]).estimate == Estimate(pytest.approx(1.4), None, None)  # type: ignore[arg-type]


def test_one_seed_has_no_interval_and_decides_nothing() -> None:
    assert student_interval([37.0]) == Estimate(37.0, None, None)
    assert judge(CLAIM, [37.0]).outcome == "undecided"


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [
        (0.1, 4.0, "holds"),
        (-4.0, -0.1, "fails"),
        (-0.1, 4.0, "undecided"),
        (0.0, 4.0, "undecided"),
        (-4.0, 0.0, "undecided"),
        (None, None, "undecided"),
    ],
)
def test_the_whole_interval_must_lie_on_one_side(low: float | None, high: float | None, outcome: str) -> None:
    assert decide(Estimate(1.0, low, high), 0.0) == outcome
    moved = [None if end is None else end - 1 for end in (low, high)]
    assert decide(Estimate(0.0, *moved), -1.0) == outcome


def test_a_further_interval_must_agree() -> None:
    above, below, across = (Estimate(0.0, low, low + 2) for low in (1.0, -3.0, -1.0))
    values = [3.0, 3.1, 2.9]

    def judge_with(*estimates: Estimate) -> str:
        checks = [Check(words="in logits", estimate=each, threshold=0.0, unit="logits") for each in estimates]
        return judge(CLAIM, values, checks).outcome

    assert judge_with() == "holds"
    assert judge_with(above, above) == "holds"
    assert judge_with(above, across) == "undecided"
    assert judge_with(below) == "undecided"
    checks = [Check(words="in logits", estimate=below, threshold=0.0, unit="logits")]
    assert judge(CLAIM, [-value for value in values], checks).outcome == "fails"


def test_a_verdict_keeps_what_it_rests_on() -> None:
    check = Check(words="over 9 test images", estimate=Estimate(1.0, 0.5, 1.5), threshold=0.0, unit="points")
    content = judge(CLAIM, [3.0, 3.2], [check]).to_json()
    assert (content["outcome"], content["num_seeds"], content["claim"]["threshold"]) == ("holds", 2, 0.0)
    assert content["estimate"]["value"] == pytest.approx(3.1)
    assert content["checks"][0]["estimate"]["high"] == 1.5


def test_differences_in_points_and_logits() -> None:
    assert compute_difference(0.9, 0.8, 1000, "points") == pytest.approx(10)
    expected = math.log((900.5 / 100.5) / (800.5 / 200.5))
    assert compute_difference(0.9, 0.8, 1000, "logits") == pytest.approx(expected)


@given(st.integers(1, 5000), st.floats(0, 1))
def test_logits_are_finite_and_odd(num_images: int, accuracy: float) -> None:
    value = compute_logit(accuracy, num_images)
    assert math.isfinite(value)
    assert value == pytest.approx(-compute_logit(1 - accuracy, num_images), abs=1e-9)


def test_logits_tend_to_those_of_scipy() -> None:
    from scipy.special import logit

    assert compute_logit(0.83, 10**9) == pytest.approx(logit(0.83), abs=1e-7)


def test_interval_over_images_is_that_of_the_mean_of_paired_differences() -> None:
    """The mean has a closed form; 300 draws estimate its half-width to about 4 %."""
    random = np.random.default_rng(3)
    first, second = random.random((4000, 2)) < 0.8, random.random((4000, 2)) < 0.7
    estimate = bootstrap_images(lambda one, other: 100 * (one.mean() - other.mean()), first, second)
    differences = 100 * (first.mean(1) - second.mean(1))
    expected = stats.norm.interval(0.95, differences.mean(), stats.sem(differences))
    assert estimate.value == pytest.approx(differences.mean())
    assert (estimate.low, estimate.high) == pytest.approx(expected, rel=0.03)


def test_interval_over_images_may_be_below_zero() -> None:
    random = np.random.default_rng(3)
    first, second = random.random(500) < 0.3, random.random(500) < 0.9
    estimate = bootstrap_images(lambda one, other: one.mean() - other.mean(), first, second)
    assert decide(estimate, 0.0) == "fails"
    assert estimate.low is not None
    assert estimate.low < -0.6


def test_other_images_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match=r"\[3, 4\]"):
        bootstrap_images(lambda one, other: 0.0, np.ones(3), np.ones(4))
