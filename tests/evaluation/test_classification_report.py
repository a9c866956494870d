"""Evaluation of small models on small data sets, against scikit-learn, scipy and metrics counted by hand; its figures."""

import csv
import itertools
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from scipy.special import softmax
from scipy.stats import binomtest, norm, sem
from sklearn.metrics import accuracy_score, confusion_matrix, log_loss, recall_score, top_k_accuracy_score
from torch import Tensor

from tests.data.sources.test_imagenet import make_imagenet
from tests.formats import cases
from tests.formats.cases import make_checkpoint
from vitrine.core.console import VitrineWarning
from vitrine.data.batch import Batch
from vitrine.data.open_data import open_data, open_test
from vitrine.data.source import Labels, Source
from vitrine.data.wrappers import RelabelledSource
from vitrine.evaluation import classification_report
from vitrine.evaluation.classification_report import (
    Comparison,
    Difference,
    EvaluationResult,
    EvaluationSummary,
    build_report,
    compare_classifiers,
    compute_calibration_error,
    count_confusions,
    draw_confusions,
    draw_mistakes,
    evaluate,
    evaluate_classifier,
    find_mistakes,
    list_confusions,
    report_classes,
    write_report,
)
from vitrine.evaluation.config import InferenceConfig
from vitrine.evaluation.intervals import mcnemar_test
from vitrine.evaluation.predictor import Predictor
from vitrine.evaluation.topk import TopK, predict_batches
from vitrine.formats.checkpoint import Checkpoint
from vitrine.models.config import ModelConfig

INFERENCE = InferenceConfig(batch_size=8, num_workers=0)
NUM_EACH = 6


