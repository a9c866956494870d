"""Tests of evaluation/classification_report.py.

Small models judged on small made sets, against scikit-learn and figures counted by hand: plain, ReaL, ObjectNet's way.
A report against scikit-learn, scipy, and a loop over the bins of confidence.
What the pictures show: the matrix is scikit-learn's, the images are those that were given, and any name will do.
"""

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
    Difference,
    EvaluationResult,
    build_report,
    compare_classifiers,
    compute_calibration_error,
    count_confusions,
    draw_confusions,
    draw_mistakes,
    evaluate_classifier,
    find_mistakes,
    report_classes,
    write_differences,
    write_findings,
)
from vitrine.evaluation.config import InferenceConfig
from vitrine.evaluation.topk import TopK, predict_batches
from vitrine.formats.checkpoint import Checkpoint
from vitrine.models.config import ModelConfig

READING = InferenceConfig(batch_size=8, num_workers=0)
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
    """Logits, image by image and not by our loop."""
    images = torch.stack([checkpoint.preprocessing.load(path) for path in source.files()[: len(source)]])
    return checkpoint.model.eval()(checkpoint.preprocessing.normalise(images))


def make_varied(config: ModelConfig, source: Source, class_names: tuple[str, ...] | None, seed: int = 0) -> Checkpoint:
    """A model whose answers differ from image to image: another head for each seed, with equal chances of all classes."""
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
def judged(checkpoint: Checkpoint, source: Source) -> EvaluationResult:
    return evaluate_classifier(checkpoint, source, READING)


