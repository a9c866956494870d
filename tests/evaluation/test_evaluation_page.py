"""report.html of an evaluation, parsed: its numbers against the report and scikit-learn, its links against the disk."""

import base64
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix

from tests.evaluation.test_classification_report import INFERENCE, NAMES, assess, make_varied, write_images
from tests.formats import cases
from tests.pages import Element, list_links, list_rows, read_page
from vitrine.data.open_data import open_data
from vitrine.data.preprocessing import Preprocessing
from vitrine.data.source import ArraySource, Labels, Source
from vitrine.data.wrappers import RelabelledSource
from vitrine.evaluation.classification_report import (
    EvaluationResult,
    EvaluationSummary,
    build_report,
    compare_classifiers,
    find_mistakes,
)
from vitrine.evaluation.evaluation_page import EvaluationContext, name_model, shows_top5, write_evaluation_page
from vitrine.evaluation.topk import TopK

CONTEXT = EvaluationContext(model="runs/photos/model", data="photos", split="test", command="vitrine evaluate x y", seconds=2.0)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return open_data(write_images(tmp_path_factory.mktemp("images") / "five <b>", NAMES))


@pytest.fixture(scope="module")
def result(source: Source) -> EvaluationResult:
    return assess(make_varied(cases.VIT, source, NAMES), source, INFERENCE)


def make_result(source: Source, classes: np.ndarray, confidences: np.ndarray | None = None) -> EvaluationResult:
    """Make the result of a model that predicts these classes."""
    num_images = len(source)
    confidences = np.linspace(0.3, 0.9, num_images) if confidences is None else confidences
    truth = torch.tensor([[int(each) in source.labels.as_tuple(index)] for index, each in enumerate(classes)])
    has_label = torch.tensor([len(source.labels.as_tuple(index)) > 0 for index in range(num_images)])
    predictions = TopK(
        index=torch.arange(num_images),
        classes=torch.from_numpy(classes)[:, None],
        probabilities=torch.from_numpy(confidences).float()[:, None],
        hits=truth,
        losses=torch.ones(num_images),
        has_label=has_label,
    )
    report = build_report(predictions, source.labels, source.class_names)
    return EvaluationResult(source, Preprocessing(resize=None, crop=(24, 24)), predictions, report)


def write(result: EvaluationResult, path: Path, **changes: object) -> Element:
    write_evaluation_page(EvaluationSummary(result), path, replace(CONTEXT, **changes))
    return read_page(path)


def list_facts(page: Element) -> dict[str, str]:
    facts = page.one("dl")
    return {term.text: value.text for term, value in zip(facts.find("dt"), facts.find("dd"), strict=True)}


def test_headline_is_the_accuracy(result: EvaluationResult, tmp_path: Path) -> None:
    page, top1 = write(result, tmp_path / "report.html"), result.report.top1
    assert page.one(kind="value").text == f"{100 * top1.value:.1f}%"
    num_hits = int(result.predictions.hits[:, 0].sum())
    assert f"{num_hits} of {len(result.source)}" in page.one(kind="count").text
    assert f"{num_hits} of {len(result.source)}" in page.one("h1").text
    label = page.one("header").one(kind="interval").attributes["aria-label"]
    assert f"{100 * top1.low:.1f} to {100 * top1.high:.1f}" in label
    assert page.one("pre").text == "vitrine evaluate x y"


def test_top5_is_not_shown_of_five_classes(result: EvaluationResult, tmp_path: Path) -> None:
    assert "Top-5" not in list_facts(write(result, tmp_path / "report.html"))
    assert [shows_top5(num_classes) for num_classes in (2, 5, 6, 1000)] == [False, False, True, True]
    source = result.source
    wider = RelabelledSource(source, source.labels, (*NAMES, "sixth"))
    page = write(make_result(wider, source.labels.values % 4), tmp_path / "wider.html")
    assert "Top-5" in list_facts(page)


def test_every_class_has_a_bar_the_lowest_first(result: EvaluationResult, tmp_path: Path) -> None:
    bars = write(result, tmp_path / "report.html").find(kind="classes")[0]
    expected = {each.name: f"{round(each.top1.value * each.num_images)} / {each.num_images}" for each in result.report.classes}
    names, values = ([cell.text for cell in bars.find(kind=kind)] for kind in ("name", "num"))
    assert dict(zip(names, values, strict=True)) == expected
    assert values == sorted(values, key=lambda value: int(value.split()[0]))


def test_pairs_have_the_counts_of_the_confusion_matrix(result: EvaluationResult, tmp_path: Path) -> None:
    page = write(result, tmp_path / "report.html")
    truth, predicted = result.source.labels.values, result.predictions.classes[:, 0].numpy()
    matrix = confusion_matrix(truth, predicted, labels=range(len(NAMES)))
    both = matrix + matrix.T
    found = []
    for pair in page.one(kind="pairs").find("li"):
        first, second = (NAMES.index(caption.text) for caption in pair.find("figcaption"))
        assert [int(count.text) for count in pair.find("b")] == [matrix[first, second], matrix[second, first]]
        found.append(both[first, second])
    assert found == sorted(both[np.triu_indices(len(NAMES), 1)], reverse=True)[: len(found)]


