"""Intervals and McNemar's test against scipy and closed forms; spreads against NumPy."""

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
    count_draws,
    interval_of_draws,
    mcnemar_test,
    mean_of_fractions,
    normal_interval,
    predictive_interval,
    wilson_interval,
)

ANSWERS = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40)


def find_bounds(estimate: Estimate) -> tuple[float, float]:
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.low, estimate.high


def draw_hits(num_images: int, *accuracies: float) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.random(num_images) < accuracy for accuracy in accuracies]


@pytest.mark.parametrize("values", [(0.5, 0.7), (0.81, 0.79, 0.8), (0.3, 0.3, 0.3, 0.3)])
def test_spread_equals_numpy(values: tuple[float, ...]) -> None:
    spread = compute_spread(values)
    assert spread.mean == pytest.approx(np.mean(values), rel=1e-12)
    assert spread.std == pytest.approx(np.std(values, ddof=1), rel=1e-12, abs=1e-15)


def test_single_value_has_no_std() -> None:
    assert compute_spread([0.75]) == Spread(0.75, None)


@given(st.integers(1, 100_000), st.floats(0, 1))
def test_wilson_interval_equals_scipy(num_images: int, fraction: float) -> None:
    num_hits = round(fraction * num_images)
    result = wilson_interval(num_hits / num_images, num_images)
    expected = stats.binomtest(num_hits, num_images).proportion_ci(method="wilson")
    assert result.value == num_hits / num_images
    assert result.low == pytest.approx(expected.low, rel=1e-9, abs=1e-12)
    assert result.high == pytest.approx(expected.high, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("num_images", [1, 3, 1000])
def test_wilson_interval_at_0_and_1(num_images: int) -> None:
    right, wrong = wilson_interval(1.0, num_images), wilson_interval(0.0, num_images)
    assert right.value == 1
    assert 1 - right.low == pytest.approx(wrong.high)
    assert wrong.high == pytest.approx(3.8416 / (num_images + 3.8416), rel=1e-4)  # z² / (n + z²), with z = 1.96


def test_wilson_interval_covers_95_percent() -> None:
    hits = np.random.default_rng(0).binomial(200, 0.9, size=4000)
    estimates = [wilson_interval(each / 200, 200) for each in hits.tolist()]
    assert np.mean([low <= 0.9 <= high for low, high in map(find_bounds, estimates)]) == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize("num_images", [2, 50])
def test_normal_interval_equals_scipy(num_images: int) -> None:
    losses = np.random.default_rng(0).exponential(2.0, num_images)
    result = normal_interval(losses)
    low, high = stats.norm.interval(0.95, loc=losses.mean(), scale=stats.sem(losses))
    assert (result.value, result.low, result.high) == pytest.approx((losses.mean(), low, high), rel=1e-9)


def test_bootstrap_of_a_mean_is_the_standard_error() -> None:
    losses = np.random.default_rng(0).exponential(2.0, 400)
    result = bootstrap_interval(lambda values: float(values.mean()), losses)
    assert result.value == losses.mean()
    low, high = find_bounds(result)
    assert high - result.value == pytest.approx(1.96 * stats.sem(losses), rel=0.15)  # 300 draws are right to 4 %
    assert high - result.value == pytest.approx(result.value - low)


def test_bootstrap_of_two_columns_equals_scipy() -> None:
    random = np.random.default_rng(0)
    first = random.normal(size=120)
    second = first + random.normal(size=120)

    def correlate(left: np.ndarray, right: np.ndarray) -> float:
        return float(np.corrcoef(left, right)[0, 1])

    peer = stats.bootstrap((first, second), correlate, paired=True, vectorized=False, n_resamples=2000)
    result = bootstrap_interval(correlate, first, second)
    assert find_bounds(result)[1] - result.value == pytest.approx(
        1.96 * peer.standard_error, rel=0.15
    )  # chance is 4 % here, 2 % there


def test_bootstrap_draws_whole_rows_reproducibly() -> None:
    numbers, seen = np.arange(30), []

    def watch(left: np.ndarray, right: np.ndarray) -> float:
        assert len(left) == 30
        assert np.array_equal(left, -right)
        seen.append(tuple(left.tolist()))
        return float(left.mean())

    first = bootstrap_interval(watch, numbers, -numbers)
    assert len(set(seen)) > 250
    assert bootstrap_interval(watch, numbers, -numbers) == first


def test_bootstrap_stays_above_zero() -> None:
    result = bootstrap_interval(lambda values: float(abs(values.mean())), np.array([1.0, -1.0, 1.0, -1.0]))
    assert (result.value, result.low) == (0, 0)
    assert find_bounds(result)[1] > 0


def test_draws_at_once_are_those_of_the_bootstrap() -> None:
    values = np.random.default_rng(0).random(40)
    counts = count_draws(40)
    assert (count_draws(40, 1000)[:, :301] == counts).all()
    found = interval_of_draws(values @ counts / 40, 40)
    expected = bootstrap_interval(lambda column: float(column.mean()), values)
    assert (found.value, found.low, found.high) == pytest.approx((expected.value, expected.low, expected.high))
    with_gaps = np.where(np.arange(301) % 2, np.nan, values @ counts / 40)  # a metric that is not defined in half of the draws
    assert find_bounds(interval_of_draws(with_gaps, 40)) == pytest.approx(find_bounds(found), abs=0.03)  # half of the draws


def test_draws_stay_within_0_and_1_unless_it_is_not_a_fraction() -> None:
    draws = np.array([0.5, -3.0, 4.0])
    found = interval_of_draws(draws, 2)
    assert (found.low, found.high) == (0, 1)
    half = 1.959963984540054 * np.std(draws[1:], ddof=1)
    free = interval_of_draws(draws, 2, is_fraction=False)
    assert find_bounds(free) == pytest.approx((0.5 - half, 0.5 + half))
    for values in ([1.0, 1.0, 1.0], [1.0, np.nan, 0.5], [1.0, np.nan, np.nan]):
        assert interval_of_draws(np.array(values), 5) == Estimate(1.0, None, None)
    assert interval_of_draws(np.array([0.5, 0.1, 0.9]), 1) == Estimate(0.5, None, None)


def test_bootstrap_of_one_image() -> None:
    result = bootstrap_interval(lambda values: float(values.sum()), np.array([0.25]))
    assert (result.value, result.low, result.high) == (0.25, 0.25, 0.25)


@given(ANSWERS)
def test_paired_difference_of_accuracies(hits: list[tuple[bool, bool]]) -> None:
    first, second = (np.array(column) for column in zip(*hits, strict=True))
    result = mcnemar_test(first, second)
    signs = first.astype(float) - second
    half = stats.norm.ppf(0.975) * signs.std() / math.sqrt(len(signs))
    assert result.num_images == len(hits)
    assert result.only_first == int((signs > 0).sum())
    assert result.only_second == int((signs < 0).sum())
    assert result.difference.value == pytest.approx(first.mean() - second.mean(), abs=1e-12)
    assert result.difference.low == pytest.approx(signs.mean() - half, abs=1e-7)  # a root of rounding errors
    assert result.difference.high == pytest.approx(signs.mean() + half, abs=1e-7)


@given(ANSWERS)
def test_p_value_equals_exact_mcnemar(hits: list[tuple[bool, bool]]) -> None:
    result = mcnemar_test(*(np.array(column) for column in zip(*hits, strict=True)))
    unlike, fewer = result.only_first + result.only_second, min(result.only_first, result.only_second)
    tail = sum(math.comb(unlike, count) for count in range(fewer + 1)) / 2**unlike
    assert result.p_value == pytest.approx(min(1.0, 2 * tail), rel=1e-9)


@given(ANSWERS)
def test_swapping_models_mirrors_the_result(hits: list[tuple[bool, bool]]) -> None:
    first, second = (np.array(column) for column in zip(*hits, strict=True))
    there, back = mcnemar_test(first, second), mcnemar_test(second, first)
    assert (there.only_first, there.only_second) == (back.only_second, back.only_first)
    assert there.p_value == pytest.approx(back.p_value)
    assert there.difference.low == pytest.approx(-find_bounds(back.difference)[1])


def test_pairing_is_sharper_than_two_intervals() -> None:
    """The same images are hard for both models: only discordant images count."""
    [first] = draw_hits(2000, 0.8)
    second = first.copy()
    second[np.flatnonzero(first)[:30]] = False
    result = mcnemar_test(first, second)
    apart = [wilson_interval(float(hits.mean()), 2000) for hits in (first, second)]
    assert apart[0].low < apart[1].high  # each alone could be as good as the other
    assert find_bounds(result.difference)[0] > 0
    assert result.p_value == pytest.approx(2 * 0.5**30)


def test_equal_predictions_have_p_value_one() -> None:
    [hits] = draw_hits(50, 0.5)
    result = mcnemar_test(hits, hits)
    assert (result.only_first, result.only_second, result.difference.value, result.p_value) == (0, 0, 0, 1)


def test_one_image_has_p_value_one() -> None:
    assert mcnemar_test(np.array([True]), np.array([False])).p_value == 1


def test_hits_of_other_images_cannot_be_paired() -> None:
    with pytest.raises(ValueError, match=r"\(3,\) and \(2,\)"):
        mcnemar_test(np.ones(3, bool), np.ones(2, bool))
    with pytest.raises(ValueError, match=r"\(0,\)"):
        mcnemar_test(np.ones(0, bool), np.ones(0, bool))


@pytest.mark.parametrize("num_images", range(1, 50))
def test_wilson_interval_stays_within_bounds(num_images: int) -> None:
    for num_hits in range(num_images + 1):
        result = wilson_interval(num_hits / num_images, num_images)
        low, high = find_bounds(result)
        assert 0 <= low <= result.value <= high <= 1


def test_estimate_of_one_image_as_json() -> None:
    json.dumps(vars(normal_interval(np.array([2.0]))), allow_nan=False)


@pytest.mark.parametrize("num_new", [None, 50, 1000])
def test_the_interval_holds_what_new_images_give(num_new: int | None) -> None:
    """Accuracies of 300 images each, and of new ones by the same classifier: 95 % of the intervals hold the second."""
    generator = np.random.default_rng(0)
    held = []
    for _ in range(400):
        truth = generator.uniform(0.6, 0.98)
        interval = predictive_interval(generator.binomial(300, truth) / 300, 300, num_new)
        new = truth if num_new is None else generator.binomial(num_new, truth) / num_new
        assert interval.low is not None
        assert interval.high is not None
        held.append(interval.low <= new <= interval.high)
    assert 0.92 < np.mean(held) < 0.99


@pytest.mark.parametrize("sizes", [(10, 20, 50, 200), (3, 500)])
def test_the_mean_over_classes_holds_the_truth(sizes: tuple[int, ...]) -> None:
    """About 95 % of the intervals hold the mean of the true accuracies; 500 draws vary by two points."""
    generator = np.random.default_rng(0)
    counts, held = np.array(sizes), []
    for _ in range(500):
        truth = generator.uniform(0.5, 1.0, len(sizes))
        hits = generator.binomial(counts, truth)
        found = mean_of_fractions(
            [wilson_interval(hit / count, count) for hit, count in zip(hits.tolist(), counts.tolist(), strict=True)]
        )
        assert found.value == pytest.approx((hits / counts).mean())
        assert found.low is not None
        assert found.high is not None
        held.append(found.low <= truth.mean() <= found.high)
    assert 0.93 < np.mean(held) < 0.98
