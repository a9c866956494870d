"""The calibration error without a temperature, against evaluation of the same model without one."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.evaluation.test_classification_report import INFERENCE, NAMES, make_varied, write_images
from tests.formats import cases
from vitrine.data.open_data import open_data
from vitrine.evaluation.classification_report import evaluate_classifier
from vitrine.evaluation.predictor import Predictor
from vitrine.fitting.uncalibrated import HeldOutAnswers, evaluate_both, measure_uncalibrated
from vitrine.formats.checkpoint import NO_CALIBRATION, Calibration


def test_one_pass_gives_both_errors(tmp_path: Path) -> None:
    source = open_data(write_images(tmp_path / "images", NAMES))
    checkpoint = replace(make_varied(cases.VIT, source, NAMES), calibration=Calibration(temperature=3.0))
    result, uncalibrated = evaluate_both(Predictor(checkpoint, "cpu", INFERENCE), source)
    expected = evaluate_classifier(Predictor(checkpoint, "cpu", INFERENCE), source)
    assert result.report == expected.report
    assert torch.equal(result.predictions.probabilities, expected.predictions.probabilities)
    raw = evaluate_classifier(Predictor(replace(checkpoint, calibration=NO_CALIBRATION), "cpu", INFERENCE), source)
    assert uncalibrated == pytest.approx(raw.report.calibration_error.value, abs=1e-5)
    assert uncalibrated != pytest.approx(result.report.calibration_error.value, abs=1e-3)


def test_calibrated_logits_are_scaled_back() -> None:
    logits = torch.tensor([[1.0, 0.0], [2.0, 0.0]])  # divided by 2 already
    confidences = (2 * logits).softmax(dim=1)[:, 0]
    expected = float((1 - confidences).mean())  # both are right
    answers = HeldOutAnswers(logits, torch.tensor([0, 0]), torch.tensor([0, 1]), 2.0)
    assert measure_uncalibrated(answers, torch.tensor([True, True])) == pytest.approx(expected)
