"""Evaluate_classifier, report, figures.

All that is said of a classifier: its figures with their uncertainty, each class by itself, what is taken for what.

Letters: N images, K classes.
Pictures of how a classifier errs: what is taken for what, and the mistakes that it was surest of.
A classifier judged on someone's images, two of them compared, and what is written of it for people to look at.
"""

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
import torch

from vitrine.core.files import make_folder, write_csv
from vitrine.core.html_report import save_figure, shorten_label
from vitrine.data.source import Labels, Source
from vitrine.evaluation.class_mapping import map_classes
from vitrine.evaluation.config import AS_USUAL, InferenceConfig
from vitrine.evaluation.intervals import Estimate, Paired, bootstrap_interval, mcnemar_test, normal_interval, wilson_interval
from vitrine.evaluation.predictor import answer_images
from vitrine.evaluation.topk import TopK
from vitrine.formats.checkpoint import Checkpoint

NUM_BINS = 15  # of confidence, of equal width (arXiv:1706.04599)


@dataclass(frozen=True)
class ClassReport:
    name: str
    num_images: int
    top1: Estimate
    mistaken_for: str | None
    """The most frequent wrong answer, if there is any."""


@dataclass(frozen=True)
class ClassificationReport:
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


def build_report(answers: TopK, labels: Labels, class_names: Sequence[str]) -> ClassificationReport:
    """`labels` are the source's, which `answers` count by index."""
    counted = answers.take(answers.counts)
    if len(counted) == 0:
        raise ValueError("There is no image with a label to evaluate on: check the data and its split.")
    hits, confidences = counted.hits[:, 0].numpy(), counted.probabilities[:, 0].numpy().astype(np.float64)
    num_images = len(counted)
    return ClassificationReport(
        num_images=num_images,
        num_left_out=len(answers) - num_images,
        top1=wilson_interval(float(hits.mean()), num_images),
        top5=wilson_interval(float(counted.hits[:, :5].any(dim=1).double().mean()), num_images),
        loss=None if labels.has_several else normal_interval(counted.losses.double().numpy()),
        calibration_error=bootstrap_interval(compute_calibration_error, confidences, hits),
        classes=[] if labels.has_several else report_classes(count_confusions(counted, labels, len(class_names)), class_names),
    )


def compute_calibration_error(confidences: np.ndarray, hits: np.ndarray) -> float:
    """The expected calibration error of first answers: float64 (N) in 0..1, and bool (N)."""
    bins = np.minimum((confidences * NUM_BINS).astype(np.int64), NUM_BINS - 1)
    distances = np.bincount(bins, confidences - hits, minlength=NUM_BINS)  # summed over each bin
    return float(np.abs(distances).sum() / len(hits))


def count_confusions(answers: TopK, labels: Labels, num_classes: int) -> np.ndarray:
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
        classes.append(ClassReport(class_names[label], num_images, wilson_interval(num_hits / num_images, num_images), wrong))
    return classes


def find_mistakes(answers: TopK, limit: int) -> TopK:
    """The wrong first answers that the model was surest of, the surest first."""
    wrong = answers.take(answers.counts & ~answers.hits[:, 0])
    return wrong.take(wrong.probabilities[:, 0].argsort(descending=True, stable=True)[:limit])


MOST_NAMED = 60  # classes whose names can be read beside a matrix
MOST_COUNTED = 20  # classes whose counts can be read within it
COLUMNS = 5


def draw_confusions(confusions: np.ndarray, class_names: Sequence[str], path: Path) -> None:
    """A matrix (K, K) as `count_confusions` has it, each row as shares of its class, written as PNG."""
    from matplotlib.figure import Figure

    num_classes = len(class_names)
    shares = confusions / np.maximum(1, confusions.sum(axis=1, keepdims=True))
    is_named = num_classes <= MOST_NAMED
    side = 4.0 + (0.22 * num_classes if is_named else 5.0)
    figure = Figure(figsize=(side + 1.0, side), dpi=110, layout="constrained")
    panel = figure.add_subplot()
    image = panel.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0, interpolation="nearest")
    panel.set_xlabel("answer", fontsize=11)
    panel.set_ylabel("label", fontsize=11)
    if is_named:
        names = [shorten_label(name) for name in class_names]
        panel.set_xticks(range(num_classes), names, rotation=90, fontsize=8, parse_math=False)
        panel.set_yticks(range(num_classes), names, fontsize=8, parse_math=False)
    if num_classes <= MOST_COUNTED:
        for row, column in zip(*np.nonzero(confusions), strict=True):
            colour = "white" if shares[row, column] > 0.5 else "black"
            panel.text(column, row, str(confusions[row, column]), ha="center", va="center", fontsize=8, color=colour)
    figure.colorbar(image, ax=panel, shrink=0.6, label="share of the images with this label")
    save_figure(figure, path)


