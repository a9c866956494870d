"""How sure a figure is: over seeds, over test images, and of the difference of two models on the same images."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np

DEVIATIONS = 1.959963984540054  # of a normal distribution, within which 95 % of it lie
NUM_DRAWS = 300  # of the bootstrap


@dataclass(frozen=True)
class Spread:
    """Of one figure over the seeds."""

    mean: float
    std: float | None
    """With n - 1; None for a single one."""


@dataclass(frozen=True)
class Estimate:
    """A figure, and where it would lie for 95 of 100 sets of as many images."""

    value: float
    low: float | None
    """None where a single image says nothing of others."""
    high: float | None


@dataclass(frozen=True)
class Paired:
    """Two models on the same images."""

    num_images: int
    only_first: int
    """Images that the first one alone has right."""
    only_second: int
    difference: Estimate
    """Accuracy of the first less that of the second."""
    p_value: float
    """Of so uneven a split, or a more uneven one, were both as good (McNemar's exact test)."""


def compute_spread(figures: Sequence[float]) -> Spread:
    return Spread(fmean(figures), stdev(figures) if len(figures) > 1 else None)


def wilson_interval(share: float, num_images: int) -> Estimate:
    """Wilson's interval, which stays within 0..1 and holds for shares near them.

    For a mean of accuracies over seeds it is an upper bound: answers that differ from seed to seed vary less.
    """
    z2 = DEVIATIONS**2
    centre = (share + z2 / (2 * num_images)) / (1 + z2 / num_images)
    half = math.sqrt(z2 * (share * (1 - share) / num_images + z2 / (4 * num_images**2))) / (1 + z2 / num_images)
    return Estimate(share, min(share, max(0.0, centre - half)), max(share, min(1.0, centre + half)))


def normal_interval(values: np.ndarray) -> Estimate:
    """Of a figure that every image has, as its loss; by the normal distribution of means."""
    mean = float(values.mean())
    if len(values) == 1:
        return Estimate(mean, None, None)
    half = DEVIATIONS * float(values.std(ddof=1)) / math.sqrt(len(values))
    return Estimate(mean, mean - half, mean + half)


def bootstrap_interval(compute: Callable[..., float], *columns: np.ndarray) -> Estimate:
    """Of a figure that is no mean over images: by how much it varies when as many of them are drawn again and again.

    Its std is taken, not its quantiles, because a figure of distances is larger for images that were drawn twice.
    """
    value, generator = compute(*columns), np.random.default_rng(0)
    num_images = len(columns[0])
    draws = (generator.integers(num_images, size=num_images) for _ in range(NUM_DRAWS))
    half = DEVIATIONS * float(np.std([compute(*(column[draw] for column in columns)) for draw in draws], ddof=1))
    return Estimate(value, max(0.0, value - half), value + half)


def mcnemar_test(first: np.ndarray, second: np.ndarray) -> Paired:
    """Of what each has right, bool (N), the same image at the same place."""
    from scipy.stats import binomtest

    if first.shape != second.shape or len(first) == 0:
        raise ValueError(f"Answers of shapes {first.shape} and {second.shape} cannot be paired: give both for the same images.")
    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    num_images, num_unlike = len(first), only_first + only_second
    difference = (only_first - only_second) / num_images
    half = DEVIATIONS * math.sqrt(max(0.0, num_unlike / num_images - difference**2) / num_images)
    return Paired(
        num_images=num_images,
        only_first=only_first,
        only_second=only_second,
        difference=Estimate(difference, difference - half, difference + half),
        p_value=float(binomtest(only_first, num_unlike).pvalue) if num_unlike else 1.0,
    )
