"""What a fit has found: which accuracy is stated, thresholds, and what was left out."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.formats import cases
from vitrine.data.preprocessing import Framing, Preprocessing
from vitrine.data.source import ArraySource, Labels, Source
from vitrine.evaluation.classification_report import EvaluationResult, build_report
from vitrine.evaluation.intervals import Estimate
from vitrine.evaluation.topk import TopK
from vitrine.fitting.budget import Part
from vitrine.fitting.findings import (
    compute_macro_accuracy,
    describe_framing,
    describe_readout,
    find_coverage,
    find_measured,
    find_rejection,
    list_cautions,
)
from vitrine.fitting.finetune import Contest
from vitrine.fitting.images import FitImages
from vitrine.fitting.result import FitResult, LadderStep
from vitrine.formats.checkpoint import Calibration

NUM_EACH = 20
WON = Contest(60, 0.5, 0.3, 0.8, 0.9, 0.001)


def make_source(num_each: int = NUM_EACH) -> Source:
    labels = [label for label in range(5) for _ in range(num_each)]
    pixels = np.random.default_rng(0).integers(0, 255, (len(labels), 24, 24, 3), dtype=np.uint8)
    return ArraySource(pixels, Labels.one_each(labels), tuple("abcde"), "data.npz")


def make_evaluation(source: Source, confidences: np.ndarray, hits: np.ndarray) -> EvaluationResult:
    """Make answers of these confidences, of which some are right."""
    labels = torch.from_numpy(source.labels.values)
    classes = torch.where(torch.from_numpy(hits), labels, (labels + 1) % 5)
    predictions = TopK(
        index=torch.arange(len(source)),
        classes=classes[:, None],
        probabilities=torch.from_numpy(confidences).float()[:, None],
        hits=torch.from_numpy(hits)[:, None],
        losses=torch.ones(len(source)),
        has_label=torch.ones(len(source), dtype=torch.bool),
    )
    report = build_report(predictions, source.labels, source.class_names)
    return EvaluationResult(source, Preprocessing(resize=24, crop=(24, 24)), predictions, report)


def make_result(**changes: object) -> FitResult:
    """Make the result of a fit whose answers are right from a confidence of 0.4 on."""
    source = make_source()
    confidences = np.linspace(0.2, 1.0, len(source))
    checkpoint = replace(cases.make_checkpoint(cases.VIT), calibration=Calibration(2.0, reject_below=0.6))
    accuracy = Estimate(0.75, 0.7, 0.8)
    result = FitResult(
        out=Path("out"),
        model="models/tiny/model.safetensors",
        data="photos",
        images=FitImages(source, source, num_available=(len(source), len(source))),
        checkpoint=checkpoint,
        steps=[LadderStep("Linear discriminant", "last block", 61.0, accuracy, 0.5, "kept")],
        expected=accuracy,
        result=make_evaluation(source, confidences, confidences >= 0.4),
        is_tested=True,
        uncalibrated_error=0.1,
        curve=None,
        contest=None,
        parts=[Part("features", 0.0, 50.0), Part("heads", 50.0, 61.0)],
        minutes=5.0,
        seconds=70.0,
    )
    return replace(result, **changes)


def test_the_test_counts_before_held_out_images_and_cross_validation() -> None:
    result = make_result(contest=WON)
    assert find_measured(result).images == "test photos"
    assert find_measured(result).accuracy == result.result.report.top1
    assert "held out" in find_measured(replace(result, is_tested=False)).images
    assert "cross-validation" in find_measured(replace(result, is_tested=False, contest=None)).images


def test_macro_accuracy_is_the_mean_over_classes() -> None:
    result = make_result()
    assert compute_macro_accuracy(result) == pytest.approx(float(result.result.predictions.hits.double().mean()))


def test_the_threshold_is_counted_on_the_measured_answers() -> None:
    result = make_result()
    rejection, coverage = find_rejection(result), find_coverage(result)
    assert rejection is not None
    assert coverage is not None
    assert rejection.coverage == pytest.approx(0.5, abs=0.011)
    assert rejection.accuracy.value == 1.0
    assert coverage.accuracy[0] == pytest.approx(result.result.report.top1.value)  # all are answered
    assert coverage.coverage[0] == 1.0
    without = replace(result.checkpoint, calibration=Calibration(2.0))
    assert find_rejection(replace(result, checkpoint=without)) is None
    silent = replace(result.checkpoint, calibration=Calibration(2.0, reject_below=1.0))
    unsure = make_evaluation(result.images.train, np.full(100, 0.5), np.ones(100, bool))
    assert find_rejection(replace(result, checkpoint=silent, result=unsure)) is None


@pytest.mark.parametrize(("framing", "word"), [("crop", "crop"), ("letterbox", "bars"), ("squash", "squeezed")])
def test_the_framing_is_described(framing: Framing, word: str) -> None:
    checkpoint = cases.make_checkpoint(cases.VIT)
    framed = replace(checkpoint, preprocessing=checkpoint.preprocessing.with_framing(framing))
    assert word in describe_framing(framed)
    assert "24 px" in describe_framing(framed)


def test_models_without_layers_to_read_are_described() -> None:
    assert "own features" in describe_readout(cases.make_checkpoint(cases.BIT))


def test_everything_that_was_left_out_is_told() -> None:
    source = make_source(2)
    names = {"cannot be read": ["<b>.jpg"], "also in the test split": [f"{number}.jpg" for number in range(7)]}
    images = FitImages(source, source, names, was_searched=False, num_available=(50, 30))
    told = " ".join(list_cautions(images, ["Something."]))
    for words in ("Something.", "10 of 50", "10 of 30", "1 training photo,", "<b>.jpg", "7 training photos", "copies"):
        assert words in told
    assert list_cautions(FitImages(source, None, num_available=(10, 0)), []) == []
