"""Frontiers against closed forms and numpy's own fit: parallel lines, dominated runs, families without common accuracy.

Shapes: M models, S seeds.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from vitrine.studies.claims import ratio_interval
from vitrine.studies.frontier import compare_frontiers, find_frontier, find_middle, fit_frontier

COMPUTE = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])


@given(st.floats(-2, 2), st.floats(0.1, 3), st.floats(0.2, 5))
def test_parallel_lines_give_their_ratio(intercept: float, slope: float, ratio: float) -> None:
    """A family that needs `ratio` times the compute has the line of the other, shifted by b ln(ratio)."""
    first = fit_frontier(COMPUTE, intercept + slope * np.log(COMPUTE))
    second = fit_frontier(COMPUTE, intercept + slope * (np.log(COMPUTE) - np.log(ratio)))
    assert float(first.slope) == pytest.approx(slope)
    assert float(first.intercept) == pytest.approx(intercept, abs=1e-9)
    assert float(np.exp(compare_frontiers(first, second))) == pytest.approx(ratio)


def test_lines_that_cross_are_compared_in_the_middle_of_what_both_cover() -> None:
    """logit = ln C from 0 to ln 32, and logit = 2 ln C - 1 from -1: the middle is half of ln 32."""
    first, second = fit_frontier(COMPUTE, np.log(COMPUTE)), fit_frontier(COMPUTE, 2 * np.log(COMPUTE) - 1)
    middle = np.log(32) / 2
    assert float(find_middle(first, second)) == pytest.approx(middle)
    assert float(compare_frontiers(first, second)) == pytest.approx((middle + 1) / 2 - middle)


@given(arrays(int, 6, elements=st.integers(0, 20)))
def test_the_line_is_that_of_numpy_through_the_runs_that_no_cheaper_one_matches(hits: np.ndarray) -> None:
    accuracies = hits / 20
    best = [index for index in range(6) if all(accuracies[other] < accuracies[index] for other in range(index))]
    assert np.flatnonzero(find_frontier(COMPUTE, accuracies)).tolist() == best
    fitted = fit_frontier(COMPUTE, accuracies)
    assert int(fitted.num_points) == len(best)
    if len(best) < 3:
        assert not fitted.is_fitted
        return
    assert fitted.slope > 0
    slope, intercept = np.polyfit(np.log(COMPUTE[best]), accuracies[best], 1)
    assert (float(fitted.slope), float(fitted.intercept)) == pytest.approx((slope, intercept), rel=1e-6, abs=1e-9)


def test_the_order_of_runs_does_not_matter() -> None:
    order = np.array([3, 0, 5, 1, 4, 2])
    accuracies = np.array([0.1, 0.5, 0.3, 0.6, 0.6, 0.9])
    found = find_frontier(COMPUTE[order], accuracies[order])
    assert sorted(order[found].tolist()) == [0, 1, 3, 5]  # 2 is beaten by 1; 4 is no better than 3, which is cheaper


def test_a_run_that_is_beaten_changes_nothing() -> None:
    logits = np.log(COMPUTE)
    beaten = fit_frontier(np.append(COMPUTE, 12.0), np.append(logits, -5.0))
    assert float(beaten.slope) == pytest.approx(1)
    assert float(beaten.low) == 0.0


@pytest.mark.parametrize(("compute", "logits"), [([1.0], [0.0]), ([1.0, 2.0], [0.0, 1.0]), ([1.0, 2.0, 4.0], [0.0, 1.0, 0.5])])
def test_too_few_points_have_no_line(compute: list[float], logits: list[float]) -> None:
    fitted = fit_frontier(np.array(compute), np.array(logits))
    assert not fitted.is_fitted
    other = fit_frontier(COMPUTE, np.log(COMPUTE))
    assert np.isnan(compare_frontiers(other, fitted))


def test_families_without_common_accuracy_are_not_compared() -> None:
    low, high = fit_frontier(COMPUTE, np.log(COMPUTE)), fit_frontier(COMPUTE, np.log(COMPUTE) + 4)
    assert np.isnan(compare_frontiers(low, high))
    assert np.isnan(find_middle(low, high))


def test_each_seed_and_draw_has_a_fit_of_its_own() -> None:
    logits = np.random.default_rng(0).normal(size=(7, 2, 6)).cumsum(axis=-1)
    compute = np.stack([COMPUTE, 3 * COMPUTE])  # (S, M)
    fitted = fit_frontier(compute, logits)
    assert fitted.slope.shape == (7, 2)
    alone = fit_frontier(compute[1], logits[4, 1])
    assert float(fitted.low[4, 1]) == float(alone.low)
    assert float(fitted.slope[4, 1]) == pytest.approx(float(alone.slope), nan_ok=True)
    assert fitted.predict(np.zeros(3)).shape == (7, 2, 3)


def test_a_planted_ratio_lies_in_its_interval_at_95_percent() -> None:
    """Of 400 studies with 4 seeds; chance is 1.1 %. The noise is so small that no run is beaten by a cheaper one."""
    random, ratio = np.random.default_rng(0), 1.7
    noise = 0.03 * random.normal(size=(2, 400, 4, 6))
    first = fit_frontier(COMPUTE, np.log(COMPUTE) + noise[0])
    second = fit_frontier(COMPUTE, np.log(COMPUTE / ratio) + noise[1])
    intervals = [ratio_interval(each.tolist()) for each in np.exp(compare_frontiers(first, second))]
    inside = [(each.low or 0) <= ratio <= (each.high or 0) for each in intervals]
    assert np.mean(inside) == pytest.approx(0.95, abs=0.03)
