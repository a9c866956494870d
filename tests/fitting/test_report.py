"""report.json and report.html of small fits: numbers against the result and scikit-learn, hostile names, several labels."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix

from tests.fitting.colours import save_tiny, write_colours
from tests.fitting.small_fits import COMMAND, NAMES, NUM_TEST, NUM_TRAIN, make_fit, make_fit_with_several_labels
from tests.pages import Element, read_page
from vitrine.core.console import VitrineWarning
from vitrine.data.subsets import SubsetSource
from vitrine.evaluation.config import InferenceConfig
from vitrine.evaluation.intervals import Estimate
from vitrine.evaluation.predictor import Predictor
from vitrine.fitting import finetune_step
from vitrine.fitting import report as module
from vitrine.fitting.config import FitConfig
from vitrine.fitting.findings import find_measured
from vitrine.fitting.finetune import Contest
from vitrine.fitting.fit import fit
from vitrine.fitting.folder import FitFolder
from vitrine.fitting.report import fit_to_json, to_plain, write_fit_report
from vitrine.fitting.result import FitResult


@pytest.fixture(scope="module", autouse=True)
def generator() -> Iterator[None]:
    """Restore torch's generator, which fits seed."""
    with torch.random.fork_rng():
        yield


@pytest.fixture(scope="module")
def tested(tmp_path_factory: pytest.TempPathFactory) -> FitResult:
    return make_fit(tmp_path_factory.mktemp("tested"))


@pytest.fixture(scope="module")
def untested(tmp_path_factory: pytest.TempPathFactory) -> FitResult:
    return make_fit(tmp_path_factory.mktemp("untested"), has_test=False)


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> FitResult:
    return make_fit_with_several_labels(tmp_path_factory.mktemp("several"))