def read_csv(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_the_report_is_that_of_the_model_image_by_image(
    judged: EvaluationResult, checkpoint: Checkpoint, source: Source
) -> None:
    answers = predict(checkpoint, source).argmax(dim=1).numpy()
    assert judged.report.num_images == 5 * NUM_EACH
    assert judged.report.top1.value == pytest.approx(accuracy_score(source.labels.values, answers))
    assert 0 < judged.report.top1.value < 1
    recalls = confusion_matrix(source.labels.values, answers).diagonal() / NUM_EACH
    assert [each.top1.value for each in judged.report.classes] == pytest.approx(recalls.tolist())
    assert [each.name for each in judged.report.classes] == list(NAMES)


def test_names_of_answers_and_labels(judged: EvaluationResult, checkpoint: Checkpoint, source: Source) -> None:
    answers = predict(checkpoint, source).argmax(dim=1).tolist()
    assert [judged.name_answer(row) for row in range(30)] == [NAMES[answer] for answer in answers]
    assert [judged.name_labels(index) for index in range(30)] == [name for name in NAMES for _ in range(NUM_EACH)]


def test_classes_in_another_order_are_the_same_classes(judged: EvaluationResult, source: Source) -> None:
    """The same model with its outputs, and their names, turned around."""
    turned = replace(make_varied(cases.VIT, source, None), class_names=NAMES[::-1])
    with torch.no_grad():
        for parameter in (turned.model.head.weight, turned.model.head.bias):
            parameter.copy_(parameter.flip(0))
    found = evaluate_classifier(turned, source, READING)
    assert found.report.top1 == judged.report.top1
    assert {each.name: each.top1 for each in found.report.classes} == {each.name: each.top1 for each in judged.report.classes}
    assert [found.name_labels(index) for index in range(30)] == [judged.name_labels(index) for index in range(30)]
    assert compare_classifiers(found, judged)[1] == []


def test_some_classes_of_the_model_s_are_enough(checkpoint: Checkpoint, tmp_path: Path) -> None:
    part = open_data(write_images(tmp_path / "two", ("class 3", "class 1")))
    report = evaluate_classifier(checkpoint, part, READING).report
    assert [each.name for each in report.classes] == ["class 1", "class 3"]
    answers = predict(checkpoint, part).argmax(dim=1).numpy()
    assert report.top1.value == pytest.approx(accuracy_score(np.repeat([1, 3], NUM_EACH), answers))


def test_one_image_of_one_class(tmp_path: Path) -> None:
    alone = open_data(write_images(tmp_path / "one", ("only",), 1))
    found = evaluate_classifier(
        replace(make_checkpoint(replace(cases.VIT, num_classes=1)), class_names=("only",)), alone, READING
    )
    assert (found.report.num_images, found.report.top1.value, found.report.top5.value) == (1, 1, 1)
    assert found.report.loss.value == pytest.approx(0, abs=1e-6)
    assert write_findings(found, tmp_path / "out") == ["classes.csv", "confusion.png"]


def test_a_bad_image_is_left_out_of_all_figures(checkpoint: Checkpoint, tmp_path: Path) -> None:
    folder = write_images(tmp_path / "five", NAMES)
    whole = open_data(folder)
    answers = predict(checkpoint, whole).argmax(dim=1).numpy()
    (folder / "class 2" / "0.png").write_bytes(b"no image")
    kept = np.delete(np.arange(30), 12)
    skipping = InferenceConfig(num_workers=0, bad_images="skip")
    with pytest.warns(VitrineWarning, match=r"Skipped class 2/0\.png"):
        found = evaluate_classifier(checkpoint, open_data(folder), skipping)
    assert found.report.num_images == 29
    assert [each.num_images for each in found.report.classes] == [6, 6, 5, 6, 6]
    assert found.report.top1.value == pytest.approx(accuracy_score(whole.labels.values[kept], answers[kept]))
    assert "mistakes.png" in write_findings(found, tmp_path / "out")
    with pytest.raises(ValueError, match=r"^class 2/0\.png is not a readable image"):
        evaluate_classifier(checkpoint, open_data(folder), READING)


REAL = [[2], [], [0, 1], [0, 1, 2], []]  # what the five images of `make_imagenet` show


def test_with_labels_of_real_any_of_them_is_right_and_empty_ones_are_left_out(tmp_path: Path) -> None:
    """As ReaL's own code counts: `is_correct = [pred in real_labels[i] for i, pred if real_labels[i]]`."""
    folder = make_imagenet(tmp_path / "imagenet")
    (folder / "real.json").write_text(json.dumps(REAL))
    real = open_test(str(folder), "real")
    checkpoint = make_varied(replace(cases.VIT, num_classes=3), real, None)
    order = predict(checkpoint, real).argsort(dim=1, descending=True).tolist()
    expected = [answers[0] in labels for answers, labels in zip(order, REAL, strict=True) if labels]
    report = evaluate_classifier(checkpoint, real, READING).report
    assert (report.num_images, report.num_left_out) == (3, 2)
    assert report.top1.value == pytest.approx(np.mean(expected))
    assert report.top5.value == 1
    assert (report.loss, report.classes) == (None, [])


def test_findings_with_labels_of_real_are_the_mistakes_alone(tmp_path: Path) -> None:
    folder = make_imagenet(tmp_path / "imagenet")
    plain = open_test(str(folder))
    checkpoint = make_varied(replace(cases.VIT, num_classes=3), plain, None)
    answers = predict(checkpoint, plain).argmax(dim=1).tolist()
    wrong = [sorted({0, 1, 2} - {answer}) for answer in answers]
    (folder / "real.json").write_text(json.dumps([wrong[0], [], *([answer] for answer in answers[2:])]))
    found = evaluate_classifier(checkpoint, open_test(str(folder), "real"), READING)
    assert write_findings(found, tmp_path / "out") == ["mistakes.png"]
    names = ("tench, Tinca tinca", "goldfish, Carassius auratus", "crane")
    assert found.name_labels(0) == ", ".join(names[label] for label in wrong[0])
    assert found.name_labels(1) == ""
    (folder / "real.json").write_text(json.dumps([[answer] for answer in answers]))
    assert write_findings(evaluate_classifier(checkpoint, open_test(str(folder), "real"), READING), tmp_path / "none") == []


def test_a_set_like_objectnet_is_judged_by_what_its_classes_stand_for(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "objects", ("Bathrobe", "Chair", "Ladle", "Weight (exercise)"))
    data = open_data(folder)
    names = ("robe", "rocking chair", "folding chair", "ladle", "dumbbell; barbell")
    mapping = tmp_path / "objectnet_to_model.json"
    content = {"Chair": "rocking chair; folding chair", "Ladle": 3, "Weight (exercise)": "dumbbell; barbell", "Teapot": "robe"}
    mapping.write_text(json.dumps(content))
    checkpoint = make_varied(cases.VIT, data, names)
    answers = predict(checkpoint, data).argmax(dim=1).tolist()
    right = [set()] * NUM_EACH + [{1, 2}] * NUM_EACH + [{3}] * NUM_EACH + [{4}] * NUM_EACH
    expected = [answer in labels for answer, labels in zip(answers, right, strict=True) if labels]
    with pytest.warns(VitrineWarning, match=r"^1 of 4 classes stand for none of the model's and do not count: Bathrobe\.$"):
        found = evaluate_classifier(checkpoint, data, READING, mapping=mapping)
    assert (found.report.num_images, found.report.num_left_out) == (3 * NUM_EACH, NUM_EACH)
    assert found.report.top1.value == pytest.approx(np.mean(expected))
    assert found.name_labels(NUM_EACH) == "rocking chair, folding chair"
    assert found.source.class_names == names


def test_a_mapping_to_a_name_that_the_model_has_not_is_refused(checkpoint: Checkpoint, source: Source, tmp_path: Path) -> None:
    (tmp_path / "mapping.json").write_text(json.dumps({"class 0": "class 0; class nought"}))
    with pytest.raises(ValueError, match=r"mapping\.json has 'class nought' for class 0, and a class of the model was needed"):
        evaluate_classifier(checkpoint, source, READING, mapping=tmp_path / "mapping.json")


def test_findings_have_the_table_of_classes_of_the_report(judged: EvaluationResult, tmp_path: Path) -> None:
    assert write_findings(judged, tmp_path / "new" / "out") == ["classes.csv", "confusion.png", "mistakes.png"]
    assert sorted(path.name for path in (tmp_path / "new" / "out").iterdir()) == [
        "classes.csv",
        "confusion.png",
        "mistakes.png",
    ]
    head, *rows = read_csv(tmp_path / "new" / "out" / "classes.csv")
    assert head == ["class", "images", "top1", "low", "high", "mistaken_for"]
    for row, each in zip(rows, judged.report.classes, strict=True):
        assert row[:2] == [each.name, str(each.num_images)]
        assert [float(cell) for cell in row[2:5]] == [each.top1.value, each.top1.low, each.top1.high]
        assert row[5] == (each.mistaken_for or "")


def test_the_pictured_mistakes_are_the_surest_as_the_model_saw_them(
    judged: EvaluationResult, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[list[np.ndarray], list[tuple[str, str]], Path]] = []
    monkeypatch.setattr(classification_report, "draw_mistakes", lambda *arguments: drawn.append(arguments))
    write_findings(judged, tmp_path)
    [(images, titles, path)] = drawn
    shares = predict(judged.checkpoint, source).softmax(dim=1)
    wrong = np.flatnonzero(shares.argmax(dim=1).numpy() != source.labels.values)
    surest = wrong[np.argsort(-shares.max(dim=1).values.numpy()[wrong], kind="stable")][:20].tolist()
    assert path == tmp_path / "mistakes.png"
    assert len(images) == len(surest)
    for image, title, place in zip(images, titles, surest, strict=True):
        seen = judged.checkpoint.preprocessing.load(source.files()[place])
        assert np.array_equal(image, seen.permute(1, 2, 0).numpy())
        assert title == (f"{shares[place].max():.0%} {NAMES[shares[place].argmax()]}", NAMES[source.labels[place]])


def test_without_a_mistake_there_is_no_picture_of_them(checkpoint: Checkpoint, source: Source, tmp_path: Path) -> None:
    answers = predict(checkpoint, source).argmax(dim=1).numpy()
    right = evaluate_classifier(checkpoint, RelabelledSource(source, Labels.one_each(answers), NAMES), READING)
    assert right.report.top1.value == 1
    assert write_findings(right, tmp_path) == ["classes.csv", "confusion.png"]
    assert all(row[5] == "" for row in read_csv(tmp_path / "classes.csv")[1:])


def test_findings_of_a_grey_model(source: Source, tmp_path: Path) -> None:
    grey = make_varied(replace(cases.VIT, num_channels=1), source, NAMES)
    assert "mistakes.png" in write_findings(evaluate_classifier(grey, source, READING), tmp_path)


def test_names_with_commas_and_of_other_scripts(tmp_path: Path) -> None:
    names = ('drake, "duck"', "größer $5_", "猫 🐈")
    data = open_data(write_images(tmp_path / "images", names))
    found = evaluate_classifier(make_varied(replace(cases.VIT, num_classes=3), data, None), data, READING)
    write_findings(found, tmp_path / "out")
    assert [row[0] for row in read_csv(tmp_path / "out" / "classes.csv")[1:]] == sorted(names)


def test_a_model_against_itself_is_no_different(judged: EvaluationResult) -> None:
    paired, differences = compare_classifiers(judged, judged)
    assert (paired.num_images, paired.only_first, paired.only_second, paired.p_value) == (30, 0, 0, 1)
    assert differences == []


def test_two_models_differ_where_one_is_right(judged: EvaluationResult, source: Source) -> None:
    other = make_varied(cases.VIT, source, NAMES, seed=5)
    paired, differences = compare_classifiers(judged, evaluate_classifier(other, source, READING))
    truth = source.labels.values
    answers = [predict(each, source).argmax(dim=1).numpy() for each in (judged.checkpoint, other)]
    first, second = (each == truth for each in answers)
    assert (paired.only_first, paired.only_second) == (int((first & ~second).sum()), int((second & ~first).sum()))
    assert paired.difference.value == pytest.approx(first.mean() - second.mean())
    places = np.flatnonzero(first != second).tolist()
    assert len(places) > 2
    assert differences == [
        Difference(
            image=source.name(place),
            label=NAMES[truth[place]],
            first=NAMES[answers[0][place]],
            second=NAMES[answers[1][place]],
            right="first" if first[place] else "second",
        )
        for place in places
    ]


def test_two_models_with_classes_of_their_own_are_compared_where_both_know_the_label(tmp_path: Path) -> None:
    data = open_data(write_images(tmp_path / "objects", ("cup", "hat", "pen")))
    mappings = {"first": {"cup": [0], "hat": [1, 2]}, "second": {"hat": [0], "pen": [1]}}
    both = []
    for seed, (name, content) in enumerate(mappings.items()):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
        checkpoint = make_varied(replace(cases.VIT, num_classes=3), data, None, seed)
        with pytest.warns(VitrineWarning, match=r"1 of 3 classes stand for none"):
            both.append(evaluate_classifier(checkpoint, data, READING, mapping=tmp_path / f"{name}.json"))
    paired, differences = compare_classifiers(*both)
    assert paired.num_images == NUM_EACH  # hats
    assert all(each.image.startswith("hat/") and each.label == "1, 2" for each in differences)
    first, second = (predict(each.checkpoint, data).argmax(dim=1)[NUM_EACH : 2 * NUM_EACH] for each in both)
    assert paired.only_first - paired.only_second == int((first != 0).sum()) - int((second == 0).sum())


def test_bad_images_that_both_skip_change_no_pair(checkpoint: Checkpoint, source: Source, tmp_path: Path) -> None:
    other = make_varied(cases.VIT, source, NAMES, seed=5)
    folder = write_images(tmp_path / "five", NAMES)
    (folder / "class 0" / "0.png").write_bytes(b"no image")
    data, skipping = open_data(folder), InferenceConfig(num_workers=0, bad_images="skip")
    with pytest.warns(VitrineWarning):
        both = [evaluate_classifier(each, data, skipping) for each in (checkpoint, other)]
    paired, differences = compare_classifiers(*both)
    assert paired.num_images == 29
    hits = [predict(each, source).argmax(dim=1).numpy() == source.labels.values for each in (checkpoint, other)]
    unlike = [place for place in np.flatnonzero(hits[0] != hits[1]).tolist() if place != 0]  # the images are those of `source`
    assert [each.image for each in differences] == [source.name(place) for place in unlike]
    assert len(differences) == paired.only_first + paired.only_second > 2


def test_differences_are_written_as_a_table(tmp_path: Path) -> None:
    differences = [Difference("a/größe, 1.png", "cat", "cat", "dog", "first"), Difference("猫.png", "", "x", '"y"', "second")]
    write_differences(differences, tmp_path / "differences.csv")
    assert read_csv(tmp_path / "differences.csv") == [
        ["image", "label", "first", "second", "right"],
        ["a/größe, 1.png", "cat", "cat", "dog", "first"],
        ["猫.png", "", "x", '"y"', "second"],
    ]
    write_differences([], tmp_path / "none.csv")
    assert read_csv(tmp_path / "none.csv") == [["image", "label", "first", "second", "right"]]


def test_a_model_that_answers_not_a_number_costs_a_sentence(tmp_path: Path) -> None:
    broken = make_checkpoint(cases.VIT)
    with torch.no_grad():
        broken.model.head.weight.fill_(float("nan"))
    with pytest.raises(ValueError, match=r"not a number|finite"):
        evaluate_classifier(
            broken,
            open_data(write_images(tmp_path / "images", tuple(f"class {index}" for index in range(5)), num_each=1)),
            READING,
        )


def test_images_that_only_one_of_two_models_can_take_are_left_out(checkpoint: Checkpoint, tmp_path: Path) -> None:
    folder = write_images(tmp_path / "images", tuple(f"class {index}" for index in range(5)), num_each=1)
    Image.new("LAB", (24, 24)).save(folder / "class 0" / "lab.tif")  # Pillow makes no grey of it
    grey, skipping = make_checkpoint(replace(cases.VIT, num_channels=1)), InferenceConfig(num_workers=0, bad_images="skip")
    with pytest.warns(VitrineWarning):
        both = [evaluate_classifier(each, open_data(folder), skipping) for each in (checkpoint, grey)]
    assert compare_classifiers(*both)[0].num_images == 5


def test_a_long_name_does_not_hide_how_sure_the_model_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitrine.evaluation import classification_report

    figures = []
    monkeypatch.setattr(classification_report, "save_figure", lambda figure, path: figures.append(figure))
    names = tuple(f"Norwegian elkhound, elkhound, number {index}" for index in range(5))
    source = open_data(write_images(tmp_path / "images", names))
    write_findings(
        evaluate_classifier(replace(make_checkpoint(cases.VIT), class_names=names), source, READING), tmp_path / "out"
    )
    assert all(re.match(r"\d+%", panel.get_title()) for panel in figures[-1].axes)


NUM_CLASSES = 8
NAMES_REPORT = tuple(f"class {number}" for number in range(NUM_CLASSES))
IMAGES = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60)


