"""Metrics of several labels per image against scikit-learn, with ties and classes without labels; their intervals."""

import csv
import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit
from sklearn.metrics import average_precision_score, f1_score, precision_score, recall_score

from tests.evaluation.test_predictor import featurise_by_hand, make_classifier
from tests.photos import draw_images
from vitrine.data.open_data import open_data
from vitrine.data.preprocessing import Preprocessing
from vitrine.data.source import ArraySource, Labels, Source
from vitrine.evaluation.classification_report import evaluate
from vitrine.evaluation.config import InferenceConfig
from vitrine.evaluation.features import Features
from vitrine.evaluation.intervals import DEVIATIONS, NUM_DRAWS, Estimate, count_draws, wilson_interval
from vitrine.evaluation.multi_label import (
    MultiLabelReport,
    average_precision,
    build_label_report,
    build_label_result,
    evaluate_labels,
    evaluate_multi_label,
    weigh_average_precision,
    write_label_report,
)
from vitrine.evaluation.predictor import Predictor
from vitrine.formats.checkpoint import Calibration, Checkpoint

INFERENCE = InferenceConfig(batch_size=8, num_workers=0)
THRESHOLDS = (0.4, 0.5, 0.6, 0.3, 0.5)
NAMES = tuple(f"class {number}" for number in range(5))
LABELS = [[0, 1], [2], [], [0, 3, 2], [1], [0], [2, 3], [], [1, 2], [0, 1, 2, 3], [3], [2]]  # none has class 4


