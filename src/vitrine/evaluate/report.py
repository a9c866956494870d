"""All that is said of a classifier: its figures with their uncertainty, each class by itself, what is taken for what.

Letters: N images, K classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitrine.data.source import Labels
from vitrine.evaluate.answers import Answers
from vitrine.evaluate.uncertainty import Estimate, estimate_mean, estimate_share, estimate_with_bootstrap

NUM_BINS = 15  # of confidence, of equal width (arXiv:1706.04599)


@dataclass(frozen=True)
class ClassReport:
    name: str
    num_images: int
    top1: Estimate
    mistaken_for: str | None
    """The most frequent wrong answer, if there is any."""


@dataclass(frozen=True)
class Report:
    num_images: int
    num_left_out: int
    """Images without a label, of which nothing can be said."""
    top1: Estimate
    top5: Estimate
    loss: Estimate | None
    """Softmax cross-entropy; None where images have several labels."""
    calibration_error: Estimate
    """Mean distance of confidence and accuracy over bins of confidence."""
    classes: list[ClassReport]
    """Those that have images; none where images have several labels."""


def build_report(answers: Answers, labels: Labels, class_names: Sequence[str]) -> Report:
    """`labels` are the source's, which `answers` count by index."""
    counted = answers.take(answers.counts)
    if len(counted) == 0:
        raise ValueError("There is no image with a label to evaluate on: check the data and its split.")
    hits, confidences = counted.hits[:, 0].numpy(), counted.probabilities[:, 0].numpy().astype(np.float64)
    num_images = len(counted)
    return Report(
        num_images=num_images,
        num_left_out=len(answers) - num_images,
        top1=estimate_share(float(hits.mean()), num_images),
        top5=estimate_share(float(counted.hits[:, :5].any(dim=1).double().mean()), num_images),
        loss=None if labels.has_several else estimate_mean(counted.losses.double().numpy()),
        calibration_error=estimate_with_bootstrap(compute_calibration_error, confidences, hits),
        classes=[] if labels.has_several else report_classes(count_confusions(counted, labels, len(class_names)), class_names),
    )


def compute_calibration_error(confidences: np.ndarray, hits: np.ndarray) -> float:
    """The expected calibration error of first answers: float64 (N) in 0..1, and bool (N)."""
    bins = np.minimum((confidences * NUM_BINS).astype(np.int64), NUM_BINS - 1)
    distances = np.bincount(bins, confidences - hits, minlength=NUM_BINS)  # summed over each bin
    return float(np.abs(distances).sum() / len(hits))


def count_confusions(answers: Answers, labels: Labels, num_classes: int) -> np.ndarray:
    """int64 (K, K): images of each class, by row, that were given each answer, by column."""
    truth = labels.values[answers.index.numpy()]
    pairs = truth * num_classes + answers.classes[:, 0].numpy()
    return np.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)


def report_classes(confusions: np.ndarray, class_names: Sequence[str]) -> list[ClassReport]:
    classes = []
    for label in np.flatnonzero(confusions.sum(axis=1)).tolist():
        row = confusions[label].copy()
        num_images, num_hits = int(row.sum()), int(row[label])
        row[label] = 0
        wrong = class_names[int(row.argmax())] if row.any() else None
        classes.append(ClassReport(class_names[label], num_images, estimate_share(num_hits / num_images, num_images), wrong))
    return classes


def find_mistakes(answers: Answers, limit: int) -> Answers:
    """The wrong first answers that the model was surest of, the surest first."""
    wrong = answers.take(answers.counts & ~answers.hits[:, 0])
    return wrong.take(wrong.probabilities[:, 0].argsort(descending=True, stable=True)[:limit])