def draw_logits(num_images: int, num_classes: int = NUM_CLASSES) -> Tensor:
    return 2 * torch.randn(num_images, num_classes, generator=torch.Generator().manual_seed(3))


def answer(logits: Tensor, labels: Labels, index: list[int] | None = None) -> TopK:
    """Those that a model with these logits gives to the images of a source, or to some of them."""
    numbers = torch.arange(len(logits)) if index is None else torch.tensor(index)
    batch = torch.from_numpy(labels.to_targets(numbers.numpy(), logits.shape[1]))
    return predict_batches(lambda images: images[:, :, 0, 0], [Batch(logits[:, :, None, None], batch, numbers, 0)])


def draw_labels(num_images: int, num_classes: int = NUM_CLASSES) -> Labels:
    return Labels.one_each(np.random.default_rng(4).integers(num_classes, size=num_images))


def compute_error_by_loop(confidences: np.ndarray, hits: np.ndarray) -> float:
    """The expected calibration error as its definition says it (section 2 of arXiv:1706.04599)."""
    error = 0.0
    for number in range(15):
        inside = [place for place, each in enumerate(confidences) if number == min(int(each * 15), 14)]
        if inside:
            confidence = sum(float(confidences[place]) for place in inside) / len(inside)
            accuracy = sum(bool(hits[place]) for place in inside) / len(inside)
            error += len(inside) / len(hits) * abs(confidence - accuracy)
    return error


