"""Evaluate a classifier: metrics with 95 % intervals, a report for each class, figures, and a paired comparison of two models.

`evaluate` is the command of that name. Letters: N images, K classes.
"""

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
import torch

from vitrine.core.figures import MORE, build_colormap, figure_style, save_figure, shorten_label
from vitrine.core.files import make_folder, write_csv
from vitrine.data.open_data import DataLike, open_test
from vitrine.data.preprocessing import Preprocessing
from vitrine.data.source import Labels, Source
from vitrine.evaluation.class_mapping import map_classes
from vitrine.evaluation.config import InferenceConfig
from vitrine.evaluation.intervals import (
    Estimate,
    Paired,
    bootstrap_interval,
    mcnemar_test,
    mean_of_fractions,
    normal_interval,
    wilson_interval,
)
from vitrine.evaluation.predictor import ModelLike, Predictor
from vitrine.evaluation.topk import TopK

NUM_BINS = 15  # of confidence, of equal width (arXiv:1706.04599)
NUM_MISTAKES = 20  # drawn in mistakes.png
MISTAKES_PER_ROW = 5
MAX_NAMED_CLASSES = 60  # more names would not be legible beside a confusion matrix
MAX_COUNTED_CLASSES = 20  # more counts would not be legible within it


@dataclass(frozen=True)
class ClassReport:
    """Accuracy on the images of one class."""

    name: str
    num_images: int
    top1: Estimate
    mistaken_for: str | None
    """The most frequent wrong prediction; None if all are right."""


@dataclass(frozen=True)
class ClassificationReport:
    """Metrics of a classifier on a dataset."""

    num_images: int
    num_left_out: int
    """Images without a label, which do not count."""
    top1: Estimate
    top5: Estimate
    loss: Estimate | None
    """Softmax cross-entropy; None for images with several labels."""
    calibration_error: Estimate
    """Expected calibration error: mean distance between confidence and accuracy over bins of confidence."""
    classes: list[ClassReport]
    """Classes that have images; empty for images with several labels."""
    macro_top1: Estimate | None = None
    """Mean accuracy over classes, which weighs small classes like large ones; None for images with several labels."""


@dataclass(frozen=True)
class EvaluationResult:
    """Predictions of one classifier for a dataset, and its report."""

    source: Source
    """The images, labelled with the model's class numbers."""
    preprocessing: Preprocessing
    predictions: TopK
    report: ClassificationReport

    @property
    def counted(self) -> TopK:
        """The predictions of images that have a label."""
        return self.predictions.take(self.predictions.has_label)

    def name_prediction(self, row: int) -> str:
        """Return the class name of the first prediction in a row of `predictions`."""
        return self.source.class_names[int(self.predictions.classes[row, 0])]

    def name_labels(self, index: int) -> str:
        """Return the class names of an image's labels."""
        return ", ".join(self.source.class_names[label] for label in self.source.labels.as_tuple(index))


@dataclass(frozen=True)
class Difference:
    """An image that only one of two models classifies correctly."""

    image: str
    label: str
    first: str
    second: str
    right: str
    """first or second."""


@dataclass(frozen=True)
class Comparison:
    """Two models on the same images."""

    paired: Paired
    differences: list[Difference]


@dataclass(frozen=True)
class EvaluationSummary:
    """What `evaluate` returns: the model's result and, if it was compared with another, that one's result too."""

    result: EvaluationResult
    against: EvaluationResult | None = None
    comparison: Comparison | None = None

    @property
    def report(self) -> ClassificationReport:
        return self.result.report


def evaluate(
    model: ModelLike,
    data: DataLike,
    split: str | None = None,
    *,
    mapping: str | Path | None = None,
    against: ModelLike | None = None,
    device: torch.device | str | None = None,
    inference: InferenceConfig | None = None,
) -> EvaluationSummary:
    """Measure top-1, top-5, loss and calibration error of a classifier, and compare it with another one if given.

    The default split is test, else val. `mapping` is a JSON file from classes of the data to classes of the model.
    `write_report` writes tables and figures of the result.
    """
    source = open_test(data, split)
    predictor = Predictor(model, device, inference, show_progress=True)
    # Loaded before the first evaluation, so that a wrong path does not cost its time.
    other = None if against is None else Predictor(against, device, inference, show_progress=True)
    if any(each.engine.calibration.has_several_labels for each in (predictor, other) if each is not None):
        found = "A model with thresholds for several labels per image was given"
        raise ValueError(f"{found}; evaluate is for one class per image: use evaluate_multi_label.")
    first = evaluate_classifier(predictor, source, mapping)
    if other is None:
        return EvaluationSummary(first)
    second = evaluate_classifier(other, source, mapping)
    return EvaluationSummary(first, second, compare_classifiers(first, second))


