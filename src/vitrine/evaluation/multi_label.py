"""Evaluate a model for several labels per image: average precision and F1 with bootstrap intervals, and a report per class.

Such a model has a threshold for each class (`Calibration`), and its probabilities are sigmoids. Letters: N images, K classes,
D draws of the bootstrap, the first of which are the images themselves.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
import torch

from vitrine.core.files import make_folder, write_csv
from vitrine.data.open_data import DataLike, open_test
from vitrine.data.preprocessing import Preprocessing
from vitrine.data.source import Source
from vitrine.evaluation.class_mapping import map_classes
from vitrine.evaluation.config import InferenceConfig
from vitrine.evaluation.features import Features
from vitrine.evaluation.intervals import Estimate, count_draws, interval_of_draws, wilson_interval
from vitrine.evaluation.predictor import ModelLike, Predictor
from vitrine.formats.checkpoint import Calibration


@dataclass(frozen=True)
class LabelReport:
    """How well one class is found."""

    name: str
    num_images: int
    """Images that have the label."""
    average_precision: Estimate
    f1: float
    """At the threshold, as are precision and recall."""
    precision: float
    recall: float
    threshold: float


@dataclass(frozen=True)
class MultiLabelReport:
    """Metrics of a model for several labels per image; an image without labels counts like any other."""

    num_images: int
    num_labels: int
    """Labels of all images together."""
    mean_average_precision: Estimate
    """Mean over the classes that have labels."""
    macro_f1: Estimate
    """Mean over the classes that have labels."""
    micro_f1: Estimate
    """F1 of all pairs of an image and a class together."""
    exact_match: Estimate
    """Fraction of images whose labels are all found, without a wrong one."""
    classes: list[LabelReport]
    """Classes that have labels."""


@dataclass(frozen=True)
class MultiLabelResult:
    """Predictions of one model for several labels per image for a dataset, and its report."""

    source: Source
    """The images, labelled with the model's class numbers."""
    preprocessing: Preprocessing
    index: np.ndarray
    """int64 (N): index of each image in its source."""
    probabilities: np.ndarray
    """float32 (N, K)."""
    labels: np.ndarray
    """bool (N, K)."""
    predicted: np.ndarray
    """bool (N, K): classes at or above their threshold."""
    report: MultiLabelReport

    def name_labels(self, row: int) -> str:
        """Return the class names of the labels of an image, by its row."""
        return ", ".join(self.source.class_names[label] for label in np.flatnonzero(self.labels[row])) or "none"


def evaluate_multi_label(
    model: ModelLike,
    data: DataLike,
    split: str | None = None,
    *,
    mapping: str | Path | None = None,
    device: torch.device | str | None = None,
    inference: InferenceConfig | None = None,
) -> MultiLabelResult:
    """Measure mean average precision and F1 of a model for several labels per image.

    The default split is test, else val. `mapping` is a JSON file from classes of the data to classes of the model.
    `write_label_report` writes the table of classes.
    """
    return evaluate_labels(Predictor(model, device, inference, show_progress=True), open_test(data, split), mapping)


def evaluate_labels(predictor: Predictor, source: Source, mapping: str | Path | None = None) -> MultiLabelResult:
    """Predict every image of a source, whose classes are mapped to the model's, and report the metrics."""
    engine = predictor.engine
    if not engine.calibration.has_several_labels:
        raise ValueError("The model has no thresholds for several labels per image: use evaluate, for one class per image.")
    mapped = map_classes(source, engine.class_names, engine.num_classes, mapping)
    return build_label_result(mapped, engine.preprocessing, engine.calibration, predictor.predict_logits(mapped))


def build_label_result(
    source: Source, preprocessing: Preprocessing, calibration: Calibration, logits: Features
) -> MultiLabelResult:
    """Return the result of logits divided by the temperature, `values` (N, K), and targets, `labels` (N) or (N, K)."""
    assert calibration.thresholds is not None
    num_classes = logits.values.shape[1]
    targets = torch.nn.functional.one_hot(logits.labels, num_classes) if logits.labels.ndim == 1 else logits.labels
    probabilities, labels = calibration.to_probabilities(logits.values), targets.numpy() > 0.5
    predicted = calibration.find_labels(probabilities).numpy()
    # Ranked by logits: different ones above 17 have the same probability in single precision.
    report = build_label_report(logits.values.numpy(), labels, predicted, calibration.thresholds, source.class_names)
    return MultiLabelResult(source, preprocessing, logits.index.numpy(), probabilities.numpy(), labels, predicted, report)