def test_mistakes_have_prediction_label_name_and_link(result: EvaluationResult, tmp_path: Path) -> None:
    page = write(result, tmp_path / "out.html")
    mistakes = find_mistakes(result.predictions, 50)
    assert len(mistakes) > 10
    figures = page.one(kind="gallery").find("figure")
    rows = list_rows(page.one("table"))
    assert (len(figures), len(rows)) == (10, len(mistakes) - 10)
    for row, figure in enumerate(figures):
        index, caption = int(mistakes.index[row]), figure.one("figcaption").text
        assert figure.one("b").text == NAMES[int(mistakes.classes[row, 0])]
        assert f"{100 * mistakes.probabilities[row, 0]:.0f}\u202f% sure" in caption
        assert f"true: {NAMES[result.source.labels[index]]}" in caption
        assert figure.one("code").text == result.source.name(index)
        assert base64.b64decode(figure.one("img").attributes["src"].partition(",")[2])
    for row, cells in enumerate(rows, start=10):
        index = int(mistakes.index[row])
        names = [NAMES[result.source.labels[index]], NAMES[int(mistakes.classes[row, 0])]]
        assert cells[:3] == [result.source.name(index), *names]
    links = list_links(page, tmp_path / "out.html")
    assert [link.resolve() for link in links] == [result.source.image_path(int(index)) for index in mistakes.index]
    assert all(link.is_file() for link in links)


def test_images_without_files_are_named_by_index(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (6, 24, 24, 3), dtype=np.uint8)
    source = ArraySource(pixels, Labels.one_each([0, 1, 0, 1, 0, 1]), ("a", "b"), "data.npz")
    page = write(make_result(source, np.array([1, 1, 0, 1, 0, 0])), tmp_path / "report.html")
    assert [name.text for name in page.one(kind="gallery").find("code")] == ["data.npz[5]", "data.npz[0]"]
    assert list_links(page, tmp_path / "report.html") == []


def test_several_labels_for_each_image(tmp_path: Path) -> None:
    pixels = np.zeros((4, 24, 24, 3), dtype=np.uint8)
    source = ArraySource(pixels, Labels.several_each([[0, 1], [1], [], [2]]), ("a", "b", "c"), "data.npz")
    page = write(make_result(source, np.array([1, 0, 2, 2])), tmp_path / "report.html")
    assert page.one(kind="value").text == "66.7%"
    assert page.find(kind="classes") == page.find(kind="pairs") == []
    assert page.one(kind="gallery").one("b").text == "a"
    assert "1 without a label" in page.one(kind="count").text
    assert page.one(kind="headline").find("i") == []  # guessing has no single accuracy


def test_hostile_names_are_text(tmp_path: Path) -> None:
    names = ("<script>alert(1)</script>", "\u202egpj\x1b[2J")
    pixels = np.zeros((4, 24, 24, 3), dtype=np.uint8)
    source = ArraySource(pixels, Labels.one_each([0, 1, 0, 1]), names, "<img src=x>")
    page = write(make_result(source, np.array([1, 0, 0, 1])), tmp_path / "report.html", model="<i>", data="<b>", command="<u>")
    assert len(page.find("script")) == 1
    assert page.find("u") == []
    assert "<script>alert(1)</script>" in page.one("main").text
    assert r"\u202egpj\x1b[2J" in page.one("main").text


def test_two_models_are_compared(result: EvaluationResult, source: Source, tmp_path: Path) -> None:
    other = assess(make_varied(cases.VIT, source, NAMES, seed=1), source, INFERENCE)
    comparison = compare_classifiers(result, other)
    context = replace(CONTEXT, against="other/model")
    write_evaluation_page(EvaluationSummary(result, other, comparison), tmp_path / "report.html", context)
    section = read_page(tmp_path / "report.html").find("section")[0]
    values = [rung.one(kind="value").text for rung in section.one(kind="ladder").find("li")[:2]]
    assert values == [f"{100 * each.report.top1.value:.1f}\u202f%" for each in (result, other)]
    rows = list_rows(section.one("table"))
    assert rows == [[each.image, each.label, each.first, each.second] for each in comparison.differences[:20]]
    assert f"{comparison.paired.only_first:,} images" in section.text


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("runs/pets/model", "pets"),
        ("runs/pets/best", "pets"),
        ("deit-tiny/model.safetensors", "deit-tiny"),
        ("weights.npz", "weights.npz"),
        ("hf://org/name", "name"),
        ("model", "model"),
    ],
)
def test_names_of_models(model: str, name: str) -> None:
    assert name_model(model) == name


def test_page_of_real_photographs_is_small(assets: Path, tmp_path: Path) -> None:
    source = open_data(assets / "pets", "test")
    random = np.random.default_rng(0)
    classes = np.where(random.random(len(source)) < 0.8, source.labels.values, random.integers(0, 37, len(source)))
    result = replace(
        make_result(source, classes, random.random(len(source))), preprocessing=Preprocessing(resize=256, crop=(224, 224))
    )
    page = write(result, tmp_path / "report.html")
    assert len(page.find("img")) == 10 + 2 * 6
    assert all(link.is_file() for link in list_links(page, tmp_path / "report.html"))
    assert len(page.find(kind="name")) == 37
