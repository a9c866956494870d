"""Intervals and tests against scipy and closed forms, spreads against NumPy."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from vitrine.evaluation.intervals import (
    Estimate,
    Spread,
    bootstrap_interval,
    compute_spread,
    mcnemar_test,
    normal_interval,
    wilson_interval,
)

ANSWERS = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40)


def find_bounds(estimate: Estimate) -> tuple[float, float]:
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.low, estimate.high


def draw_answers(num_images: int, *shares: float) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.random(num_images) < share for share in shares]


@pytest.mark.parametrize("figures", [(0.5, 0.7), (0.81, 0.79, 0.8), (0.3, 0.3, 0.3, 0.3)])
def test_mean_and_spread_are_numpy_s(figures: tuple[float, ...]) -> None:
    spread = compute_spread(figures)
    assert spread.mean == pytest.approx(np.mean(figures), rel=1e-12)
    assert spread.std == pytest.approx(np.std(figures, ddof=1), rel=1e-12, abs=1e-15)


def test_one_figure_has_no_spread() -> None:
    assert compute_spread([0.75]) == Spread(0.75, None)


@given(st.integers(1, 100_000), st.floats(0, 1))
def test_a_share_has_scipy_s_wilson_interval(num_images: int, share: float) -> None:
    num_hits = round(share * num_images)
    found = wilson_interval(num_hits / num_images, num_images)
    expected = stats.binomtest(num_hits, num_images).proportion_ci(method="wilson")
    assert found.value == num_hits / num_images
    assert found.low == pytest.approx(expected.low, rel=1e-9, abs=1e-12)
    assert found.high == pytest.approx(expected.high, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("num_images", [1, 3, 1000])
def test_all_right_and_all_wrong_are_not_certain(num_images: int) -> None:
    right, wrong = wilson_interval(1.0, num_images), wilson_interval(0.0, num_images)
    assert right.value == 1
    assert 1 - right.low == pytest.approx(wrong.high)
    assert wrong.high == pytest.approx(3.8416 / (num_images + 3.8416), rel=1e-4)  # z² / (n + z²), with z = 1.96


def test_ninety_five_of_a_hundred_intervals_hold_the_truth() -> None:
    hits = np.random.default_rng(0).binomial(200, 0.9, size=4000)
    estimates = [wilson_interval(each / 200, 200) for each in hits.tolist()]
    assert np.mean([low <= 0.9 <= high for low, high in map(find_bounds, estimates)]) == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize("num_images", [2, 50])
def test_a_mean_has_scipy_s_normal_interval(num_images: int) -> None:
    losses = np.random.default_rng(0).exponential(2.0, num_images)
    found = normal_interval(losses)
    low, high = stats.norm.interval(0.95, loc=losses.mean(), scale=stats.sem(losses))
    assert (found.value, found.low, found.high) == pytest.approx((losses.mean(), low, high), rel=1e-9)


def test_of_a_mean_the_bootstrap_finds_the_standard_error() -> None:
    losses = np.random.default_rng(0).exponential(2.0, 400)
    found = bootstrap_interval(lambda values: float(values.mean()), losses)
    assert found.value == losses.mean()
    low, high = find_bounds(found)
    assert high - found.value == pytest.approx(1.96 * stats.sem(losses), rel=0.15)  # 300 draws are right to 4 %
    assert high - found.value == pytest.approx(found.value - low)


def test_the_bootstrap_of_two_columns_is_scipy_s() -> None:
    random = np.random.default_rng(0)
    first = random.normal(size=120)
    second = first + random.normal(size=120)

    def correlate(left: np.ndarray, right: np.ndarray) -> float:
        return float(np.corrcoef(left, right)[0, 1])

    peer = stats.bootstrap((first, second), correlate, paired=True, vectorized=False, n_resamples=2000)
    found = bootstrap_interval(correlate, first, second)
    assert find_bounds(found)[1] - found.value == pytest.approx(
        1.96 * peer.standard_error, rel=0.15
    )  # chance is 4 % here, 2 % there


def test_the_bootstrap_draws_whole_images_and_the_same_each_time() -> None:
    numbers, seen = np.arange(30), []

    def watch(left: np.ndarray, right: np.ndarray) -> float:
        assert len(left) == 30
        assert np.array_equal(left, -right)
        seen.append(tuple(left.tolist()))
        return float(left.mean())

    first = bootstrap_interval(watch, numbers, -numbers)
    assert len(set(seen)) > 250
    assert bootstrap_interval(watch, numbers, -numbers) == first


def test_the_bootstrap_stays_above_zero() -> None:
    found = bootstrap_interval(lambda values: float(abs(values.mean())), np.array([1.0, -1.0, 1.0, -1.0]))
    assert (found.value, found.low) == (0, 0)
    assert find_bounds(found)[1] > 0


def test_the_bootstrap_of_one_image_says_only_its_figure() -> None:
    found = bootstrap_interval(lambda values: float(values.sum()), np.array([0.25]))
    assert (found.value, found.low, found.high) == (0.25, 0.25, 0.25)


@given(ANSWERS)
def test_of_two_models_the_difference_is_that_of_their_accuracies(answers: list[tuple[bool, bool]]) -> None:
    first, second = (np.array(column) for column in zip(*answers, strict=True))
    found = mcnemar_test(first, second)
    signs = first.astype(float) - second
    half = stats.norm.ppf(0.975) * signs.std() / math.sqrt(len(signs))
    assert found.num_images == len(answers)
    assert found.only_first == int((signs > 0).sum())
    assert found.only_second == int((signs < 0).sum())
    assert found.difference.value == pytest.approx(first.mean() - second.mean(), abs=1e-12)
    assert found.difference.low == pytest.approx(signs.mean() - half, abs=1e-7)  # a root of rounding errors
    assert found.difference.high == pytest.approx(signs.mean() + half, abs=1e-7)


@given(ANSWERS)
def test_the_p_value_is_mcnemar_s_exact_one(answers: list[tuple[bool, bool]]) -> None:
    found = mcnemar_test(*(np.array(column) for column in zip(*answers, strict=True)))
    unlike, fewer = found.only_first + found.only_second, min(found.only_first, found.only_second)
    tail = sum(math.comb(unlike, count) for count in range(fewer + 1)) / 2**unlike
    assert found.p_value == pytest.approx(min(1.0, 2 * tail), rel=1e-9)


@given(ANSWERS)
def test_the_second_against_the_first_is_the_mirror_image(answers: list[tuple[bool, bool]]) -> None:
    first, second = (np.array(column) for column in zip(*answers, strict=True))
    there, back = mcnemar_test(first, second), mcnemar_test(second, first)
    assert (there.only_first, there.only_second) == (back.only_second, back.only_first)
    assert there.p_value == pytest.approx(back.p_value)
    assert there.difference.low == pytest.approx(-find_bounds(back.difference)[1])


def test_pairing_finds_what_two_intervals_would_hide() -> None:
    """The same images are hard for both: only those that they answer differently tell them apart."""
    [first] = draw_answers(2000, 0.8)
    second = first.copy()
    second[np.flatnonzero(first)[:30]] = False
    found = mcnemar_test(first, second)
    apart = [wilson_interval(float(hits.mean()), 2000) for hits in (first, second)]
    assert apart[0].low < apart[1].high  # each alone could be as good as the other
    assert find_bounds(found.difference)[0] > 0
    assert found.p_value == pytest.approx(2 * 0.5**30)


def test_two_that_answer_alike_are_not_told_apart() -> None:
    [hits] = draw_answers(50, 0.5)
    found = mcnemar_test(hits, hits)
    assert (found.only_first, found.only_second, found.difference.value, found.p_value) == (0, 0, 0, 1)


def test_one_image_proves_nothing() -> None:
    assert mcnemar_test(np.array([True]), np.array([False])).p_value == 1


def test_answers_to_other_images_cannot_be_paired() -> None:
    with pytest.raises(
        ValueError, match=r"Answers of shapes \(3,\) and \(2,\) cannot be paired: give both for the same images"
    ):
        mcnemar_test(np.ones(3, bool), np.ones(2, bool))
    with pytest.raises(ValueError, match=r"Answers of shapes \(0,\) and \(0,\) cannot be paired"):
        mcnemar_test(np.ones(0, bool), np.ones(0, bool))


@pytest.mark.parametrize("num_images", range(1, 50))
def test_a_share_stays_within_its_bounds(num_images: int) -> None:
    for num_hits in range(num_images + 1):
        found = wilson_interval(num_hits / num_images, num_images)
        low, high = find_bounds(found)
        assert 0 <= low <= found.value <= high <= 1


def test_one_image_can_be_written_as_json() -> None:
    json.dumps(vars(normal_interval(np.array([2.0]))), allow_nan=False)