def draw_mistakes(images: Sequence[np.ndarray], titles: Sequence[tuple[str, str]], path: Path) -> None:
    """Images (H, W, C) as bytes in a grid, each under the answer to it and above its label."""
    from matplotlib.figure import Figure

    num_rows = math.ceil(len(images) / COLUMNS)
    figure = Figure(figsize=(2.3 * COLUMNS, 2.75 * num_rows), dpi=110, layout="constrained")
    for place, (image, (answer, label)) in enumerate(zip(images, titles, strict=True), start=1):
        panel = figure.add_subplot(num_rows, COLUMNS, place)
        panel.imshow(image if image.shape[2] == 3 else image[..., 0], cmap="gray", vmin=0, vmax=255)
        panel.set_title(shorten_label(answer), fontsize=9, color="#b3253a", parse_math=False)
        panel.set_xlabel(shorten_label(label), fontsize=9, parse_math=False)
        panel.set_xticks([])
        panel.set_yticks([])
    save_figure(figure, path)


NUM_MISTAKES = 20


@dataclass(frozen=True)
class EvaluationResult:
    checkpoint: Checkpoint
    source: Source
    """With labels in the model's numbers."""
    answers: TopK
    report: ClassificationReport

    def name_answer(self, row: int) -> str:
        return self.source.class_names[int(self.answers.classes[row, 0])]

    def name_labels(self, index: int) -> str:
        return ", ".join(self.source.class_names[label] for label in self.source.labels.as_tuple(index))


@dataclass(frozen=True)
class Difference:
    """An image that one of two models has right and the other has not."""

    image: str
    label: str
    first: str
    second: str
    right: str
    """first or second."""


def evaluate_classifier(
    checkpoint: Checkpoint,
    source: Source,
    reading: InferenceConfig = AS_USUAL,
    device: torch.device | str = "cpu",
    mapping: Path | None = None,
) -> EvaluationResult:
    """`source` has its own classes, which are found among the model's."""
    fitted = map_classes(source, checkpoint.class_names, checkpoint.model.config.num_classes, mapping)
    answers = answer_images(checkpoint, fitted, reading, device)
    return EvaluationResult(checkpoint, fitted, answers, build_report(answers, fitted.labels, fitted.class_names))


def compare_classifiers(first: EvaluationResult, second: EvaluationResult) -> tuple[Paired, list[Difference]]:
    """Of two models on the same images, those that have a label for both."""
    rows = [{index: row for row, index in enumerate(judged.answers.index.tolist())} for judged in (first, second)]
    counts = [set(judged.answers.index[judged.answers.counts].tolist()) for judged in (first, second)]
    common = sorted(counts[0] & counts[1])  # of images that are skipped, each model may skip others
    hits = [
        judged.answers.hits[[places[index] for index in common], 0].numpy()
        for judged, places in zip((first, second), rows, strict=True)
    ]
    differences = [
        Difference(
            image=first.source.name(index),
            label=first.name_labels(index),
            first=first.name_answer(rows[0][index]),
            second=second.name_answer(rows[1][index]),
            right="first" if is_right else "second",
        )
        for index, is_right, is_other in zip(common, *hits, strict=True)
        if is_right != is_other
    ]
    return mcnemar_test(*hits), differences


def write_findings(judged: EvaluationResult, out: Path) -> list[str]:
    """The table of classes, the matrix of what is taken for what, and the surest mistakes; returns the names of the files."""
    make_folder(out)
    written = []
    (out / "mistakes.png").unlink(missing_ok=True)  # of a model that made some
    if judged.report.classes:
        rows = [(c.name, c.num_images, c.top1.value, c.top1.low, c.top1.high, c.mistaken_for) for c in judged.report.classes]
        write_csv(out / "classes.csv", ("class", "images", "top1", "low", "high", "mistaken_for"), rows)
        names = judged.source.class_names
        draw_confusions(count_confusions(judged.answers, judged.source.labels, len(names)), names, out / "confusion.png")
        written += ["classes.csv", "confusion.png"]
    mistakes = find_mistakes(judged.answers, NUM_MISTAKES)
    if len(mistakes) > 0:
        draw_sure_mistakes(judged, mistakes, out / "mistakes.png")
        written.append("mistakes.png")
    return written


def draw_sure_mistakes(judged: EvaluationResult, mistakes: TopK, path: Path) -> None:
    """As the model saw them."""
    images, titles = [], []
    for row, index in enumerate(mistakes.index.tolist()):
        pixels = judged.checkpoint.preprocessing.prepare(judged.source.read(index)[0].to_pil())  # (C, H, W)
        images.append(pixels.permute(1, 2, 0).numpy())
        answer = judged.source.class_names[int(mistakes.classes[row, 0])]
        titles.append((f"{mistakes.probabilities[row, 0]:.0%} {answer}", judged.name_labels(index)))
    draw_mistakes(images, titles, path)


def write_differences(differences: Sequence[Difference], path: Path) -> None:
    write_csv(path, [field.name for field in fields(Difference)], map(astuple, differences))