def evaluate_classifier(predictor: Predictor, source: Source, mapping: str | Path | None = None) -> EvaluationResult:
    """Predict every image of a source, whose classes are mapped to the model's, and report the metrics."""
    mapped = map_classes(source, predictor.engine.class_names, predictor.engine.num_classes, mapping)
    predictions = predictor.predict_source(mapped)
    report = build_report(predictions, mapped.labels, mapped.class_names)
    return EvaluationResult(mapped, predictor.engine.preprocessing, predictions, report)


def compare_classifiers(first: EvaluationResult, second: EvaluationResult) -> Comparison:
    """Compare two models on the images that have a label for both."""
    results = (first, second)
    rows = [{index: row for row, index in enumerate(result.predictions.index.tolist())} for result in results]
    labelled = [set(result.predictions.index[result.predictions.has_label].tolist()) for result in results]
    common = sorted(labelled[0] & labelled[1])  # each model may have skipped other unreadable images
    hits = [
        result.predictions.hits[[row_of[index] for index in common], 0].numpy()
        for result, row_of in zip(results, rows, strict=True)
    ]
    differences = [
        Difference(
            first.source.name(index),
            first.name_labels(index),
            *(result.name_prediction(row_of[index]) for result, row_of in zip(results, rows, strict=True)),
            right="first" if first_is_right else "second",
        )
        for index, first_is_right, second_is_right in zip(common, *hits, strict=True)
        if first_is_right != second_is_right
    ]
    return Comparison(mcnemar_test(*hits), differences)


def build_report(predictions: TopK, labels: Labels, class_names: Sequence[str]) -> ClassificationReport:
    """Compute all metrics of predictions, whose `index` points into `labels`."""
    counted = predictions.take(predictions.has_label)
    if len(counted) == 0:
        raise ValueError("There are no images with a label to evaluate on: check the data and its split.")
    hits, confidences = counted.hits[:, 0].numpy(), counted.probabilities[:, 0].numpy().astype(np.float64)
    num_images = len(counted)
    classes = [] if labels.has_several else report_classes(list_confusions(counted, labels), class_names)
    return ClassificationReport(
        num_images=num_images,
        num_left_out=len(predictions) - num_images,
        top1=wilson_interval(float(hits.mean()), num_images),
        top5=wilson_interval(float(counted.hits[:, :5].any(dim=1).double().mean()), num_images),
        loss=None if labels.has_several else normal_interval(counted.losses.double().numpy()),
        calibration_error=bootstrap_interval(compute_calibration_error, confidences, hits),
        classes=classes,
        macro_top1=mean_of_fractions([each.top1 for each in classes]) if classes else None,
    )


def compute_calibration_error(confidences: np.ndarray, hits: np.ndarray) -> float:
    """Compute the expected calibration error from confidences float64 (N) in 0..1 and correctness bool (N)."""
    bins = np.minimum((confidences * NUM_BINS).astype(np.int64), NUM_BINS - 1)
    distances = np.bincount(bins, confidences - hits, minlength=NUM_BINS)  # summed over each bin
    return float(np.abs(distances).sum() / len(hits))


def count_confusions(predictions: TopK, labels: Labels, num_classes: int) -> np.ndarray:
    """Return the confusion matrix int64 (K, K): labels by row, first predictions by column."""
    truth = labels.values[predictions.index.numpy()]
    pairs = truth * num_classes + predictions.classes[:, 0].numpy()
    return np.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)


def list_confusions(predictions: TopK, labels: Labels) -> np.ndarray:
    """Return the entries of the confusion matrix that are not 0, int64 (P, 3): label, prediction and count, in order.

    The matrix itself would need gigabytes for tens of thousands of classes.
    """
    truth = labels.values[predictions.index.numpy()]
    pairs, counts = np.unique(np.stack([truth, predictions.classes[:, 0].numpy()], axis=1), axis=0, return_counts=True)
    return np.concatenate([pairs, counts[:, None]], axis=1)


def report_classes(confusions: np.ndarray, class_names: Sequence[str]) -> list[ClassReport]:
    """Return accuracy and most frequent mistake of each class that has images, from `list_confusions`."""
    classes = []
    labels, starts = np.unique(confusions[:, 0], return_index=True)
    for label, entries in zip(map(int, labels), np.split(confusions, starts[1:]), strict=True):
        is_hit = entries[:, 1] == label
        num_images, num_hits = int(entries[:, 2].sum()), int(entries[is_hit, 2].sum())
        wrong = entries[~is_hit]
        mistaken_for = class_names[int(wrong[wrong[:, 2].argmax(), 1])] if len(wrong) else None
        accuracy = wilson_interval(num_hits / num_images, num_images)
        classes.append(ClassReport(class_names[label], num_images, accuracy, mistaken_for))
    return classes


