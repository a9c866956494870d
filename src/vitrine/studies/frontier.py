"""Accuracy that a family of models reaches for its compute: the runs that no cheaper one matches, and a line through them.

The logit of the accuracy is linear in the logarithm of the compute, logit = a + b ln(compute), by least squares. All arrays
may have leading axes, e.g. seeds or draws of the bootstrap, each with a fit of its own.

Shapes: ... leading axes, M models of a family.
"""

from dataclasses import dataclass

import numpy as np

MIN_POINTS = 3  # of a line, so that it says something about their spread


@dataclass(frozen=True)
class Frontier:
    """Fitted frontiers (...); intercept and slope are NaN where no line can be fitted."""

    intercept: np.ndarray
    slope: np.ndarray
    low: np.ndarray
    """Lowest logit of a run on the frontier."""
    high: np.ndarray
    """Highest logit of a run on the frontier."""
    num_points: np.ndarray

    @property
    def is_fitted(self) -> np.ndarray:
        return ~np.isnan(self.slope)

    def predict(self, log_compute: np.ndarray) -> np.ndarray:
        """Return the logits (..., X) that the lines have at logarithms of compute (X)."""
        return self.intercept[..., None] + self.slope[..., None] * log_compute

    def invert(self, logits: np.ndarray) -> np.ndarray:
        """Return the logarithm of the compute at which each line has its logit (...)."""
        return (logits - self.intercept) / self.slope


def find_frontier(compute: np.ndarray, accuracies: np.ndarray) -> np.ndarray:
    """Return which runs no cheaper run of the family matches in accuracy, bool (..., M)."""
    is_cheaper = compute[..., None, :] < compute[..., :, None]  # (..., M, M): whether the last is cheaper
    is_matched = accuracies[..., None, :] >= accuracies[..., :, None]
    return np.logical_not((is_cheaper & is_matched).any(axis=-1))


def fit_frontier(compute: np.ndarray, logits: np.ndarray) -> Frontier:
    """Fit a line through the frontier of compute and logits (..., M); less than three points give none.

    A line always goes up, because each run on the frontier is better than all cheaper ones.
    """
    compute, logits = np.broadcast_arrays(compute, logits)
    is_kept = find_frontier(compute, logits)
    num_points = is_kept.sum(axis=-1)
    x, mean_x = center(np.log(compute), is_kept)
    y, mean_y = center(logits, is_kept)
    with np.errstate(divide="ignore", invalid="ignore"):  # a single run has no slope
        slope = (x * y).sum(axis=-1) / (x * x).sum(axis=-1)
    slope = np.where(num_points >= MIN_POINTS, slope, np.nan)
    return Frontier(
        intercept=mean_y - slope * mean_x,
        slope=slope,
        low=np.where(is_kept, logits, np.inf).min(axis=-1),
        high=np.where(is_kept, logits, -np.inf).max(axis=-1),
        num_points=num_points,
    )


def center(values: np.ndarray, is_kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the kept values minus their mean (..., M), 0 for the others, and the mean (...)."""
    mean = (values * is_kept).sum(axis=-1) / is_kept.sum(axis=-1)
    return (values - mean[..., None]) * is_kept, mean


def find_middle(first: Frontier, second: Frontier) -> np.ndarray:
    """Return the middle of the logits (...) that both frontiers cover; NaN where they have none in common."""
    low, high = np.maximum(first.low, second.low), np.minimum(first.high, second.high)
    return np.where(low < high, (low + high) / 2, np.nan)


def compare_frontiers(first: Frontier, second: Frontier) -> np.ndarray:
    """Return the logarithm of how many times the compute of the first the second needs for the same accuracy (...).

    The accuracy is the middle of what both cover. Where there is none, or a frontier has no line, the result is NaN.
    """
    middle = find_middle(first, second)
    return second.invert(middle) - first.invert(middle)
