"""report.html of an evaluation with several labels per image, parsed: its numbers against the report, its links, its names."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.evaluation.test_evaluation_page import CONTEXT, list_facts
from tests.evaluation.test_multi_label import INFERENCE, LABELS, NAMES, make_multi_label, write_labelled_images
from tests.pages import Element, list_links, read_page
from vitrine.core.page_parts import format_short_percent
from vitrine.data.preprocessing import Preprocessing
from vitrine.data.source import ArraySource, Labels
from vitrine.evaluation.features import Features
from vitrine.evaluation.multi_label import MultiLabelResult, build_label_result, evaluate_multi_label
from vitrine.evaluation.multi_label_page import NUM_EXHIBITS, write_multi_label_page
from vitrine.formats.checkpoint import Calibration


def write(result: MultiLabelResult, path: Path) -> Element:
    write_multi_label_page(result, path, CONTEXT)
    return read_page(path)


def make_result(logits: list[list[float]], labels: list[list[int]], names: tuple[str, ...]) -> MultiLabelResult:
    """Make the result of a model with these logits and thresholds of 0.5."""
    pixels = np.zeros((len(labels), 8, 8, 3), dtype=np.uint8)
    source = ArraySource(pixels, Labels.several_each(labels), names, "<img src=x>")
    rows = np.arange(len(labels))
    targets = torch.from_numpy(source.labels.to_targets(rows, len(names)))
    values = Features(torch.tensor(logits), targets, torch.from_numpy(rows))
    calibration = Calibration(thresholds=(0.5,) * len(names))
    return build_label_result(source, Preprocessing(resize=None, crop=(8, 8)), calibration, values)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> MultiLabelResult:
    folder = tmp_path_factory.mktemp("photos")
    data = write_labelled_images(folder)
    model = make_multi_label([folder / f"{number}.png" for number in range(len(LABELS))])
    return evaluate_multi_label(model, data, device="cpu", inference=INFERENCE)


def test_headline_is_the_mean_average_precision(result: MultiLabelResult, tmp_path: Path) -> None:
    page, report = write(result, tmp_path / "report.html"), result.report
    estimate = report.mean_average_precision
    assert page.one(kind="value").text == f"{100 * estimate.value:.1f}%"
    assert page.one(kind="count").text == f"{report.num_labels} labels of 5 classes on 12 images"
    assert estimate.low is not None
    label = page.one("header").one(kind="interval").attributes["aria-label"]
    assert f"{100 * estimate.low:.1f} to {100 * estimate.high:.1f}" in label
    guessing = np.mean(result.labels[:, :4].mean(axis=0))
    assert f"{format_short_percent(float(guessing))} guessing" in page.one("header").one(kind="scale").text
    facts = list_facts(page)
    assert facts["Macro F1"] == format_short_percent(report.macro_f1.value)
    assert facts["Micro F1"] == format_short_percent(report.micro_f1.value)
    assert facts["All labels right"] == format_short_percent(report.exact_match.value)
    assert page.one("pre").text == CONTEXT.command


def test_every_class_has_a_bar_the_lowest_first(result: MultiLabelResult, tmp_path: Path) -> None:
    bars = write(result, tmp_path / "report.html").one(kind="classes")
    worst = sorted(result.report.classes, key=lambda each: each.average_precision.value)
    assert [cell.text for cell in bars.find(kind="name")] == [each.name for each in worst]
    percents = [format_short_percent(each.average_precision.value) for each in worst]
    assert [cell.text for cell in bars.find(kind="num")] == percents
    assert f"{worst[0].num_images} images" in bars.find(kind="taken")[0].text


def test_mistakes_have_class_probability_labels_and_link(result: MultiLabelResult, tmp_path: Path) -> None:
    page = write(result, tmp_path / "report.html")
    wrong, missed = (gallery.find("figure") for gallery in page.find(kind="gallery"))
    expected = []
    for is_mistake, sign in ((result.predicted & ~result.labels, -1), (~result.predicted & result.labels, 1)):
        pairs = sorted(np.argwhere(is_mistake).tolist(), key=lambda pair: sign * result.probabilities[tuple(pair)])
        assert len(pairs) > 1
        expected += pairs[:NUM_EXHIBITS]
    for figure, (row, label) in zip([*wrong, *missed], expected, strict=True):
        caption = figure.one("figcaption").text
        assert figure.one("b").text == NAMES[label]
        assert f"{100 * result.probabilities[row, label]:.0f}\u202f% likely" in caption
        assert f"true: {result.name_labels(row)}" in caption
    links = list_links(page, tmp_path / "report.html")
    assert [link.name for link in links] == [f"{row}.png" for row, _ in expected]
    assert all(link.is_file() for link in links)


def test_no_mistakes_are_no_section(tmp_path: Path) -> None:
    page = write(make_result([[5, -5], [-5, 5]], [[0], [1]], ("a", "b")), tmp_path / "report.html")
    assert page.one(kind="value").text == "100.0%"
    assert page.find(kind="gallery") == []


def test_hostile_names_are_text(tmp_path: Path) -> None:
    names = ("<script>alert(1)</script>", "\u202egpj\x1b[2J")
    page = write(make_result([[5, 5], [-5, 4]], [[1], [0]], names), tmp_path / "report.html")
    assert len(page.find("script")) == 1
    assert "<script>alert(1)</script>" in page.one("main").text
    assert r"\u202egpj\x1b[2J" in page.one("main").text