def find_mistakes(predictions: TopK, limit: int) -> TopK:
    """Return the wrong first predictions with the highest confidence, the most confident first."""
    wrong = predictions.take(predictions.has_label & ~predictions.hits[:, 0])
    return wrong.take(wrong.probabilities[:, 0].argsort(descending=True, stable=True)[:limit])


def write_report(evaluation: EvaluationSummary, out: Path) -> list[str]:
    """Write classes.csv, confusion.png, mistakes.png and, for a comparison, differences.csv; return the file names."""
    make_folder(out)
    result, written = evaluation.result, []
    (out / "mistakes.png").unlink(missing_ok=True)  # left by an earlier evaluation that had mistakes
    if result.report.classes:
        rows = [(c.name, c.num_images, c.top1.value, c.top1.low, c.top1.high, c.mistaken_for) for c in result.report.classes]
        write_csv(out / "classes.csv", ("class", "images", "top1", "low", "high", "mistaken_for"), rows)
        names = result.source.class_names
        draw_confusions(count_confusions(result.predictions, result.source.labels, len(names)), names, out / "confusion.png")
        written += ["classes.csv", "confusion.png"]
    mistakes = find_mistakes(result.predictions, NUM_MISTAKES)
    if len(mistakes) > 0:
        images, titles = [], []
        for row, index in enumerate(mistakes.index.tolist()):
            pixels = result.preprocessing.prepare(result.source.read(index)[0].to_pil())  # (C, H, W), as the model sees it
            images.append(pixels.permute(1, 2, 0).numpy())
            prediction = result.source.class_names[int(mistakes.classes[row, 0])]
            titles.append((f"{mistakes.probabilities[row, 0]:.0%} {prediction}", result.name_labels(index)))
        draw_mistakes(images, titles, out / "mistakes.png")
        written.append("mistakes.png")
    if evaluation.comparison is not None:
        columns = [field.name for field in fields(Difference)]
        write_csv(out / "differences.csv", columns, [astuple(each) for each in evaluation.comparison.differences])
        written.append("differences.csv")
    return written


@figure_style()
def draw_confusions(confusions: np.ndarray, class_names: Sequence[str], path: Path) -> None:
    """Draw a confusion matrix (K, K), each row as fractions of its class, to a PNG file."""
    from matplotlib.figure import Figure

    num_classes = len(class_names)
    fractions = confusions / np.maximum(1, confusions.sum(axis=1, keepdims=True))
    is_named = num_classes <= MAX_NAMED_CLASSES
    side = 4.0 + (0.22 * num_classes if is_named else 5.0)
    figure = Figure(figsize=(side + 1.0, side), dpi=110, layout="constrained")
    panel = figure.add_subplot()
    image = panel.imshow(fractions, cmap=build_colormap(("#ffffff", MORE)), vmin=0.0, vmax=1.0, interpolation="nearest")
    panel.grid(visible=False)
    panel.set_xlabel("prediction", fontsize=11)
    panel.set_ylabel("label", fontsize=11)
    if is_named:
        names = [shorten_label(name) for name in class_names]
        panel.set_xticks(range(num_classes), names, rotation=90, fontsize=8, parse_math=False)
        panel.set_yticks(range(num_classes), names, fontsize=8, parse_math=False)
    if num_classes <= MAX_COUNTED_CLASSES:
        for row, column in zip(*np.nonzero(confusions), strict=True):
            colour = "white" if fractions[row, column] > 0.5 else "black"
            panel.text(column, row, str(confusions[row, column]), ha="center", va="center", fontsize=8, color=colour)
    figure.colorbar(image, ax=panel, shrink=0.6, label="fraction of the images with this label")
    save_figure(figure, path)


@figure_style()
def draw_mistakes(images: Sequence[np.ndarray], titles: Sequence[tuple[str, str]], path: Path) -> None:
    """Draw images uint8 (H, W, C) in a grid, each with its prediction above and its label below, to a PNG file."""
    from matplotlib.figure import Figure

    num_rows = math.ceil(len(images) / MISTAKES_PER_ROW)
    figure = Figure(figsize=(2.3 * MISTAKES_PER_ROW, 2.75 * num_rows), dpi=110, layout="constrained")
    for position, (image, (prediction, label)) in enumerate(zip(images, titles, strict=True), start=1):
        panel = figure.add_subplot(num_rows, MISTAKES_PER_ROW, position)
        panel.imshow(image if image.shape[2] == 3 else image[..., 0], cmap="gray", vmin=0, vmax=255)
        panel.set_title(shorten_label(prediction), fontsize=9, color="#a8321f", loc="center", parse_math=False)
        panel.set_xlabel(shorten_label(label), fontsize=9, parse_math=False)
        panel.set(xticks=[], yticks=[])
    save_figure(figure, path)