def draw_scores(num_images: int, num_classes: int, num_values: int | None, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draw scores, of only a few different values if given, and labels that have something to do with them."""
    random = np.random.default_rng(seed)
    labels = random.random((num_images, num_classes)) < random.uniform(0.05, 0.6, num_classes)
    scores = expit(random.normal(size=labels.shape) + labels).astype(np.float32)
    return scores if num_values is None else (scores * num_values).round() / num_values, labels


def report_on(scores: np.ndarray, labels: np.ndarray, threshold: float = 0.5) -> MultiLabelReport:
    names = [f"class {number}" for number in range(labels.shape[1])]
    return build_label_report(scores, labels, scores >= threshold, [threshold] * labels.shape[1], names)


@pytest.mark.parametrize("num_values", [None, 1, 2, 5, 20])
@pytest.mark.parametrize("num_images", [1, 2, 7, 300])
def test_average_precision_equals_sklearn(num_images: int, num_values: int | None) -> None:
    for seed in range(5):
        scores, labels = draw_scores(num_images, 6, num_values, seed)
        labels[:, 0], labels[:, 1] = False, True
        found = average_precision(scores, labels)
        assert np.isnan(found).tolist() == (~labels.any(axis=0)).tolist()
        for number in np.flatnonzero(labels.any(axis=0)):
            assert found[number] == pytest.approx(average_precision_score(labels[:, number], scores[:, number]), abs=1e-12)
        assert found[1] == 1


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans(), st.integers(0, 3)), min_size=1, max_size=30))
def test_weighted_average_precision_is_that_of_repeated_images(rows: list[tuple[int, bool, int]]) -> None:
    scores, is_label, times = (np.array(column) for column in zip(*rows, strict=True))
    [found] = weigh_average_precision(scores, is_label, times[:, None].astype(np.uint8))
    repeated_scores, repeated_labels = np.repeat(scores, times), np.repeat(is_label, times)
    if repeated_labels.any():
        assert found == pytest.approx(average_precision_score(repeated_labels, repeated_scores), abs=1e-12)
    else:
        assert np.isnan(found)


@pytest.mark.parametrize("num_values", [None, 4])
def test_report_equals_sklearn(num_values: int | None) -> None:
    scores, labels = draw_scores(200, 6, num_values)
    labels[:, 3] = False
    scores[:, 2] = 0.1  # never predicted
    report, predicted, present = report_on(scores, labels), scores >= 0.5, [0, 1, 2, 4, 5]
    assert (report.num_images, report.num_labels) == (200, labels.sum())
    expected = average_precision_score(labels[:, present], scores[:, present], average=None)
    assert [each.average_precision.value for each in report.classes] == pytest.approx(expected.tolist(), abs=1e-12)
    assert report.mean_average_precision.value == pytest.approx(expected.mean(), abs=1e-12)
    assert [each.name for each in report.classes] == [f"class {number}" for number in present]
    assert [each.num_images for each in report.classes] == labels[:, present].sum(axis=0).tolist()
    for name, score in (("f1", f1_score), ("precision", precision_score), ("recall", recall_score)):
        each = score(labels, predicted, average=None, labels=present, zero_division=0)
        assert [getattr(one, name) for one in report.classes] == pytest.approx(each.tolist())
    macro = f1_score(labels, predicted, average="macro", labels=present)
    assert report.macro_f1.value == pytest.approx(macro)
    assert report.micro_f1.value == pytest.approx(f1_score(labels, predicted, average="micro"))
    assert report.exact_match == wilson_interval(float((labels == predicted).all(axis=1).mean()), 200)
    json.dumps(asdict(report), allow_nan=False)


def test_intervals_are_those_of_a_plain_bootstrap() -> None:
    """Compute every metric of each draw again with scikit-learn."""
    scores, labels = draw_scores(90, 3, None, seed=1)
    report, draws = report_on(scores, labels), count_draws(90)
    assert draws.shape == (90, 1 + NUM_DRAWS)
    assert set(draws[:, 0]) == {1}
    assert (draws.sum(axis=0) == 90).all()
    values = []
    for times in draws.T[1:]:
        rows = np.repeat(np.arange(90), times)
        assert labels[rows].any(axis=0).all()
        precision = average_precision_score(labels[rows], scores[rows], average=None)
        f1 = [f1_score(labels[rows], scores[rows] >= 0.5, average=average) for average in ("macro", "micro")]
        values.append([precision.mean(), *f1, *precision])
    halves = DEVIATIONS * np.std(values, axis=0, ddof=1)
    estimates = [report.mean_average_precision, report.macro_f1, report.micro_f1]
    estimates += [each.average_precision for each in report.classes]
    assert (halves > 0.01).all()
    for estimate, half in zip(estimates, halves, strict=True):
        assert estimate.low == pytest.approx(max(0, estimate.value - half))
        assert estimate.high == pytest.approx(min(1, estimate.value + half))


def test_a_single_image_has_no_interval() -> None:
    scores, labels = np.array([[0.9, 0.2], [0.3, 0.8]]), np.array([[True, False], [False, False]])
    report = report_on(scores, labels)
    assert (report.classes[0].average_precision.value, report.classes[0].average_precision.low) == (1, None)
    assert report_on(scores[:1], labels[:1]).mean_average_precision.low is None


def test_metrics_without_mistakes_have_no_bootstrap_interval() -> None:
    labels = np.random.default_rng(0).random((50, 3)) < 0.5
    report = report_on(np.where(labels, 0.9, 0.1), labels)
    assert report.mean_average_precision == report.macro_f1 == report.micro_f1 == Estimate(1.0, None, None)
    assert report.exact_match == wilson_interval(1.0, 50)


def test_images_without_any_label_are_an_error() -> None:
    with pytest.raises(ValueError, match="None of the images"):
        report_on(np.zeros((3, 2)), np.zeros((3, 2), dtype=bool))


def test_saturated_probabilities_are_ranked_by_their_logits() -> None:
    logits = Features(torch.tensor([[30.0], [40.0], [50.0]]), torch.tensor([[0.0], [0.0], [1.0]]), torch.arange(3))
    source = ArraySource(np.zeros((3, 4, 4, 3), np.uint8), Labels.several_each([[], [], [0]]), ("one",), "zeros")
    result = build_label_result(source, Preprocessing(resize=None, crop=(4, 4)), Calibration(thresholds=(0.5,)), logits)
    assert result.report.mean_average_precision.value == 1
    assert (result.probabilities == 1).all()
    assert [result.name_labels(row) for row in range(3)] == ["none", "none", "one"]


def write_labelled_images(folder: Path) -> Path:
    """Write images with several labels each, or none, and their list."""
    draw_images(folder, len(LABELS))
    rows = [(f"{number}.png", ";".join(NAMES[label] for label in labels)) for number, labels in enumerate(LABELS)]
    with (folder / "list.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("image", "labels"), *rows])
    return folder / "list.csv"


def make_multi_label(files: list[Path], temperature: float = 1.0) -> Checkpoint:
    """Make a model with thresholds."""
    return replace(make_classifier(files), calibration=Calibration(temperature, THRESHOLDS))


@torch.no_grad()
def compute_sigmoids(checkpoint: Checkpoint, files: list[Path]) -> np.ndarray:
    """Compute the sigmoid probabilities of all classes (N, K) by hand."""
    logits = checkpoint.model.head(featurise_by_hand(checkpoint, files)).double().numpy()
    return expit(logits / checkpoint.calibration.temperature)


def list_targets() -> np.ndarray:
    return np.array([[label in labels for label in range(5)] for labels in LABELS])


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    write_labelled_images(tmp_path / "photos")
    return [tmp_path / "photos" / f"{number}.png" for number in range(len(LABELS))]


def test_evaluation_of_a_model(files: list[Path], tmp_path: Path) -> None:
    checkpoint, data = make_multi_label(files, temperature=2.0), tmp_path / "photos" / "list.csv"
    result = evaluate_multi_label(checkpoint, data, device="cpu", inference=INFERENCE)
    probabilities, targets = compute_sigmoids(checkpoint, files), list_targets()
    np.testing.assert_allclose(result.probabilities, probabilities, rtol=1e-4)  # single precision
    assert result.source.class_names == NAMES
    assert np.array_equal(result.labels, targets)
    assert np.array_equal(result.predicted, probabilities >= THRESHOLDS)
    assert 0 < result.predicted.sum() < result.predicted.size
    expected = average_precision_score(targets[:, :4], probabilities[:, :4])
    assert result.report.mean_average_precision.value == pytest.approx(expected)
    assert [each.threshold for each in result.report.classes] == list(THRESHOLDS[:4])
    assert result.report.micro_f1.value == pytest.approx(f1_score(targets, result.predicted, average="micro"))
    assert write_label_report(result, tmp_path / "out") == ["classes.csv"]
    with (tmp_path / "out" / "classes.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["class"] for row in rows] == list(NAMES[:4])
    assert [float(row["f1"]) for row in rows] == [each.f1 for each in result.report.classes]
    assert [float(row["low"]) for row in rows] == [each.average_precision.low for each in result.report.classes]


def test_one_label_per_image_is_a_set_of_one(files: list[Path], tmp_path: Path) -> None:
    source: Source = open_data(tmp_path / "photos" / "list.csv")
    single = ArraySource(np.zeros((4, 30, 30, 3), np.uint8), Labels.one_each([0, 1, 2, 0]), NAMES, "zeros")
    predictor = Predictor(make_multi_label(files), "cpu", INFERENCE)
    assert evaluate_labels(predictor, source).report.num_labels == sum(map(len, LABELS))
    result = evaluate_labels(predictor, single)
    assert np.flatnonzero(result.labels).tolist() == [0, 6, 12, 15]


def test_each_kind_of_model_has_its_evaluation(files: list[Path], tmp_path: Path) -> None:
    data = tmp_path / "photos" / "list.csv"
    several, one = make_multi_label(files), make_classifier(files)
    with pytest.raises(ValueError, match="evaluate_multi_label"):
        evaluate(several, data, device="cpu", inference=INFERENCE)
    with pytest.raises(ValueError, match="evaluate_multi_label"):
        evaluate(one, data, against=several, device="cpu", inference=INFERENCE)
    with pytest.raises(ValueError, match="use evaluate"):
        evaluate_multi_label(one, data, device="cpu", inference=INFERENCE)
    report = evaluate(one, data, device="cpu", inference=INFERENCE).report  # as in ReaL: one of the labels is enough
    assert (report.num_images, report.num_left_out, report.loss) == (10, 2, None)


def test_logits_of_a_source_skip_what_cannot_be_read(files: list[Path], tmp_path: Path) -> None:
    checkpoint, source = make_multi_label(files), open_data(tmp_path / "photos" / "list.csv")
    files[3].write_text("no image")
    predictor = Predictor(checkpoint, "cpu", replace(INFERENCE, bad_images="skip"))
    with pytest.warns(UserWarning, match=r"3\.png"):
        logits = predictor.predict_logits(source)
    assert logits.index.tolist() == [0, 1, 2, *range(4, 12)]
    assert logits.values.shape == (11, 5)
    assert logits.labels.shape == (11, 4)  # the classes of the data, before they are mapped to the model's
    kept = [file for number, file in enumerate(files) if number != 3]
    np.testing.assert_allclose(logits.values.sigmoid(), compute_sigmoids(checkpoint, kept), rtol=1e-4)