def read_numbers(result: FitResult) -> dict[str, Any]:
    def fail(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads((result.out / "report.json").read_text(), parse_constant=fail)


def list_entries(page: Element) -> list[str]:
    return [link.text for link in page.one("nav").find("a")]


def test_every_fit_has_a_page_and_numbers(tested: FitResult, untested: FitResult, several: FitResult) -> None:
    for result in (tested, untested, several):
        page, numbers = read_page(result.out / "report.html"), read_numbers(result)
        assert page.find("script")[0].attributes["type"] == "module"
        assert len(page.find("script")) == 1
        assert page.one("footer").one("code").text == COMMAND
        assert "seed 3" in page.one("footer").text
        assert set(numbers) == set(fit_to_json(result))
        assert len(page.one(kind="ladder").find(kind="outcome")) == len(result.steps) == len(numbers["steps"])


def test_page_and_numbers_agree_on_the_accuracy(tested: FitResult, untested: FitResult) -> None:
    for result, num_images, images in ((tested, 3 * NUM_TEST, "test"), (untested, 3 * NUM_TRAIN, "cross-validation")):
        page, measured = read_page(result.out / "report.html"), read_numbers(result)["measured"]
        accuracy = Estimate(**measured["accuracy"])
        assert measured["num_images"] == num_images
        assert images in measured["images"]
        assert accuracy.value == pytest.approx(float(result.result.predictions.hits[:, 0].double().mean()))
        assert page.one("header").one(kind="value").text == f"{100 * accuracy.value:.1f}%"
        assert measured["images"] in page.one(kind="count").text
        assert accuracy.low is not None
        assert accuracy.high is not None
        assert f"{round(100 * accuracy.low)} to {round(100 * accuracy.high)} right" in page.one("h1").text


def test_numbers_hold_the_confusion_matrix(tested: FitResult) -> None:
    numbers, predictions = read_numbers(tested), tested.result.predictions
    truth = tested.result.source.labels.values[predictions.index.numpy()]
    matrix = confusion_matrix(truth, predictions.classes[:, 0].numpy(), labels=range(len(NAMES)))
    found = np.zeros_like(matrix)
    for entry in numbers["confusions"]:
        found[NAMES.index(entry["label"]), NAMES.index(entry["predicted"])] = entry["count"]
    np.fill_diagonal(matrix, 0)
    assert (found == matrix).all()
    assert len(numbers["mistakes"]) == matrix.sum()
    assert [each["num_images"] for each in numbers["report"]["classes"]] == [NUM_TEST] * len(NAMES)
    assert numbers["macro_accuracy"] == pytest.approx(np.mean([each["top1"]["value"] for each in numbers["report"]["classes"]]))


def test_the_uncalibrated_error_is_that_of_the_raw_head(tested: FitResult) -> None:
    """Against the saved network itself, whose head knows no temperature."""
    checkpoint, source = tested.checkpoint, tested.images.test
    assert source is not None
    images = torch.stack([checkpoint.preprocessing.prepare(source.read(index)[0].to_pil()) for index in range(len(source))])
    with torch.no_grad():
        logits = checkpoint.model.eval()(checkpoint.preprocessing.normalise(images)).double()
    confidences, classes = logits.softmax(dim=1).max(dim=1)
    hits = (classes == torch.from_numpy(source.labels.values)).double()
    bins = (15 * confidences).long().clamp(max=14)
    expected = sum(
        float((bins == number).double().mean() * (confidences[bins == number].mean() - hits[bins == number].mean()).abs())
        for number in bins.unique()
    )
    assert tested.uncalibrated_error == pytest.approx(expected, abs=1e-5)
    assert checkpoint.calibration.temperature != 1


def test_several_labels_leave_out_what_does_not_apply(several: FitResult) -> None:
    page, numbers = read_page(several.out / "report.html"), read_numbers(several)
    assert "When to trust it" not in list_entries(page)
    assert "Confusions" not in list_entries(page)
    assert numbers["labels"]["mean_average_precision"]["value"] > 0.3
    assert "one label" in page.one(kind="unavailable").text
    assert (numbers["coverage"], numbers["rejection"], numbers["macro_accuracy"], numbers["curve"]) == (None, None, None, None)
    assert numbers["suspects"] == numbers["confusions"] == []


def test_values_that_are_not_finite_become_none() -> None:
    assert to_plain({"a": [Estimate(math.nan, -math.inf, 0.5)], 1: (2, "x")}) == {
        "a": [{"value": None, "low": None, "high": 0.5}],
        "1": [2, "x"],
    }


def test_a_page_that_cannot_be_made_leaves_the_numbers(
    tested: FitResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("no fonts")

    monkeypatch.setattr(module, "build_page", fail)
    folder = FitFolder(tmp_path)
    with pytest.warns(VitrineWarning, match="no fonts"):
        write_fit_report(replace(tested, out=tmp_path), folder)
    assert folder.numbers.is_file()
    assert not folder.report.exists()


def test_a_fine_tuned_model_without_a_test_answers_for_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against predictions of the saved model for the photos held out from both."""
    monkeypatch.setattr(finetune_step, "MIN_FINETUNE_S", 2.0)
    monkeypatch.setattr(Contest, "is_won", property(lambda contest: True))
    data = write_colours(tmp_path / "photos", {"red": 110, "grey": 110, "white": 110}, noise=90)
    config = FitConfig(minutes=60, num_workers=0)
    result = fit(data, save_tiny(tmp_path / "tiny"), tmp_path / "out", config, show_progress=False)
    assert result.contest is not None
    answers = result.result.predictions
    assert len(answers) == result.contest.num_images == result.result.report.num_images
    inference = InferenceConfig(num_workers=0)
    saved = Predictor(tmp_path / "out" / "model", "cpu", inference).predict_source(
        SubsetSource(result.images.train, answers.index.numpy())
    )
    assert torch.equal(saved.classes, answers.classes)
    assert torch.allclose(saved.probabilities, answers.probabilities, atol=1e-5)
    page = read_page(result.out / "report.html")
    assert "held out from fine-tuning" in page.one(kind="count").text
    assert find_measured(result).accuracy.value == pytest.approx(result.contest.new_accuracy)