def test_figures_are_scikit_learn_s() -> None:
    logits, labels = draw_logits(90), draw_labels(90)
    report = build_report(answer(logits, labels), labels, NAMES_REPORT)
    shares, classes = softmax(logits.double().numpy(), axis=1), np.arange(NUM_CLASSES)
    assert (report.num_images, report.num_left_out) == (90, 0)
    assert report.top1.value == pytest.approx(top_k_accuracy_score(labels.values, shares, k=1, labels=classes))
    assert report.top5.value == pytest.approx(top_k_accuracy_score(labels.values, shares, k=5, labels=classes))
    assert report.loss.value == pytest.approx(log_loss(labels.values, shares, labels=classes), rel=1e-5)
    hits = shares.argmax(axis=1) == labels.values
    assert report.calibration_error.value == pytest.approx(compute_error_by_loop(shares.max(axis=1), hits), abs=1e-6)


def test_intervals_are_scipy_s() -> None:
    logits, labels = draw_logits(90), draw_labels(90)
    report = build_report(answer(logits, labels), labels, NAMES_REPORT)
    shares = [(report.top1, 90), (report.top5, 90), *((each.top1, each.num_images) for each in report.classes)]
    for share, num_images in shares:
        expected = binomtest(round(share.value * num_images), num_images).proportion_ci(method="wilson")
        assert (share.low, share.high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    losses = torch.nn.functional.cross_entropy(logits.double(), torch.from_numpy(labels.values), reduction="none").numpy()
    expected = norm.interval(0.95, loc=losses.mean(), scale=sem(losses))
    assert (report.loss.low, report.loss.high) == pytest.approx(expected, rel=1e-5)
    error = report.calibration_error
    assert error.low is not None
    assert error.high is not None
    assert 0 <= error.low < error.value < error.high


def test_confusions_are_scikit_learn_s() -> None:
    logits, labels = draw_logits(90), draw_labels(90)
    found = count_confusions(answer(logits, labels), labels, NUM_CLASSES)
    assert np.array_equal(found, confusion_matrix(labels.values, logits.argmax(dim=1), labels=np.arange(NUM_CLASSES)))


def test_classes_are_scikit_learn_s_with_their_commonest_mistake() -> None:
    logits, labels = draw_logits(90), draw_labels(90)
    classes = build_report(answer(logits, labels), labels, NAMES_REPORT).classes
    answers = logits.argmax(dim=1).numpy()
    recalls = recall_score(labels.values, answers, labels=np.arange(NUM_CLASSES), average=None)
    assert [each.name for each in classes] == list(NAMES_REPORT)
    assert [each.num_images for each in classes] == np.bincount(labels.values).tolist()
    assert [each.top1.value for each in classes] == pytest.approx(recalls.tolist())
    for number, each in enumerate(classes):
        wrong = answers[(labels.values == number) & (answers != number)].tolist()
        counts = {NAMES_REPORT[other]: wrong.count(other) for other in wrong}
        assert counts[each.mistaken_for] == max(counts.values())


def test_a_class_without_images_is_not_reported_and_one_without_mistakes_has_none() -> None:
    [first, third] = report_classes(np.array([[4, 0, 0], [0, 0, 0], [1, 2, 5]]), ("a", "b", "c"))
    assert (first.name, first.num_images, first.top1.value, first.mistaken_for) == ("a", 4, 1.0, None)
    assert (third.name, third.num_images, third.top1.value, third.mistaken_for) == ("c", 8, 5 / 8, "b")


def test_labels_are_found_by_the_number_of_the_image() -> None:
    """Images that could not be read are missing among the answers, and no other has their labels."""
    logits, labels = draw_logits(20), draw_labels(20)
    kept = [0, 3, 4, 11, 19]
    report = build_report(answer(logits[kept], labels, kept), labels, NAMES_REPORT)
    hits = logits.argmax(dim=1).numpy()[kept] == labels.values[kept]
    assert report.num_images == 5
    assert report.top1.value == pytest.approx(hits.mean())
    names = [NAMES_REPORT[label] for label in labels.values[kept]]
    assert {each.name: each.num_images for each in report.classes} == {name: names.count(name) for name in names}
    assert sum(each.top1.value * each.num_images for each in report.classes) == pytest.approx(hits.sum())


def test_several_labels_have_no_loss_and_no_classes_and_images_without_any_are_left_out() -> None:
    logits = draw_logits(4)
    order = logits.argsort(dim=1, descending=True).tolist()
    labels = Labels.several_each([[order[0][0], order[0][7]], [order[1][4]], [], [order[3][5]]])
    report = build_report(answer(logits, labels), labels, NAMES_REPORT)
    assert (report.num_images, report.num_left_out) == (3, 1)
    assert (report.loss, report.classes) == (None, [])
    assert report.top1.value == pytest.approx(1 / 3)
    assert report.top5.value == pytest.approx(2 / 3)
    shares = softmax(logits.double().numpy(), axis=1).max(axis=1)[[0, 1, 3]]
    expected = compute_error_by_loop(shares, np.array([True, False, False]))
    assert report.calibration_error.value == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("num_classes", [1, 2, 4])
def test_with_fewer_than_five_classes_one_of_the_first_five_is_right(num_classes: int) -> None:
    logits, labels = draw_logits(10, num_classes), draw_labels(10, num_classes)
    report = build_report(answer(logits, labels), labels, NAMES_REPORT[:num_classes])
    assert report.top5.value == 1
    assert sum(each.num_images for each in report.classes) == 10


def test_one_image_is_enough() -> None:
    labels = Labels.one_each([2])
    report = build_report(answer(torch.tensor([[0.0, 0.0, 9.0]]), labels), labels, NAMES_REPORT[:3])
    assert (report.num_images, report.top1.value, report.top5.value) == (1, 1, 1)
    assert [(each.name, each.num_images) for each in report.classes] == [("class 2", 1)]


@pytest.mark.parametrize("labels", [Labels.none_each(3), Labels.several_each([[], [], []])])
def test_nothing_with_a_label_costs_a_sentence(labels: Labels) -> None:
    with pytest.raises(ValueError, match=r"There is no image with a label to evaluate on: check the data and its split\."):
        build_report(answer(draw_logits(3), labels), labels, NAMES_REPORT)


@given(IMAGES)
def test_the_calibration_error_is_that_of_a_loop_over_the_bins(images: list[tuple[float, bool]]) -> None:
    confidences, hits = (np.array(column) for column in zip(*images, strict=True))
    found = compute_calibration_error(confidences, hits)
    assert found == pytest.approx(compute_error_by_loop(confidences, hits), abs=1e-12)
    assert 0 <= found <= 1 + 1e-12


@given(IMAGES)
def test_the_calibration_error_does_not_depend_on_the_order(images: list[tuple[float, bool]]) -> None:
    there, back = (
        compute_calibration_error(*(np.array(column) for column in zip(*order, strict=True)))
        for order in (images, images[::-1])
    )
    assert there == pytest.approx(back, abs=1e-12)


def test_who_is_as_often_right_as_sure_is_calibrated() -> None:
    hits = np.array([True] * 3 + [False])
    assert compute_calibration_error(np.full(4, 0.75), hits) == pytest.approx(0)
    assert compute_calibration_error(np.full(4, 1.0), ~np.ones(4, bool)) == 1
    assert compute_calibration_error(np.full(4, 0.5), hits) == pytest.approx(0.25)
    assert compute_calibration_error(np.array([np.float64(np.float32(1) + np.finfo(np.float32).eps)]), hits[:1]) < 1e-6


def test_too_sure_and_not_sure_enough_do_not_cancel() -> None:
    confidences, hits = np.array([0.9, 0.1]), np.array([False, True])
    assert compute_calibration_error(confidences, hits) == pytest.approx(0.9)


def test_mistakes_come_the_surest_first() -> None:
    logits, labels = draw_logits(90), draw_labels(90)
    mistakes = find_mistakes(answer(logits, labels), 10)
    shares = softmax(logits.double().numpy(), axis=1).max(axis=1)
    wrong = np.flatnonzero(logits.argmax(dim=1).numpy() != labels.values)
    assert mistakes.index.tolist() == wrong[np.argsort(-shares[wrong])][:10].tolist()
    assert not mistakes.hits[:, 0].any()
    assert len(find_mistakes(answer(logits, labels), 1000)) == len(wrong)
    assert len(find_mistakes(answer(logits, labels), 0)) == 0


def test_an_image_without_a_label_is_no_mistake() -> None:
    labels = Labels.several_each([[], [0, 1], [2]])
    logits = torch.tensor([[9.0, 0.0, 0.0], [0.0, 5.0, 0.0], [1.0, 0.0, 0.0]])
    assert find_mistakes(answer(logits, labels), 20).index.tolist() == [2]


def test_where_all_is_right_there_is_no_mistake() -> None:
    assert len(find_mistakes(answer(torch.eye(3), Labels.one_each([0, 1, 2])), 20)) == 0


ODD_NAMES = ("$5 to $6_", "größer 猫 🐈", "W" * 80)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures as they would be saved, with the layout that drawing gives them."""
    figures: list[Figure] = []

    def keep(figure: Figure, path: Path) -> None:
        FigureCanvasAgg(figure).draw()
        figures.append(figure)

    monkeypatch.setattr(classification_report, "save_figure", keep)
    return figures


def draw_answers(num_classes: int, num_images: int = 200) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(num_classes)
    labels = random.integers(num_classes, size=num_images)
    answers = np.where(random.random(num_images) < 0.6, labels, random.integers(num_classes, size=num_images))
    return labels, answers


def name_classes(num_classes: int) -> list[str]:
    return [f"class {number}" for number in range(num_classes)]


def list_texts(labels: list) -> list[str]:
    return [label.get_text() for label in labels]


def test_a_matrix_shows_the_shares_of_each_class(drawn: list[Figure]) -> None:
    labels, answers = draw_answers(7)
    counts = confusion_matrix(labels, answers, labels=range(7))
    draw_confusions(counts, name_classes(7), Path("not written.png"))
    panel = drawn[0].axes[0]
    [image] = panel.get_images()
    expected = confusion_matrix(labels, answers, labels=range(7), normalize="true")
    np.testing.assert_allclose(image.get_array(), expected)
    assert image.get_clim() == (0, 1)
    assert (panel.get_ylabel(), panel.get_xlabel()) == ("label", "answer")
    assert list_texts(panel.get_xticklabels()) == list_texts(panel.get_yticklabels()) == name_classes(7)


def test_counts_stand_in_their_cells(drawn: list[Figure]) -> None:
    counts = np.array([[12, 0, 1], [0, 0, 0], [3, 4, 0]])
    draw_confusions(counts, name_classes(3), Path("not written.png"))
    texts = {text.get_position(): text.get_text() for text in drawn[0].axes[0].texts}
    assert texts == {(0, 0): "12", (2, 0): "1", (0, 2): "3", (1, 2): "4"}  # (answer, label)
    assert np.isfinite(drawn[0].axes[0].get_images()[0].get_array()).all()  # a class without images has no shares


@pytest.mark.parametrize(
    ("num_classes", "has_counts", "has_names"), [(1, 1, 1), (20, 1, 1), (21, 0, 1), (60, 0, 1), (61, 0, 0)]
)
def test_only_what_can_be_read_is_written(num_classes: int, has_counts: int, has_names: int, drawn: list[Figure]) -> None:
    draw_confusions(np.eye(num_classes, dtype=np.int64), name_classes(num_classes), Path("not written.png"))
    panel = drawn[0].axes[0]
    assert len(panel.texts) == has_counts * num_classes
    assert (list_texts(panel.get_yticklabels()) == name_classes(num_classes)) == bool(has_names)


def test_neighbouring_names_stand_clear_of_each_other(drawn: list[Figure]) -> None:
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


def test_any_name_will_do(tmp_path: Path) -> None:
    """Also one of letters that the font lacks, or that reads like a formula."""
    draw_confusions(np.eye(3, dtype=np.int64), ODD_NAMES, tmp_path / "confusion.png")
    image = np.zeros((4, 4, 3), np.uint8)
    draw_mistakes([image] * 3, [(name, name) for name in ODD_NAMES], tmp_path / "mistakes.png")
    for name in ("confusion.png", "mistakes.png"):
        with Image.open(tmp_path / name) as picture:
            assert picture.format == "PNG"


def test_names_are_taken_as_they_are(drawn: list[Figure]) -> None:
    draw_confusions(np.eye(3, dtype=np.int64), ("$a$", "b_{1}", "x^2"), Path("not written.png"))
    labels = drawn[0].axes[0].get_yticklabels()
    assert not any(label.get_parse_math() for label in labels)
    assert list_texts(labels) == ["$a$", "b_{1}", "x^2"]


def test_a_thousand_classes_are_drawn(tmp_path: Path) -> None:
    draw_confusions(np.eye(1000, dtype=np.int64), name_classes(1000), tmp_path / "confusion.png")
    with Image.open(tmp_path / "confusion.png") as picture:
        assert picture.size == (1100, 990)  # (9 + 1) x 9 inches at 110 dots


@pytest.mark.parametrize("num_images", [1, 5, 6, 20])
def test_mistakes_are_shown_in_order_between_answer_and_label(num_images: int, drawn: list[Figure]) -> None:
    images = [np.full((3, 4, 3), 10 * number, np.uint8) for number in range(num_images)]
    titles = [(f"answer {number}", f"label {number}") for number in range(num_images)]
    draw_mistakes(images, titles, Path("not written.png"))
    panels = drawn[0].axes
    assert [(panel.get_title(), panel.get_xlabel()) for panel in panels] == titles
    for panel, image in zip(panels, images, strict=True):
        assert np.array_equal(panel.get_images()[0].get_array(), image)
    places = [(-round(panel.get_position().y0, 2), round(panel.get_position().x0, 2)) for panel in panels]
    assert places == sorted(places)  # line by line
    assert len({x for _, x in places}) == min(5, num_images)


def test_grey_images_are_shown_grey_from_black_to_white(drawn: list[Figure]) -> None:
    image = np.array([[[100], [120]]], np.uint8)
    draw_mistakes([image], [("answer", "label")], Path("not written.png"))
    [shown] = drawn[0].axes[0].get_images()
    assert np.array_equal(shown.get_array(), [[100, 120]])
    colours = shown.cmap(shown.norm(shown.get_array()))[..., :3]
    np.testing.assert_allclose(colours, np.array([[[100] * 3, [120] * 3]]) / 255, atol=1 / 255)


@pytest.mark.parametrize("shape", [(1, 1, 3), (1, 300, 3), (300, 1, 1)])
def test_images_of_any_shape_are_drawn(shape: tuple[int, int, int], tmp_path: Path) -> None:
    draw_mistakes([np.zeros(shape, np.uint8)] * 2, [("a", "b")] * 2, tmp_path / "mistakes.png")
    assert (tmp_path / "mistakes.png").stat().st_size > 0


def test_names_that_are_no_utf_8_can_be_drawn(tmp_path: Path) -> None:
    draw_confusions(np.eye(2, dtype=np.int64), (os.fsdecode(b"a\xff"), "b"), tmp_path / "confusion.png")
