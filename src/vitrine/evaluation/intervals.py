"""Uncertainty of metrics: over seeds, over test images, and of the difference of two models on the same images."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np

DEVIATIONS = 1.959963984540054  # 95 % of a normal distribution lie within so many standard deviations
NUM_DRAWS = 300  # of the bootstrap


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation of a metric over seeds."""

    mean: float
    std: float | None
    """Sample standard deviation (divisor n - 1); None for a single seed."""


@dataclass(frozen=True)
class Estimate:
    """A metric with its 95 % interval."""

    value: float
    low: float | None
    """None if there is no interval, e.g. of a single image."""
    high: float | None


@dataclass(frozen=True)
class Paired:
    """Two models on the same images, and McNemar's test of their difference."""

    num_images: int
    only_first: int
    """Images that only the first model classifies correctly."""
    only_second: int
    difference: Estimate
    """Accuracy of the first model minus that of the second."""
    p_value: float
    """Probability of a split at least as uneven if both models were equally good (exact test)."""


def compute_spread(values: Sequence[float]) -> Spread:
    """Return mean and sample standard deviation of a metric over seeds."""
    return Spread(fmean(values), stdev(values) if len(values) > 1 else None)


def wilson_interval(fraction: float, num_images: int) -> Estimate:
    """Return an accuracy with Wilson's 95 % interval, which stays within 0..1 and holds near both ends.

    For a mean accuracy over seeds the interval is conservative: predictions that differ between seeds vary less.
    """
    z2 = DEVIATIONS**2
    centre = (fraction + z2 / (2 * num_images)) / (1 + z2 / num_images)
    half = math.sqrt(z2 * (fraction * (1 - fraction) / num_images + z2 / (4 * num_images**2))) / (1 + z2 / num_images)
    return Estimate(fraction, min(fraction, max(0.0, centre - half)), max(fraction, min(1.0, centre + half)))


def predictive_interval(accuracy: float, num_images: int, num_new: int | None) -> Estimate:
    """Return the 95 % interval for the accuracy on new images, from the accuracy on images that a model was not fitted to.

    It is the Beta distribution of the true accuracy (Jeffreys' prior); for a test set of `num_new` images, with its own chance.
    """
    from scipy.stats import beta, betabinom

    num_hits = accuracy * num_images
    a, b = num_hits + 0.5, num_images - num_hits + 0.5
    if num_new is None:
        low, high = beta.ppf((0.025, 0.975), a, b)
    else:
        low, high = betabinom.ppf((0.025, 0.975), num_new, a, b) / num_new
    return Estimate(accuracy, min(float(low), accuracy), max(float(high), accuracy))


def mean_of_fractions(parts: Sequence[Estimate]) -> Estimate:
    """Return the mean of independent fractions that have Wilson's intervals, e.g. of the accuracy of each class.

    Each side is computed by itself from the distances to the ends of the intervals (MOVER, Zou and Donner 2008), because those
    of a class with few mistakes are lopsided, and one without a mistake is not certain.
    """
    ends = [(each.low, each.high) for each in parts if each.low is not None and each.high is not None]
    assert len(ends) == len(parts)
    mean = fmean(each.value for each in parts)
    below = math.sqrt(sum((each.value - low) ** 2 for each, (low, _) in zip(parts, ends, strict=True))) / len(parts)
    above = math.sqrt(sum((high - each.value) ** 2 for each, (_, high) in zip(parts, ends, strict=True))) / len(parts)
    return Estimate(mean, mean - below, mean + above)


def normal_interval(values: np.ndarray) -> Estimate:
    """Return the mean of a value that every image has, e.g. its loss, with a normal 95 % interval."""
    mean = float(values.mean())
    if len(values) == 1:
        return Estimate(mean, None, None)
    half = DEVIATIONS * float(values.std(ddof=1)) / math.sqrt(len(values))
    return Estimate(mean, mean - half, mean + half)


def bootstrap_interval(compute: Callable[..., float], *columns: np.ndarray, is_signed: bool = False) -> Estimate:
    """Return a metric that is not a mean over images, e.g. the calibration error, with a bootstrap 95 % interval.

    The interval is made of the standard deviation over draws, not of their quantiles: a metric made of distances is biased
    upwards by images that are drawn twice. It ends at 0, unless the metric is signed, e.g. a difference.
    """
    value, generator = compute(*columns), np.random.default_rng(0)
    num_images = len(columns[0])
    draws = (generator.integers(num_images, size=num_images) for _ in range(NUM_DRAWS))
    half = DEVIATIONS * float(np.std([compute(*(column[draw] for column in columns)) for draw in draws], ddof=1))
    return Estimate(value, value - half if is_signed else max(0.0, value - half), value + half)


def count_draws(num_images: int, num_draws: int = NUM_DRAWS) -> np.ndarray:
    """Return how often each draw of the bootstrap has each image, uint8 (N, 1 + draws); the first column is 1 for all.

    For metrics that can be computed of all draws at once.
    """
    generator = np.random.default_rng(0)
    draws = [generator.integers(num_images, size=num_images) for _ in range(num_draws)]
    counts = [np.ones(num_images), *(np.bincount(draw, minlength=num_images) for draw in draws)]
    return np.stack([each.astype(np.uint8) for each in counts], axis=1)


def interval_of_draws(values: np.ndarray, num_images: int, *, is_fraction: bool = True) -> Estimate:
    """Return a metric with its bootstrap 95 % interval, which stays in 0..1 if it is a fraction.

    It is computed from the values of the metric in the columns of `count_draws`. Draws in which it is not defined are NaN. The
    interval is made as in `bootstrap_interval`. A single image gives none, nor does a metric that is the same in all draws,
    e.g. 1: that says nothing about other images.
    """
    value, draws = float(values[0]), values[1:][~np.isnan(values[1:])]
    half = DEVIATIONS * float(draws.std(ddof=1)) if len(draws) > 1 else 0.0
    if num_images == 1 or half == 0:
        return Estimate(value, None, None)
    low, high = value - half, value + half
    return Estimate(value, max(0.0, low), min(1.0, high)) if is_fraction else Estimate(value, low, high)


def mcnemar_test(first: np.ndarray, second: np.ndarray) -> Paired:
    """Compare two models by which images each classifies correctly: bool (N) each, in the same order."""
    from scipy.stats import binomtest

    if first.shape != second.shape or len(first) == 0:
        raise ValueError(f"Hits of shapes {first.shape} and {second.shape} cannot be paired: use the same images for both.")
    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    num_images, num_discordant = len(first), only_first + only_second
    difference = (only_first - only_second) / num_images
    half = DEVIATIONS * math.sqrt(max(0.0, num_discordant / num_images - difference**2) / num_images)
    return Paired(
        num_images=num_images,
        only_first=only_first,
        only_second=only_second,
        difference=Estimate(difference, difference - half, difference + half),
        p_value=float(binomtest(only_first, num_discordant).pvalue) if num_discordant else 1.0,
    )
