"""Calibration: temperature of logits, thresholds, rejection of unsure answers, and how accurate the sure ones are.

Everything here is fitted to images that the head was not fitted to. Letters: N images, K classes.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

LOG_SCALES = (math.log(1e-3), math.log(1e3))  # bounds of 1 / temperature
WANTED_ACCURACY = 0.95  # of the answers that are not rejected
MIN_COVERAGE = 0.1  # fraction of images; a classifier that is hardly ever sure is not to be rejected into silence
NUM_CURVE_POINTS = 50
SIGNIFICANCE = 0.05


@dataclass(frozen=True)
class Coverage:
    """Fraction of images answered and accuracy of these answers, for thresholds of confidence from low to high."""

    thresholds: tuple[float, ...]
    coverage: tuple[float, ...]
    accuracy: tuple[float, ...]


def compute_log_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the log loss of each image (N): softmax cross-entropy, or for several labels (N, K) the mean over classes."""
    if targets.ndim == 2:
        return F.binary_cross_entropy_with_logits(logits, targets.to(logits), reduction="none").mean(dim=1)
    return F.cross_entropy(logits, targets, reduction="none")


def fit_temperature(scores: Tensor, targets: Tensor, offsets: Tensor | None = None, weights: Tensor | None = None) -> float:
    """Return the temperature with the smallest log loss of scores (N, K) / temperature + offsets (arXiv:1706.04599).

    Labels are smoothed as if one image in all had any label: without it, no temperature is too low if there is no mistake.
    """
    from scipy.optimize import minimize_scalar

    smoothing = 1 / len(scores)
    added = torch.zeros_like(scores[0]) if offsets is None else offsets
    weighed = torch.ones(len(scores), dtype=scores.dtype) if weights is None else weights
    smooth = smoothing / 2 + (1 - smoothing) * targets.to(scores) if targets.ndim == 2 else None

    def measure(log_scale: float) -> float:
        logits = math.exp(log_scale) * scores + added
        if smooth is not None:
            return (weighed * compute_log_losses(logits, smooth)).mean().item()
        return (weighed * F.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)).mean().item()

    found: Any = minimize_scalar(measure, bounds=LOG_SCALES, method="bounded")
    return math.exp(-float(found.x))


def compute_p_value(new: Tensor, old: Tensor) -> float:
    """Return the probability of new losses (N) that are lower by as much if both were equally good.

    A one-sided t-test of the differences on the same images.
    """
    from scipy.stats import ttest_1samp

    difference = (old - new).numpy()
    test: Any = ttest_1samp(difference, 0.0, alternative="greater") if difference.std() > 0 else None
    return 1.0 if test is None else float(test.pvalue)


def choose_rejection(confidences: np.ndarray, hits: np.ndarray) -> float | None:
    """Return the lowest confidence from which on 95 % of the answers are right.

    None if all answers together are as accurate, or if hardly any would be left.
    """
    order = np.argsort(-confidences, kind="stable")
    accuracy = np.cumsum(hits[order]) / np.arange(1, len(hits) + 1)  # of the surest 1, 2, ... images
    if accuracy[-1] >= WANTED_ACCURACY:
        return None
    accurate = np.flatnonzero(accuracy >= WANTED_ACCURACY)
    if len(accurate) == 0 or accurate[-1] + 1 < MIN_COVERAGE * len(hits):
        return None
    return float(confidences[order[accurate[-1]]])


def compute_coverage(confidences: np.ndarray, hits: np.ndarray) -> Coverage:
    """Return coverage and accuracy at thresholds between the lowest and the highest confidence."""
    order = np.argsort(-confidences, kind="stable")
    accuracy = np.cumsum(hits[order]) / np.arange(1, len(hits) + 1)
    last = np.unique(np.linspace(0, len(hits) - 1, min(NUM_CURVE_POINTS, len(hits))).round().astype(np.int64))[::-1]
    columns = confidences[order[last]], (last + 1) / len(hits), accuracy[last]
    return Coverage(*(tuple(map(float, column)) for column in columns))


def choose_thresholds(probabilities: np.ndarray, labels: np.ndarray) -> tuple[float, ...]:
    """Return for each class the probability from which it is taken for a label, with the largest F1; both are (N, K).

    It lies halfway between two images. A class without labels, or with nothing else, has 0.5.
    """
    thresholds = []
    for column, is_label in zip(probabilities.T, labels.T > 0.5, strict=True):
        if not 0 < is_label.sum() < len(is_label):
            thresholds.append(0.5)
            continue
        order = np.argsort(-column, kind="stable")
        sure, hits = column[order], np.cumsum(is_label[order])
        f1 = 2 * hits / (np.arange(1, len(hits) + 1) + is_label.sum())
        f1[:-1][sure[:-1] == sure[1:]] = -1  # images of equal probability are taken together
        best = int(f1.argmax())
        below = sure[best + 1] if best + 1 < len(sure) else 0.0
        thresholds.append(float((sure[best] + below) / 2))
    return tuple(thresholds)
