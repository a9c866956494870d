"""Probes of frozen features: logistic regression, nearest neighbours, nearest class means.

`probe` is the command of that name. Letters: N training images, M test images, D features, K classes.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vitrine.core.console import progress_bar, warn_user
from vitrine.data.open_data import DataLike
from vitrine.evaluation.config import InferenceConfig, ProbeConfig, ProbeKind
from vitrine.evaluation.features import Features, FeatureSplit
from vitrine.evaluation.few_shot import list_rows_by_class
from vitrine.evaluation.intervals import Estimate, wilson_interval
from vitrine.evaluation.linear_heads import Standardiser, sum_by_class
from vitrine.evaluation.predictor import ModelLike, Predictor, extract_split

CHUNK_SIZE = 1024  # test images compared with all training images at once: bounds memory
MAX_ITERATIONS = 1000
# Settings of a single kind of probe.
PROBE_SETTINGS: dict[str, ProbeKind] = {
    "penalties": "logistic",
    "choice_share": "logistic",
    "num_neighbours": "neighbours",
    "temperature": "neighbours",
}


@dataclass(frozen=True)
class Probe:
    """A classifier fitted to frozen features, and which test images it classifies correctly."""

    kind: ProbeKind
    setting: str
    """Hyperparameters that were given or chosen, as text."""
    hits: np.ndarray
    """bool (M)."""

    @property
    def accuracy(self) -> float:
        return float(self.hits.mean())

    @property
    def top1(self) -> Estimate:
        """Accuracy with its 95 % interval."""
        return wilson_interval(self.accuracy, len(self.hits))


@dataclass(frozen=True)
class ProbeResult:
    """What `probe` returns."""

    num_train_images: int
    num_test_images: int
    probes: list[Probe]


def probe(
    model: ModelLike,
    data: DataLike,
    kinds: Sequence[ProbeKind] = get_args(ProbeKind),
    config: ProbeConfig | None = None,
    *,
    held_out: float | None = None,
    subset: str = "all",
    device: torch.device | str | None = None,
    inference: InferenceConfig | None = None,
    use_cache: bool = True,
) -> ProbeResult:
    """Fit each kind of probe to the training features of labelled data and test it."""
    config = config or ProbeConfig()
    for name, kind in PROBE_SETTINGS.items():
        if kind not in kinds and getattr(config, name) != getattr(ProbeConfig, name):
            raise ValueError(f"{name}={getattr(config, name)} has no effect without the probe {kind}: leave it out.")
    predictor = Predictor(model, device, inference, show_progress=True)
    split = extract_split(predictor, data, held_out, subset, config.seed, use_cache)
    probes = [fit_probe(kind, split, config) for kind in progress_bar(kinds, len(kinds), "fitting probes")]
    return ProbeResult(len(split.train), len(split.test), probes)


def fit_probe(kind: ProbeKind, split: FeatureSplit, config: ProbeConfig) -> Probe:
    """Fit one probe to the training features and classify the test images."""
    predictions, setting = PROBES[kind](split, config)
    return Probe(kind, setting, predictions == split.test.labels.numpy())


def classify_by_logistic_regression(split: FeatureSplit, config: ProbeConfig) -> tuple[np.ndarray, str]:
    """Return test predictions and setting, with the penalty that is best on held-out images; of equals, the strongest."""
    train = split.train
    fitted, held_out = hold_out_rows(split, config)
    part, rest = (Features(train.values[rows], train.labels[rows], train.index[rows]) for rows in (fitted, held_out))
    accuracies = {penalty: np.mean(fit_logistic(part, rest, penalty) == rest.labels.numpy()) for penalty in config.penalties}
    best = max(sorted(accuracies, reverse=True), key=lambda penalty: accuracies[penalty])
    return fit_logistic(train, split.test, best), f"penalty {best:g}, of {len(accuracies)} on {len(rest)} held-out images"


def fit_logistic(train: Features, test: Features, penalty: float) -> np.ndarray:
    """Fit logistic regression to standardised features; return the predicted classes int64 (M) of the test images."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    standardiser, standardised = Standardiser.fit_and_apply(train.values)
    classifier = LogisticRegression(C=1 / (penalty * len(train)), max_iter=MAX_ITERATIONS)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        classifier.fit(standardised.numpy(), train.labels.numpy())
    if any(issubclass(warning.category, ConvergenceWarning) for warning in caught):
        warn_user(f"Logistic regression with penalty {penalty:g} did not converge in {MAX_ITERATIONS} iterations.")
    return np.asarray(classifier.predict(standardiser.apply(test.values).numpy()))


def hold_out_rows(split: FeatureSplit, config: ProbeConfig) -> tuple[Tensor, Tensor]:
    """Divide the training rows into those to fit and those held out: a fraction of each class with two images or more."""
    generator = np.random.default_rng(config.seed)
    rows = [generator.permutation(each) for each in list_rows_by_class(split.train, split.num_classes)]
    if sum(len(each) > 0 for each in rows) < 2:
        raise ValueError("All training images are of one class; at least two are needed: check the data.")
    if max(map(len, rows)) < 2:
        raise ValueError("Each class has only one training image; logistic regression needs more: use another probe.")
    sizes = [min(max(1, round(config.choice_share * len(each))), max(0, len(each) - 1)) for each in rows]
    held_out = np.concatenate([each[:size] for each, size in zip(rows, sizes, strict=True)])
    fitted = np.concatenate([each[size:] for each, size in zip(rows, sizes, strict=True)])
    return torch.from_numpy(fitted), torch.from_numpy(held_out)


def classify_by_neighbours(split: FeatureSplit, config: ProbeConfig) -> tuple[np.ndarray, str]:
    """Return test predictions by votes of the nearest training images, weighted by cosine, and the setting."""
    train, test = F.normalize(split.train.values), F.normalize(split.test.values)
    num_neighbours = min(config.num_neighbours, len(train))
    predictions = []
    for chunk in test.split(CHUNK_SIZE):
        nearest = (chunk @ train.T).topk(num_neighbours, dim=1)  # (chunk, neighbours)
        votes = torch.zeros(len(chunk), split.num_classes)
        # Relative to the nearest one, which changes no prediction: exp(1 / temperature) can overflow.
        weights = ((nearest.values - nearest.values[:, :1]) / config.temperature).exp()
        votes.scatter_add_(1, split.train.labels[nearest.indices], weights)
        predictions.append(votes.argmax(dim=1))
    return torch.cat(predictions).numpy(), f"{num_neighbours} neighbours, temperature {config.temperature:g}"


def classify_by_class_means(split: FeatureSplit, config: ProbeConfig) -> tuple[np.ndarray, str]:
    """Return for each test image the class with the nearest mean direction by cosine; classes without images never win."""
    directions, labels = F.normalize(split.train.values), split.train.labels
    sums = sum_by_class(directions, labels, split.num_classes)
    scores = F.normalize(split.test.values) @ F.normalize(sums).T  # (M, K)
    scores[:, torch.bincount(labels, minlength=split.num_classes) == 0] = -torch.inf
    return scores.argmax(dim=1).numpy(), "cosine"


PROBES: dict[ProbeKind, Callable[[FeatureSplit, ProbeConfig], tuple[np.ndarray, str]]] = {
    "logistic": classify_by_logistic_regression,
    "neighbours": classify_by_neighbours,
    "means": classify_by_class_means,
}