def write_images(folder: Path, class_names: tuple[str, ...], num_each: int = NUM_EACH) -> Path:
    random = np.random.default_rng(0)
    for name in class_names:
        (folder / name).mkdir(parents=True)
        for index in range(num_each):
            low = random.integers(0, 200, (3,))
            pixels = random.integers(low, low + 56, (26, 30, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{index}.png")
    return folder


@torch.no_grad()
def predict(checkpoint: Checkpoint, source: Source) -> Tensor:
    """Compute logits without loader and predictor."""
    images = torch.stack([checkpoint.preprocessing.load(path) for path in source.files()[: len(source)]])
    return checkpoint.model.eval()(checkpoint.preprocessing.normalise(images))


def make_varied(config: ModelConfig, source: Source, class_names: tuple[str, ...] | None, seed: int = 0) -> Checkpoint:
    """Make a model whose predictions differ between images, with another head for each seed."""
    checkpoint = replace(make_checkpoint(config), class_names=class_names)
    layer = checkpoint.model.head
    layer = layer if isinstance(layer, torch.nn.Linear) else [*layer.modules()][-1]
    with torch.no_grad():
        layer.weight.normal_(generator=torch.Generator().manual_seed(seed))
        logits = predict(checkpoint, source)
        layer.bias -= logits.mean(dim=0)
        layer.weight.mul_((4 / logits.std(dim=0))[:, None])
        layer.bias -= predict(checkpoint, source).mean(dim=0)
    assert len(set(predict(checkpoint, source).argmax(dim=1).tolist())) > 1
    return checkpoint


NAMES = tuple(f"class {index}" for index in range(5))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return open_data(write_images(tmp_path_factory.mktemp("images") / "five", NAMES))


@pytest.fixture(scope="module")
def checkpoint(source: Source) -> Checkpoint:
    return make_varied(cases.VIT, source, NAMES)


@pytest.fixture(scope="module")
def result(checkpoint: Checkpoint, source: Source) -> EvaluationResult:
    return assess(checkpoint, source, INFERENCE)


def assess(
    checkpoint: Checkpoint, source: Source, inference: InferenceConfig = INFERENCE, mapping: Path | None = None
) -> EvaluationResult:
    return evaluate_classifier(Predictor(checkpoint, "cpu", inference), source, mapping)


def write(result: EvaluationResult, out: Path) -> list[str]:
    return write_report(EvaluationSummary(result), out)


def read_csv(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_report_equals_sklearn_image_by_image(result: EvaluationResult, checkpoint: Checkpoint, source: Source) -> None:
    predictions = predict(checkpoint, source).argmax(dim=1).numpy()
    assert result.report.num_images == 5 * NUM_EACH
    assert result.report.top1.value == pytest.approx(accuracy_score(source.labels.values, predictions))
    assert 0 < result.report.top1.value < 1
    recalls = confusion_matrix(source.labels.values, predictions).diagonal() / NUM_EACH
    assert [each.top1.value for each in result.report.classes] == pytest.approx(recalls.tolist())
    assert [each.name for each in result.report.classes] == list(NAMES)


def test_names_of_predictions_and_labels(result: EvaluationResult, checkpoint: Checkpoint, source: Source) -> None:
    predictions = predict(checkpoint, source).argmax(dim=1).tolist()
    assert [result.name_prediction(row) for row in range(30)] == [NAMES[prediction] for prediction in predictions]
    assert [result.name_labels(index) for index in range(30)] == [name for name in NAMES for _ in range(NUM_EACH)]


def test_order_of_the_models_classes_does_not_matter(result: EvaluationResult, source: Source) -> None:
    """The same model with its outputs and class names reversed."""
    turned = replace(make_varied(cases.VIT, source, None), class_names=NAMES[::-1])
    with torch.no_grad():
        for parameter in (turned.model.head.weight, turned.model.head.bias):
            parameter.copy_(parameter.flip(0))
    found = assess(turned, source, INFERENCE)
    assert found.report.top1 == result.report.top1
    assert {each.name: each.top1 for each in found.report.classes} == {each.name: each.top1 for each in result.report.classes}
    assert [found.name_labels(index) for index in range(30)] == [result.name_labels(index) for index in range(30)]
    assert compare_classifiers(found, result).differences == []


def test_data_with_some_of_the_models_classes(checkpoint: Checkpoint, tmp_path: Path) -> None:
    part = open_data(write_images(tmp_path / "two", ("class 3", "class 1")))
    report = assess(checkpoint, part, INFERENCE).report
    assert [each.name for each in report.classes] == ["class 1", "class 3"]
    predictions = predict(checkpoint, part).argmax(dim=1).numpy()
    assert report.top1.value == pytest.approx(accuracy_score(np.repeat([1, 3], NUM_EACH), predictions))


def test_one_image_of_one_class(tmp_path: Path) -> None:
    alone = open_data(write_images(tmp_path / "one", ("only",), 1))
    found = assess(replace(make_checkpoint(replace(cases.VIT, num_classes=1)), class_names=("only",)), alone, INFERENCE)
    assert (found.report.num_images, found.report.top1.value, found.report.top5.value) == (1, 1, 1)
    assert found.report.loss.value == pytest.approx(0, abs=1e-6)
    assert write(found, tmp_path / "out") == ["classes.csv", "confusion.png"]


def test_evaluate_opens_data_and_compares_two_models(source: Source, checkpoint: Checkpoint, tmp_path: Path) -> None:
    folder = write_images(tmp_path / "data" / "val", NAMES).parent
    write_images(folder / "train", NAMES, 1)
    other = make_varied(cases.VIT, source, NAMES, seed=5)
    evaluation = evaluate(checkpoint, folder, against=other, device="cpu", inference=INFERENCE)
    data = open_data(folder, "val")
    first, second = assess(checkpoint, data), assess(other, data)
    assert (evaluation.report, evaluation.against.report) == (first.report, second.report)
    assert evaluation.comparison == compare_classifiers(first, second)
    assert write_report(evaluation, tmp_path / "out")[-1] == "differences.csv"
    alone = evaluate(checkpoint, folder, "val", device="cpu", inference=INFERENCE)
    assert (alone.report, alone.against, alone.comparison) == (first.report, None, None)


def test_bad_image_is_left_out_of_all_metrics(checkpoint: Checkpoint, tmp_path: Path) -> None:
    folder = write_images(tmp_path / "five", NAMES)
    whole = open_data(folder)
    predictions = predict(checkpoint, whole).argmax(dim=1).numpy()
    (folder / "class 2" / "0.png").write_bytes(b"no image")
    kept = np.delete(np.arange(30), 12)
    skipping = InferenceConfig(num_workers=0, bad_images="skip")
    with pytest.warns(VitrineWarning, match=r"Skipped class 2/0\.png"):
        found = assess(checkpoint, open_data(folder), skipping)
    assert found.report.num_images == 29
    assert [each.num_images for each in found.report.classes] == [6, 6, 5, 6, 6]
    assert found.report.top1.value == pytest.approx(accuracy_score(whole.labels.values[kept], predictions[kept]))
    assert "mistakes.png" in write(found, tmp_path / "out")
    with pytest.raises(ValueError, match=r"class 2/0\.png"):
        assess(checkpoint, open_data(folder), INFERENCE)


REAL = [[2], [], [0, 1], [0, 1, 2], []]  # what the five images of `make_imagenet` show


def test_real_labels_count_if_any_matches(tmp_path: Path) -> None:
    """ReaL's own code: `is_correct = [pred in real_labels[i] for i, pred if real_labels[i]]`."""
    folder = make_imagenet(tmp_path / "imagenet")
    (folder / "real.json").write_text(json.dumps(REAL))
    real = open_test(str(folder), "real")
    checkpoint = make_varied(replace(cases.VIT, num_classes=3), real, None)
    order = predict(checkpoint, real).argsort(dim=1, descending=True).tolist()
    expected = [predictions[0] in labels for predictions, labels in zip(order, REAL, strict=True) if labels]
    report = assess(checkpoint, real, INFERENCE).report
    assert (report.num_images, report.num_left_out) == (3, 2)
    assert report.top1.value == pytest.approx(np.mean(expected))
    assert report.top5.value == 1
    assert (report.loss, report.classes) == (None, [])


def test_report_files_with_several_labels(tmp_path: Path) -> None:
    folder = make_imagenet(tmp_path / "imagenet")
    plain = open_test(str(folder))
    checkpoint = make_varied(replace(cases.VIT, num_classes=3), plain, None)
    predictions = predict(checkpoint, plain).argmax(dim=1).tolist()
    wrong = [sorted({0, 1, 2} - {prediction}) for prediction in predictions]
    (folder / "real.json").write_text(json.dumps([wrong[0], [], *([prediction] for prediction in predictions[2:])]))
    found = assess(checkpoint, open_test(str(folder), "real"), INFERENCE)
    assert write(found, tmp_path / "out") == ["mistakes.png"]
    names = ("tench, Tinca tinca", "goldfish, Carassius auratus", "crane")
    assert found.name_labels(0) == ", ".join(names[label] for label in wrong[0])
    assert found.name_labels(1) == ""
    (folder / "real.json").write_text(json.dumps([[prediction] for prediction in predictions]))
    assert write(assess(checkpoint, open_test(str(folder), "real"), INFERENCE), tmp_path / "none") == []


def test_mapping_as_for_objectnet(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "objects", ("Bathrobe", "Chair", "Ladle", "Weight (exercise)"))
    data = open_data(folder)
    names = ("robe", "rocking chair", "folding chair", "ladle", "dumbbell; barbell")
    mapping = tmp_path / "objectnet_to_model.json"
    content = {"Chair": "rocking chair; folding chair", "Ladle": 3, "Weight (exercise)": "dumbbell; barbell", "Teapot": "robe"}
    mapping.write_text(json.dumps(content))
    checkpoint = make_varied(cases.VIT, data, names)
    predictions = predict(checkpoint, data).argmax(dim=1).tolist()
    right = [set()] * NUM_EACH + [{1, 2}] * NUM_EACH + [{3}] * NUM_EACH + [{4}] * NUM_EACH
    expected = [prediction in labels for prediction, labels in zip(predictions, right, strict=True) if labels]
    with pytest.warns(VitrineWarning, match=r"1 of 4 .*Bathrobe"):
        found = assess(checkpoint, data, INFERENCE, mapping=mapping)
    assert (found.report.num_images, found.report.num_left_out) == (3 * NUM_EACH, NUM_EACH)
    assert found.report.top1.value == pytest.approx(np.mean(expected))
    assert found.name_labels(NUM_EACH) == "rocking chair, folding chair"
    assert found.source.class_names == names


def test_mapping_to_an_unknown_name_is_rejected(checkpoint: Checkpoint, source: Source, tmp_path: Path) -> None:
    (tmp_path / "mapping.json").write_text(json.dumps({"class 0": "class 0; class nought"}))
    with pytest.raises(ValueError, match="class nought"):
        assess(checkpoint, source, INFERENCE, mapping=tmp_path / "mapping.json")


def test_report_files_and_table_of_classes(result: EvaluationResult, tmp_path: Path) -> None:
    assert write(result, tmp_path / "new" / "out") == ["classes.csv", "confusion.png", "mistakes.png"]
    assert sorted(path.name for path in (tmp_path / "new" / "out").iterdir()) == [
        "classes.csv",
        "confusion.png",
        "mistakes.png",
    ]
    head, *rows = read_csv(tmp_path / "new" / "out" / "classes.csv")
    assert head == ["class", "images", "top1", "low", "high", "mistaken_for"]
    for row, each in zip(rows, result.report.classes, strict=True):
        assert row[:2] == [each.name, str(each.num_images)]
        assert [float(cell) for cell in row[2:5]] == [each.top1.value, each.top1.low, each.top1.high]
        assert row[5] == (each.mistaken_for or "")


def test_drawn_mistakes_are_the_most_confident(
    result: EvaluationResult, checkpoint: Checkpoint, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[list[np.ndarray], list[tuple[str, str]], Path]] = []
    monkeypatch.setattr(classification_report, "draw_mistakes", lambda *arguments: drawn.append(arguments))
    write(result, tmp_path)
    [(images, titles, path)] = drawn
    probabilities = predict(checkpoint, source).softmax(dim=1)
    wrong = np.flatnonzero(probabilities.argmax(dim=1).numpy() != source.labels.values)
    surest = wrong[np.argsort(-probabilities.max(dim=1).values.numpy()[wrong], kind="stable")][:20].tolist()
    assert path == tmp_path / "mistakes.png"
    assert len(images) == len(surest)
    for image, title, index in zip(images, titles, surest, strict=True):
        seen = result.preprocessing.load(source.files()[index])
        assert np.array_equal(image, seen.permute(1, 2, 0).numpy())
        assert title == (
            f"{probabilities[index].max():.0%} {NAMES[probabilities[index].argmax()]}",
            NAMES[source.labels[index]],
        )


def test_no_mistakes_no_figure_of_them(checkpoint: Checkpoint, source: Source, tmp_path: Path) -> None:
    predictions = predict(checkpoint, source).argmax(dim=1).numpy()
    right = assess(checkpoint, RelabelledSource(source, Labels.one_each(predictions), NAMES), INFERENCE)
    assert right.report.top1.value == 1
    assert write(right, tmp_path) == ["classes.csv", "confusion.png"]
    assert all(row[5] == "" for row in read_csv(tmp_path / "classes.csv")[1:])


def test_report_files_of_a_grey_model(source: Source, tmp_path: Path) -> None:
    grey = make_varied(replace(cases.VIT, num_channels=1), source, NAMES)
    assert "mistakes.png" in write(assess(grey, source, INFERENCE), tmp_path)


def test_class_names_with_commas_and_unicode(tmp_path: Path) -> None:
    names = ('drake, "duck"', "größer $5_", "猫 🐈")
    data = open_data(write_images(tmp_path / "images", names))
    found = assess(make_varied(replace(cases.VIT, num_classes=3), data, None), data, INFERENCE)
    write(found, tmp_path / "out")
    assert [row[0] for row in read_csv(tmp_path / "out" / "classes.csv")[1:]] == sorted(names)


def test_model_does_not_differ_from_itself(result: EvaluationResult) -> None:
    comparison = compare_classifiers(result, result)
    paired, differences = comparison.paired, comparison.differences
    assert (paired.num_images, paired.only_first, paired.only_second, paired.p_value) == (30, 0, 0, 1)
    assert differences == []


def test_differences_of_two_models(result: EvaluationResult, checkpoint: Checkpoint, source: Source) -> None:
    other = make_varied(cases.VIT, source, NAMES, seed=5)
    comparison = compare_classifiers(result, assess(other, source, INFERENCE))
    paired, differences = comparison.paired, comparison.differences
    truth = source.labels.values
    predictions = [predict(each, source).argmax(dim=1).numpy() for each in (checkpoint, other)]
    first, second = (each == truth for each in predictions)
    assert (paired.only_first, paired.only_second) == (int((first & ~second).sum()), int((second & ~first).sum()))
    assert paired.difference.value == pytest.approx(first.mean() - second.mean())
    indices = np.flatnonzero(first != second).tolist()
    assert len(indices) > 2
    assert differences == [
        Difference(
            image=source.name(index),
            label=NAMES[truth[index]],
            first=NAMES[predictions[0][index]],
            second=NAMES[predictions[1][index]],
            right="first" if first[index] else "second",
        )
        for index in indices
    ]


def test_comparison_is_over_images_labelled_for_both(tmp_path: Path) -> None:
    data = open_data(write_images(tmp_path / "objects", ("cup", "hat", "pen")))
    mappings = {"first": {"cup": [0], "hat": [1, 2]}, "second": {"hat": [0], "pen": [1]}}
    both, checkpoints = [], []
    for seed, (name, content) in enumerate(mappings.items()):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
        checkpoint = make_varied(replace(cases.VIT, num_classes=3), data, None, seed)
        checkpoints.append(checkpoint)
        with pytest.warns(VitrineWarning, match="1 of 3 classes"):
            both.append(assess(checkpoint, data, INFERENCE, mapping=tmp_path / f"{name}.json"))
    comparison = compare_classifiers(*both)
    paired, differences = comparison.paired, comparison.differences
    assert paired.num_images == NUM_EACH  # hats
    assert all(each.image.startswith("hat/") and each.label == "1, 2" for each in differences)
    first, second = (predict(each, data).argmax(dim=1)[NUM_EACH : 2 * NUM_EACH] for each in checkpoints)
    assert paired.only_first - paired.only_second == int((first != 0).sum()) - int((second == 0).sum())


def test_comparison_leaves_out_bad_images(checkpoint: Checkpoint, source: Source, tmp_path: Path) -> None:
    other = make_varied(cases.VIT, source, NAMES, seed=5)
    folder = write_images(tmp_path / "five", NAMES)
    (folder / "class 0" / "0.png").write_bytes(b"no image")
    data, skipping = open_data(folder), InferenceConfig(num_workers=0, bad_images="skip")
    with pytest.warns(VitrineWarning):
        both = [assess(each, data, skipping) for each in (checkpoint, other)]
    comparison = compare_classifiers(*both)
    paired, differences = comparison.paired, comparison.differences
    assert paired.num_images == 29
    hits = [predict(each, source).argmax(dim=1).numpy() == source.labels.values for each in (checkpoint, other)]
    unlike = [index for index in np.flatnonzero(hits[0] != hits[1]).tolist() if index != 0]  # the images are those of `source`
    assert [each.image for each in differences] == [source.name(index) for index in unlike]
    assert len(differences) == paired.only_first + paired.only_second > 2


def test_differences_are_written_as_a_table(result: EvaluationResult, tmp_path: Path) -> None:
    differences = [Difference("a/größe, 1.png", "cat", "cat", "dog", "first"), Difference("猫.png", "", "x", '"y"', "second")]
    paired = mcnemar_test(np.array([True, False]), np.array([False, True]))
    write_report(EvaluationSummary(result, result, Comparison(paired, differences)), tmp_path)
    assert read_csv(tmp_path / "differences.csv") == [
        ["image", "label", "first", "second", "right"],
        ["a/größe, 1.png", "cat", "cat", "dog", "first"],
        ["猫.png", "", "x", '"y"', "second"],
    ]
    write_report(EvaluationSummary(result, result, Comparison(paired, [])), tmp_path)
    assert read_csv(tmp_path / "differences.csv") == [["image", "label", "first", "second", "right"]]


def test_nan_predictions_are_rejected(tmp_path: Path) -> None:
    broken = make_checkpoint(cases.VIT)
    with torch.no_grad():
        broken.model.head.weight.fill_(float("nan"))
    with pytest.raises(ValueError, match="finite"):
        assess(
            broken,
            open_data(write_images(tmp_path / "images", tuple(f"class {index}" for index in range(5)), num_each=1)),
            INFERENCE,
        )


def test_comparison_leaves_out_images_unreadable_for_one_model(checkpoint: Checkpoint, tmp_path: Path) -> None:
    folder = write_images(tmp_path / "images", tuple(f"class {index}" for index in range(5)), num_each=1)
    Image.new("LAB", (24, 24)).save(folder / "class 0" / "lab.tif")  # Pillow makes no grey of it
    grey, skipping = make_checkpoint(replace(cases.VIT, num_channels=1)), InferenceConfig(num_workers=0, bad_images="skip")
    with pytest.warns(VitrineWarning):
        both = [assess(each, open_data(folder), skipping) for each in (checkpoint, grey)]
    assert compare_classifiers(*both).paired.num_images == 5


def test_confidence_is_shown_before_long_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitrine.evaluation import classification_report

    figures = []
    monkeypatch.setattr(classification_report, "save_figure", lambda figure, path: figures.append(figure))
    names = tuple(f"Norwegian elkhound, elkhound, number {index}" for index in range(5))
    source = open_data(write_images(tmp_path / "images", names))
    write(assess(replace(make_checkpoint(cases.VIT), class_names=names), source, INFERENCE), tmp_path / "out")
    assert all(re.match(r"\d+%", panel.get_title()) for panel in figures[-1].axes)


NUM_CLASSES = 8
NAMES_REPORT = tuple(f"class {number}" for number in range(NUM_CLASSES))
IMAGES = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60)


def draw_logits(num_images: int, num_classes: int = NUM_CLASSES) -> Tensor:
    return 2 * torch.randn(num_images, num_classes, generator=torch.Generator().manual_seed(3))


def predict_from(logits: Tensor, labels: Labels, index: list[int] | None = None) -> TopK:
    """Return the predictions of a model with these logits, for all images or those at `index`."""
    numbers = torch.arange(len(logits)) if index is None else torch.tensor(index)
    batch = torch.from_numpy(labels.to_targets(numbers.numpy(), logits.shape[1]))
    return predict_batches(lambda images: images[:, :, 0, 0], [Batch(logits[:, :, None, None], batch, numbers, 0)])


def draw_labels(num_images: int, num_classes: int = NUM_CLASSES) -> Labels:
    return Labels.one_each(np.random.default_rng(4).integers(num_classes, size=num_images))


def compute_error_by_loop(confidences: np.ndarray, hits: np.ndarray) -> float:
    """Compute the expected calibration error by its definition (section 2 of arXiv:1706.04599)."""
    error = 0.0
    for number in range(15):
        inside = [index for index, each in enumerate(confidences) if number == min(int(each * 15), 14)]
        if inside:
            confidence = sum(float(confidences[index]) for index in inside) / len(inside)
            accuracy = sum(bool(hits[index]) for index in inside) / len(inside)
            error += len(inside) / len(hits) * abs(confidence - accuracy)
    return error


def test_metrics_equal_sklearn() -> None:
    logits, labels = draw_logits(90), draw_labels(90)
    report = build_report(predict_from(logits, labels), labels, NAMES_REPORT)
    probabilities, classes = softmax(logits.double().numpy(), axis=1), np.arange(NUM_CLASSES)
    assert (report.num_images, report.num_left_out) == (90, 0)
    assert report.top1.value == pytest.approx(top_k_accuracy_score(labels.values, probabilities, k=1, labels=classes))
    assert report.top5.value == pytest.approx(top_k_accuracy_score(labels.values, probabilities, k=5, labels=classes))
    assert report.loss.value == pytest.approx(log_loss(labels.values, probabilities, labels=classes), rel=1e-5)
    hits = probabilities.argmax(axis=1) == labels.values
    assert report.calibration_error.value == pytest.approx(compute_error_by_loop(probabilities.max(axis=1), hits), abs=1e-6)


def test_intervals_equal_scipy() -> None:
    logits, labels = draw_logits(90), draw_labels(90)
    report = build_report(predict_from(logits, labels), labels, NAMES_REPORT)
    estimates = [(report.top1, 90), (report.top5, 90), *((each.top1, each.num_images) for each in report.classes)]
    for estimate, num_images in estimates:
        expected = binomtest(round(estimate.value * num_images), num_images).proportion_ci(method="wilson")
        assert (estimate.low, estimate.high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    losses = torch.nn.functional.cross_entropy(logits.double(), torch.from_numpy(labels.values), reduction="none").numpy()
    expected = norm.interval(0.95, loc=losses.mean(), scale=sem(losses))
    assert (report.loss.low, report.loss.high) == pytest.approx(expected, rel=1e-5)
    error = report.calibration_error
    assert error.low is not None
    assert error.high is not None
    assert 0 <= error.low < error.value < error.high


def test_confusions_equal_sklearn() -> None:
    logits, labels = draw_logits(90), draw_labels(90)
    found = count_confusions(predict_from(logits, labels), labels, NUM_CLASSES)
    listed = np.zeros_like(found)
    for label, prediction, count in list_confusions(predict_from(logits, labels), labels).tolist():
        listed[label, prediction] = count
    np.testing.assert_array_equal(listed, found)
    assert np.array_equal(found, confusion_matrix(labels.values, logits.argmax(dim=1), labels=np.arange(NUM_CLASSES)))


def test_class_reports_equal_sklearn() -> None:
    logits, labels = draw_logits(90), draw_labels(90)
    classes = build_report(predict_from(logits, labels), labels, NAMES_REPORT).classes
    predictions = logits.argmax(dim=1).numpy()
    recalls = recall_score(labels.values, predictions, labels=np.arange(NUM_CLASSES), average=None)
    assert [each.name for each in classes] == list(NAMES_REPORT)
    assert [each.num_images for each in classes] == np.bincount(labels.values).tolist()
    assert [each.top1.value for each in classes] == pytest.approx(recalls.tolist())
    for number, each in enumerate(classes):
        wrong = predictions[(labels.values == number) & (predictions != number)].tolist()
        counts = {NAMES_REPORT[other]: wrong.count(other) for other in wrong}
        assert counts[each.mistaken_for] == max(counts.values())


def test_class_without_images_and_class_without_mistakes() -> None:
    matrix = np.array([[4, 0, 0], [0, 0, 0], [1, 2, 5]])
    entries = np.argwhere(matrix)
    confusions = np.concatenate([entries, matrix[tuple(entries.T)][:, None]], axis=1)
    [first, third] = report_classes(confusions, ("a", "b", "c"))
    assert (first.name, first.num_images, first.top1.value, first.mistaken_for) == ("a", 4, 1.0, None)
    assert (third.name, third.num_images, third.top1.value, third.mistaken_for) == ("c", 8, 5 / 8, "b")


def test_labels_are_found_by_index() -> None:
    """Skipped images are missing among the predictions."""
    logits, labels = draw_logits(20), draw_labels(20)
    kept = [0, 3, 4, 11, 19]
    report = build_report(predict_from(logits[kept], labels, kept), labels, NAMES_REPORT)
    hits = logits.argmax(dim=1).numpy()[kept] == labels.values[kept]
    assert report.num_images == 5
    assert report.top1.value == pytest.approx(hits.mean())
    names = [NAMES_REPORT[label] for label in labels.values[kept]]
    assert {each.name: each.num_images for each in report.classes} == {name: names.count(name) for name in names}
    assert sum(each.top1.value * each.num_images for each in report.classes) == pytest.approx(hits.sum())


def test_report_with_several_labels() -> None:
    logits = draw_logits(4)
    order = logits.argsort(dim=1, descending=True).tolist()
    labels = Labels.several_each([[order[0][0], order[0][7]], [order[1][4]], [], [order[3][5]]])
    report = build_report(predict_from(logits, labels), labels, NAMES_REPORT)
    assert (report.num_images, report.num_left_out) == (3, 1)
    assert (report.loss, report.classes) == (None, [])
    assert report.top1.value == pytest.approx(1 / 3)
    assert report.top5.value == pytest.approx(2 / 3)
    probabilities = softmax(logits.double().numpy(), axis=1).max(axis=1)[[0, 1, 3]]
    expected = compute_error_by_loop(probabilities, np.array([True, False, False]))
    assert report.calibration_error.value == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("num_classes", [1, 2, 4])
def test_top5_with_fewer_than_five_classes(num_classes: int) -> None:
    logits, labels = draw_logits(10, num_classes), draw_labels(10, num_classes)
    report = build_report(predict_from(logits, labels), labels, NAMES_REPORT[:num_classes])
    assert report.top5.value == 1
    assert sum(each.num_images for each in report.classes) == 10


def test_report_of_one_image() -> None:
    labels = Labels.one_each([2])
    report = build_report(predict_from(torch.tensor([[0.0, 0.0, 9.0]]), labels), labels, NAMES_REPORT[:3])
    assert (report.num_images, report.top1.value, report.top5.value) == (1, 1, 1)
    assert [(each.name, each.num_images) for each in report.classes] == [("class 2", 1)]


@pytest.mark.parametrize("labels", [Labels.none_each(3), Labels.several_each([[], [], []])])
def test_report_without_labels_is_rejected(labels: Labels) -> None:
    with pytest.raises(ValueError, match="no images with a label"):
        build_report(predict_from(draw_logits(3), labels), labels, NAMES_REPORT)


@given(IMAGES)
def test_calibration_error_equals_a_loop(images: list[tuple[float, bool]]) -> None:
    confidences, hits = (np.array(column) for column in zip(*images, strict=True))
    found = compute_calibration_error(confidences, hits)
    assert found == pytest.approx(compute_error_by_loop(confidences, hits), abs=1e-12)
    assert 0 <= found <= 1 + 1e-12


@given(IMAGES)
def test_calibration_error_does_not_depend_on_order(images: list[tuple[float, bool]]) -> None:
    there, back = (
        compute_calibration_error(*(np.array(column) for column in zip(*order, strict=True)))
        for order in (images, images[::-1])
    )
    assert there == pytest.approx(back, abs=1e-12)


def test_calibration_error_of_a_calibrated_model() -> None:
    hits = np.array([True] * 3 + [False])
    assert compute_calibration_error(np.full(4, 0.75), hits) == pytest.approx(0)
    assert compute_calibration_error(np.full(4, 1.0), ~np.ones(4, bool)) == 1
    assert compute_calibration_error(np.full(4, 0.5), hits) == pytest.approx(0.25)
    assert compute_calibration_error(np.array([np.float64(np.float32(1) + np.finfo(np.float32).eps)]), hits[:1]) < 1e-6


def test_over_and_underconfidence_do_not_cancel() -> None:
    confidences, hits = np.array([0.9, 0.1]), np.array([False, True])
    assert compute_calibration_error(confidences, hits) == pytest.approx(0.9)


def test_mistakes_are_sorted_by_confidence() -> None:
    logits, labels = draw_logits(90), draw_labels(90)
    mistakes = find_mistakes(predict_from(logits, labels), 10)
    probabilities = softmax(logits.double().numpy(), axis=1).max(axis=1)
    wrong = np.flatnonzero(logits.argmax(dim=1).numpy() != labels.values)
    assert mistakes.index.tolist() == wrong[np.argsort(-probabilities[wrong])][:10].tolist()
    assert not mistakes.hits[:, 0].any()
    assert len(find_mistakes(predict_from(logits, labels), 1000)) == len(wrong)
    assert len(find_mistakes(predict_from(logits, labels), 0)) == 0


def test_image_without_label_is_not_a_mistake() -> None:
    labels = Labels.several_each([[], [0, 1], [2]])
    logits = torch.tensor([[9.0, 0.0, 0.0], [0.0, 5.0, 0.0], [1.0, 0.0, 0.0]])
    assert find_mistakes(predict_from(logits, labels), 20).index.tolist() == [2]


def test_no_mistakes() -> None:
    assert len(find_mistakes(predict_from(torch.eye(3), Labels.one_each([0, 1, 2])), 20)) == 0


ODD_NAMES = ("$5 to $6_", "größer 猫 🐈", "W" * 80)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Collect figures instead of saving them, after their layout is computed."""
    figures: list[Figure] = []

    def keep(figure: Figure, path: Path) -> None:
        FigureCanvasAgg(figure).draw()
        figures.append(figure)

    monkeypatch.setattr(classification_report, "save_figure", keep)
    return figures


def draw_answers(num_classes: int, num_images: int = 200) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(num_classes)
    labels = random.integers(num_classes, size=num_images)
    predictions = np.where(random.random(num_images) < 0.6, labels, random.integers(num_classes, size=num_images))
    return labels, predictions


def number_names(num_classes: int) -> list[str]:
    return [f"class {number}" for number in range(num_classes)]


def list_texts(labels: list) -> list[str]:
    return [label.get_text() for label in labels]


def test_confusion_matrix_shows_fractions(drawn: list[Figure]) -> None:
    labels, predictions = draw_answers(7)
    counts = confusion_matrix(labels, predictions, labels=range(7))
    draw_confusions(counts, number_names(7), Path("not written.png"))
    panel = drawn[0].axes[0]
    [image] = panel.get_images()
    expected = confusion_matrix(labels, predictions, labels=range(7), normalize="true")
    np.testing.assert_allclose(image.get_array(), expected)
    assert image.get_clim() == (0, 1)
    assert (panel.get_ylabel(), panel.get_xlabel()) == ("label", "prediction")
    assert list_texts(panel.get_xticklabels()) == list_texts(panel.get_yticklabels()) == number_names(7)


def test_confusion_matrix_shows_counts(drawn: list[Figure]) -> None:
    counts = np.array([[12, 0, 1], [0, 0, 0], [3, 4, 0]])
    draw_confusions(counts, number_names(3), Path("not written.png"))
    texts = {text.get_position(): text.get_text() for text in drawn[0].axes[0].texts}
    assert texts == {(0, 0): "12", (2, 0): "1", (0, 2): "3", (1, 2): "4"}  # (prediction, label)
    assert np.isfinite(drawn[0].axes[0].get_images()[0].get_array()).all()  # a class without images has no probabilities


@pytest.mark.parametrize(
    ("num_classes", "has_counts", "has_names"), [(1, 1, 1), (20, 1, 1), (21, 0, 1), (60, 0, 1), (61, 0, 0)]
)
def test_names_and_counts_only_if_legible(num_classes: int, has_counts: int, has_names: int, drawn: list[Figure]) -> None:
    draw_confusions(np.eye(num_classes, dtype=np.int64), number_names(num_classes), Path("not written.png"))
    panel = drawn[0].axes[0]
    assert len(panel.texts) == has_counts * num_classes
    assert (list_texts(panel.get_yticklabels()) == number_names(num_classes)) == bool(has_names)


def test_class_names_do_not_overlap(drawn: list[Figure]) -> None:
    draw_confusions(np.eye(60, dtype=np.int64), ["W" * 28] * 60, Path("not written.png"))
    panel = drawn[0].axes[0]
    for labels, side in ((panel.get_yticklabels(), "y"), (panel.get_xticklabels(), "x")):
        boxes = sorted((label.get_window_extent() for label in labels), key=lambda box: getattr(box, f"{side}0"))
        assert all(getattr(first, f"{side}1") <= getattr(second, f"{side}0") for first, second in itertools.pairwise(boxes))
    edges = drawn[0].bbox
    for label in (*panel.get_yticklabels(), *panel.get_xticklabels()):
        box = label.get_window_extent()
        assert edges.x0 <= box.x0 <= box.x1 <= edges.x1
        assert edges.y0 <= box.y0 <= box.y1 <= edges.y1


def test_any_class_name_is_drawn(tmp_path: Path) -> None:
    """Also names with glyphs missing from the font, or that look like math."""
    draw_confusions(np.eye(3, dtype=np.int64), ODD_NAMES, tmp_path / "confusion.png")
    image = np.zeros((4, 4, 3), np.uint8)
    draw_mistakes([image] * 3, [(name, name) for name in ODD_NAMES], tmp_path / "mistakes.png")
    for name in ("confusion.png", "mistakes.png"):
        with Image.open(tmp_path / name) as image:
            assert image.format == "PNG"


def test_class_names_are_not_parsed_as_math(drawn: list[Figure]) -> None:
    draw_confusions(np.eye(3, dtype=np.int64), ("$a$", "b_{1}", "x^2"), Path("not written.png"))
    labels = drawn[0].axes[0].get_yticklabels()
    assert not any(label.get_parse_math() for label in labels)
    assert list_texts(labels) == ["$a$", "b_{1}", "x^2"]


def test_a_thousand_classes_are_drawn(tmp_path: Path) -> None:
    draw_confusions(np.eye(1000, dtype=np.int64), number_names(1000), tmp_path / "confusion.png")
    with Image.open(tmp_path / "confusion.png") as image:
        assert image.size == (1100, 990)  # (9 + 1) x 9 inches at 110 dots


@pytest.mark.parametrize("num_images", [1, 5, 6, 20])
def test_mistakes_are_drawn_with_prediction_and_label(num_images: int, drawn: list[Figure]) -> None:
    images = [np.full((3, 4, 3), 10 * number, np.uint8) for number in range(num_images)]
    titles = [(f"prediction {number}", f"label {number}") for number in range(num_images)]
    draw_mistakes(images, titles, Path("not written.png"))
    panels = drawn[0].axes
    assert [(panel.get_title(), panel.get_xlabel()) for panel in panels] == titles
    for panel, image in zip(panels, images, strict=True):
        assert np.array_equal(panel.get_images()[0].get_array(), image)
    indices = [(-round(panel.get_position().y0, 2), round(panel.get_position().x0, 2)) for panel in panels]
    assert indices == sorted(indices)  # line by line
    assert len({x for _, x in indices}) == min(5, num_images)


def test_grey_images_are_drawn_grey(drawn: list[Figure]) -> None:
    image = np.array([[[100], [120]]], np.uint8)
    draw_mistakes([image], [("prediction", "label")], Path("not written.png"))
    [shown] = drawn[0].axes[0].get_images()
    assert np.array_equal(shown.get_array(), [[100, 120]])
    colours = shown.cmap(shown.norm(shown.get_array()))[..., :3]
    np.testing.assert_allclose(colours, np.array([[[100] * 3, [120] * 3]]) / 255, atol=1 / 255)


@pytest.mark.parametrize("shape", [(1, 1, 3), (1, 300, 3), (300, 1, 1)])
def test_images_of_any_shape_are_drawn(shape: tuple[int, int, int], tmp_path: Path) -> None:
    draw_mistakes([np.zeros(shape, np.uint8)] * 2, [("a", "b")] * 2, tmp_path / "mistakes.png")
    assert (tmp_path / "mistakes.png").stat().st_size > 0


def test_names_that_are_not_utf_8_are_drawn(tmp_path: Path) -> None:
    draw_confusions(np.eye(2, dtype=np.int64), (os.fsdecode(b"a\xff"), "b"), tmp_path / "confusion.png")
