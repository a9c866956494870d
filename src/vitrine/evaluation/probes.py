"""What frozen features are good for as they are: logistic regression, nearest neighbours, nearest class means.

Letters: N images to train on, M to test on, D features, K classes.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vitrine.core.console import warn_user
from vitrine.evaluation.config import ProbeConfig, ProbeKind
from vitrine.evaluation.features import Features, FeatureSplit
from vitrine.evaluation.few_shot import list_rows_by_class
from vitrine.evaluation.linear_heads import Standardiser, sum_by_class

CHUNK = 1024  # test images compared with all training images at once: a bound on memory
MAX_ITERATIONS = 1000


@dataclass(frozen=True)
class Probe:
    kind: ProbeKind
    setting: str
    """What was given or chosen, in words."""
    hits: np.ndarray
    """bool (M): which test images it has right."""

    @property
    def accuracy(self) -> float:
        return float(self.hits.mean())


def fit_probe(kind: ProbeKind, split: FeatureSplit, config: ProbeConfig) -> Probe:
    answers, setting = PROBES[kind](split, config)
    return Probe(kind, setting, answers == split.test.labels.numpy())


def fit_logistic(split: FeatureSplit, config: ProbeConfig) -> tuple[np.ndarray, str]:
    """On standardised features, with the penalty that is best on held-out images; of several alike, the strongest."""
    train = split.train
    fitted, held_out = hold_out_rows(split, config)
    part, rest = (Features(train.values[rows], train.labels[rows], train.index[rows]) for rows in (fitted, held_out))
    shares = {penalty: np.mean(predict_logistic(part, rest, penalty) == rest.labels.numpy()) for penalty in config.penalties}
    best = max(sorted(shares, reverse=True), key=lambda penalty: shares[penalty])
    return predict_logistic(train, split.test, best), f"penalty {best:g}, of {len(shares)} on {len(rest)} held-out images"


def predict_logistic(train: Features, test: Features, penalty: float) -> np.ndarray:
    """The classes int64 (M) of the test images."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    standardiser, standardised = Standardiser.fit_and_apply(train.values)
    classifier = LogisticRegression(C=1 / (penalty * len(train)), max_iter=MAX_ITERATIONS)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        classifier.fit(standardised.numpy(), train.labels.numpy())
    if any(issubclass(warning.category, ConvergenceWarning) for warning in caught):
        warn_user(
            f"Logistic regression with penalty {penalty:g} was stopped after {MAX_ITERATIONS} iterations, before its end."
        )
    return np.asarray(classifier.predict(standardiser.apply(test.values).numpy()))


def hold_out_rows(split: FeatureSplit, config: ProbeConfig) -> tuple[Tensor, Tensor]:
    """What is left, and a share of each class; of a class with one image, nothing."""
    generator = np.random.default_rng(config.seed)
    rows = [generator.permutation(each) for each in list_rows_by_class(split.train, split.num_classes)]
    if sum(len(each) > 0 for each in rows) < 2:
        raise ValueError("All images to train on are of one class, and two or more were needed: check the data.")
    if max(map(len, rows)) < 2:
        raise ValueError(
            "Logistic regression holds images out to choose its penalty, and every class has one only: give more, or take "
            "another probe."
        )
    sizes = [0 if len(each) < 2 else max(1, round(config.choice_share * len(each))) for each in rows]
    sizes = [min(size, max(0, len(each) - 1)) for size, each in zip(sizes, rows, strict=True)]
    held_out = np.concatenate([each[:size] for each, size in zip(rows, sizes, strict=True)])
    fitted = np.concatenate([each[size:] for each, size in zip(rows, sizes, strict=True)])
    return torch.from_numpy(fitted), torch.from_numpy(held_out)


def find_neighbours(split: FeatureSplit, config: ProbeConfig) -> tuple[np.ndarray, str]:
    """The votes of the nearest training images by cosine, the nearer the heavier."""
    known, asked = F.normalize(split.train.values), F.normalize(split.test.values)
    num_neighbours = min(config.num_neighbours, len(known))
    answers = []
    for chunk in asked.split(CHUNK):
        nearest = (chunk @ known.T).topk(num_neighbours, dim=1)  # (chunk, neighbours)
        votes = torch.zeros(len(chunk), split.num_classes)
        # Less the nearest one's, which changes no answer: exp(1 / temperature) can be more than a float holds.
        weights = ((nearest.values - nearest.values[:, :1]) / config.temperature).exp()
        votes.scatter_add_(1, split.train.labels[nearest.indices], weights)
        answers.append(votes.argmax(dim=1))
    return torch.cat(answers).numpy(), f"{num_neighbours} neighbours, temperature {config.temperature:g}"


def find_nearest_mean(split: FeatureSplit, config: ProbeConfig) -> tuple[np.ndarray, str]:
    """The class whose mean direction is nearest by cosine; one without training images is never the answer."""
    directions, labels = F.normalize(split.train.values), split.train.labels
    sums = sum_by_class(directions, labels, split.num_classes)
    scores = F.normalize(split.test.values) @ F.normalize(sums).T  # (M, K)
    scores[:, torch.bincount(labels, minlength=split.num_classes) == 0] = -torch.inf
    return scores.argmax(dim=1).numpy(), "cosine"


PROBES: dict[ProbeKind, Callable[[FeatureSplit, ProbeConfig], tuple[np.ndarray, str]]] = {
    "logistic": fit_logistic,
    "neighbours": find_neighbours,
    "means": find_nearest_mean,
}