def build_label_report(
    scores: np.ndarray,
    labels: np.ndarray,
    predicted: np.ndarray,
    thresholds: Sequence[float],
    class_names: Sequence[str],
) -> MultiLabelReport:
    """Compute all metrics of scores (N, K), which rank the images, with labels and predicted labels bool (N, K)."""
    if not labels.any():
        raise ValueError("None of the images has a label to evaluate on: check the data and its split.")
    num_images, draws = len(labels), count_draws(len(labels))
    columns = zip(scores.T, labels.T, strict=True)
    precisions = np.stack([weigh_average_precision(*column, draws) for column in columns])  # (K, D)
    hits, guesses, truths = (count_pairs(pairs, draws) for pairs in (labels & predicted, predicted, labels))  # (K, D) each
    f1, is_met = compute_f1(hits, guesses, truths), truths > 0
    classes = [
        LabelReport(
            class_names[label],
            int(truths[label, 0]),
            interval_of_draws(precisions[label], int(truths[label, 0])),
            f1=float(f1[label, 0]),
            precision=float(hits[label, 0] / max(1, guesses[label, 0])),
            recall=float(hits[label, 0] / truths[label, 0]),
            threshold=thresholds[label],
        )
        for label in np.flatnonzero(is_met[:, 0]).tolist()
    ]
    return MultiLabelReport(
        num_images=num_images,
        num_labels=int(labels.sum()),
        mean_average_precision=interval_of_draws(mean_where(precisions, is_met), num_images),
        macro_f1=interval_of_draws(mean_where(f1, is_met), num_images),
        micro_f1=interval_of_draws(compute_f1(hits.sum(axis=0), guesses.sum(axis=0), truths.sum(axis=0)), num_images),
        exact_match=wilson_interval(float((labels == predicted).all(axis=1).mean()), num_images),
        classes=classes,
    )


def average_precision(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the average precision of each class float64 (K) from scores and labels (N, K); NaN for a class without labels.

    It is scikit-learn's: the mean precision over the images with the label, each at its own rank, and images of equal score
    at the last rank among them.
    """
    once = np.ones((len(scores), 1), dtype=np.uint8)
    return np.array([weigh_average_precision(*each, once)[0] for each in zip(scores.T, labels.T > 0.5, strict=True)])


def weigh_average_precision(scores: np.ndarray, is_label: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Return the average precision of one class (D) from scores (N), if draw d has image n `draws[n, d]` times."""
    order = np.argsort(-scores)
    scores, hits = scores[order], np.flatnonzero(is_label[order])
    if len(hits) == 0:
        return np.full(draws.shape[1], np.nan)
    last = np.append(np.flatnonzero(scores[1:] != scores[:-1]), len(scores) - 1)  # of the images of each score
    last, first_hits = np.unique(last[np.searchsorted(last, hits)], return_index=True)  # of scores that a label has
    starts = np.append(0, last[:-1] + 1)
    num_images = np.add.reduceat(draws[order[: last[-1] + 1]], starts, axis=0, dtype=np.int64).cumsum(axis=0)
    num_hits = np.add.reduceat(draws[order[hits]], first_hits, axis=0, dtype=np.int64)
    total = num_hits.sum(axis=0)
    sums = (num_hits * num_hits.cumsum(axis=0) / np.maximum(1, num_images)).sum(axis=0)
    return np.where(total > 0, sums / np.maximum(1, total), np.nan)


def count_pairs(pairs: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Return how many pairs of an image and a class, bool (N, K), each draw has of each class, int64 (K, D)."""
    return np.stack([draws[rows].sum(axis=0, dtype=np.int64) for rows in pairs.T])


def compute_f1(hits: np.ndarray, guesses: np.ndarray, truths: np.ndarray) -> np.ndarray:
    """Return F1 from the numbers of labels found, predicted and given; 0 where there are none of them."""
    return 2 * hits / np.maximum(1, guesses + truths)


def mean_where(values: np.ndarray, is_counted: np.ndarray) -> np.ndarray:
    """Return the mean (D) of the values (K, D) that count; NaN where none does."""
    counts = is_counted.sum(axis=0)
    return np.where(counts > 0, np.where(is_counted, values, 0.0).sum(axis=0) / np.maximum(1, counts), np.nan)


def write_label_report(result: MultiLabelResult, out: Path) -> list[str]:
    """Write classes.csv; return the file names."""
    make_folder(out)
    rows = [
        (each.name, each.num_images, *astuple(each.average_precision), each.f1, each.precision, each.recall, each.threshold)
        for each in result.report.classes
    ]
    columns = ("class", "images", "average_precision", "low", "high", "f1", "precision", "recall", "threshold")
    write_csv(out / "classes.csv", columns, rows)
    return ["classes.csv"]
