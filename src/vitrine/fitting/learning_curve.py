"""Would more photos help? Accuracy against the number of training images, and a power law through it.

Heads are fitted to parts of the training images and measured on images that they were not fitted to. The error above a floor,
which no number of images removes, is taken to fall like a power of their number: log(error - floor) is a straight line over
log(images). Its uncertainty is that of the images, which are drawn again with replacement for each point, and that of the law:
five points do not tell where the floor is, nor from how many images on the law holds. So each draw has another floor, and fits
the line to the last three, four or five points.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitrine.evaluation.intervals import Estimate
from vitrine.fitting.heads import HeadChoice, RotatedRows, Samples, fit_choice

FRACTIONS = (0.125, 0.25, 0.5, 0.75, 1.0)  # of the training images of each class
NUM_DRAWS = 300  # of the bootstrap
QUANTILES = (0.025, 0.975)
MIN_IMAGES, MIN_PER_CLASS = 40, 4  # in all and of the smallest class; below this, a curve says nothing
NUM_STARTS = 3  # points that the line may begin at
FLOORS = (-0.5, 0.8)  # of the error with all images; a negative one lets the error fall faster than a power
MIN_ERRORS = 0.5  # counted where all are right: log(0) is not a number


@dataclass(frozen=True)
class LearningCurve:
    """Accuracy by training images per class, and what the curve says about twice as many."""

    images_per_class: tuple[float, ...]
    """Mean over classes."""
    accuracies: tuple[Estimate, ...]
    doubled_images_per_class: float
    doubled: Estimate
    """Accuracy with twice as many images, extrapolated."""
    gain: Estimate
    """Difference to the accuracy with all images."""


def compute_learning_curve(
    samples: Samples,
    choice: HeadChoice,
    folds: Tensor,
    temperature: float = 1.0,
    seed: int = 0,
    has_time: Callable[[], bool] = lambda: True,
    num_images: int | None = None,
) -> LearningCurve | None:
    """Compute the curve of a head with one label per image; None with too few images or too little time.

    `num_images` is the number of all training images, where `samples` are a part of them.
    """
    counts = torch.bincount(samples.targets, minlength=samples.num_classes)
    if len(samples) < MIN_IMAGES or int(counts.min()) < MIN_PER_CLASS:
        return None
    rotated = RotatedRows(samples)
    ranks = rank_within_class(samples.targets, folds, seed)
    num_folds = len(folds.unique())
    hits, sizes = [], []
    for fraction in FRACTIONS:
        if not has_time():
            return None
        limits = (fraction * counts * (1 - 1 / num_folds)).round().clamp(min=1)
        hits.append(measure_part(rotated, samples, choice, temperature, folds, ranks < limits[samples.targets]))
        sizes.append(float(limits.mean()))
    table = np.stack(hits)  # (fractions, N)
    generator = np.random.default_rng(seed)
    means = np.stack([draw_means(table, generator) for _ in range(NUM_DRAWS)])  # (draws, fractions)
    # The last point is of (folds - 1) / folds of the images; all of them, and twice as many, lie on the line beyond it.
    now = sizes[-1] * num_folds / (num_folds - 1) * (num_images or len(samples)) / len(samples)
    doubled = 2 * now
    lines = np.array([extrapolate(mean, sizes, (now, doubled), table.shape[1], generator) for mean in means])
    return LearningCurve(
        images_per_class=tuple(sizes),
        accuracies=tuple(estimate(table[row].mean(), means[:, row]) for row in range(len(table))),
        doubled_images_per_class=doubled,
        doubled=estimate(float(np.median(lines[:, 1])), lines[:, 1]),
        gain=estimate(float(np.median(lines[:, 1] - lines[:, 0])), lines[:, 1] - lines[:, 0]),
    )


def draw_means(table: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Return the accuracy at each fraction on images that are drawn again with replacement.

    For each fraction others, because the training images of each fraction were drawn too: the same ones would make the slope
    look more certain than it is.
    """
    return np.array([row[generator.integers(len(row), size=len(row))].mean() for row in table])


def rank_within_class(targets: Tensor, folds: Tensor, seed: int) -> Tensor:
    """Return for each image (N) its place in a random order of its class; for each fold, the fold's own images come last.

    So the first images of a class are the same in all folds, as far as they can be: (folds, N) flattened by fold.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(targets), generator=generator)
    ranks = torch.empty(len(folds.unique()), len(targets), dtype=torch.int64)
    for number, fold in enumerate(folds.unique()):
        is_out = folds[order] == fold
        ordered = torch.cat([order[~is_out], order[is_out]])
        by_class = ordered[targets[ordered].argsort(stable=True)]
        counts = torch.bincount(targets)
        starts = counts.cumsum(dim=0) - counts
        ranks[number, by_class] = torch.arange(len(targets)) - starts[targets[by_class]]
    return ranks


def measure_part(
    rotated: RotatedRows, samples: Samples, choice: HeadChoice, temperature: float, folds: Tensor, is_used: Tensor
) -> np.ndarray:
    """Return which images (N) heads classify correctly that were fitted to the used images of the other folds (folds, N)."""
    hits = torch.zeros(len(samples), dtype=torch.bool)
    for number, fold in enumerate(folds.unique()):
        is_out = folds == fold
        fitted = (is_used[number] & ~is_out).repeat(rotated.num_views)
        targets = samples.targets.repeat(rotated.num_views)[fitted]
        weight, bias, offsets = fit_choice(rotated.rows[fitted], targets, samples.num_classes, choice)
        scores = rotated.rows[: len(samples)][is_out] @ weight.T + bias + temperature * offsets
        hits[is_out] = scores.argmax(dim=1) == samples.targets[is_out]
    return hits.numpy()


def extrapolate(
    accuracies: np.ndarray, sizes: list[float], targets: tuple[float, ...], num_images: int, generator: np.random.Generator
) -> list[float]:
    """Return the accuracies at other sizes, with a floor and a first point that are drawn at random."""
    start, floor = int(generator.integers(NUM_STARTS)), generator.uniform(*FLOORS) * (1 - accuracies[-1])
    return fit_power_law(accuracies[start:], sizes[start:], targets, num_images, floor)


def fit_power_law(
    accuracies: np.ndarray, sizes: list[float], targets: tuple[float, ...], num_images: int, floor: float = 0.0
) -> list[float]:
    """Return the accuracies at other sizes on the line through log(error - floor) over log(size); errors never grow."""
    errors = np.maximum(1 - accuracies, MIN_ERRORS / num_images)
    above = np.maximum(errors - floor, MIN_ERRORS / num_images)
    weights = above / np.sqrt(errors * (1 - errors) / num_images + 1e-12)  # 1 / the standard deviation of log(above)
    slope, offset = np.polyfit(np.log(sizes), np.log(above), 1, w=weights)
    slope = min(0.0, float(slope))
    if slope == 0.0:
        offset = float(np.average(np.log(above), weights=weights**2))
    return [1 - min(1.0, max(0.0, floor + float(np.exp(offset + slope * np.log(size))))) for size in targets]


def estimate(value: float, draws: np.ndarray) -> Estimate:
    """Return a value with the interval that holds 95 % of the draws."""
    low, high = np.quantile(draws, QUANTILES)
    return Estimate(float(value), min(float(low), float(value)), max(float(high), float(value)))
