"""Temperature, rejection and thresholds against closed forms, scipy and scikit-learn."""

import numpy as np
import pytest
import torch
from scipy.stats import wilcoxon
from sklearn.metrics import f1_score
from torch.nn import functional as F

from vitrine.evaluation.calibration import (
    choose_rejection,
    choose_thresholds,
    compute_coverage,
    compute_log_losses,
    compute_p_value,
    fit_temperature,
)


def draw_logits(num_images: int = 4000, num_classes: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw logits and, from their softmax, labels: they are calibrated."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(num_images, num_classes, generator=generator, dtype=torch.float64)
    return logits, torch.multinomial(logits.softmax(dim=1), 1, generator=generator)[:, 0]


@pytest.mark.parametrize("temperature", [0.2, 1.0, 5.0])
def test_temperature_of_logits_that_were_scaled(temperature: float) -> None:
    logits, labels = draw_logits()
    assert fit_temperature(temperature * logits, labels) == pytest.approx(temperature, rel=0.02)


@pytest.mark.parametrize("num_images", [20, 2000])
def test_temperature_without_a_mistake_leaves_one_image_of_doubt(num_images: int) -> None:
    """The mean probability of wrong classes is as if one image had any label."""
    labels = torch.arange(num_images) % 4
    scores = F.one_hot(labels, 4).double()
    wrong = 1 - (scores / fit_temperature(scores, labels)).softmax(dim=1).amax(dim=1)
    assert wrong.mean().item() == pytest.approx(0.75 / num_images, rel=1e-3)


def test_temperature_leaves_offsets_alone() -> None:
    logits, labels = draw_logits()
    offsets = torch.linspace(-1, 1, 6, dtype=torch.float64)
    assert fit_temperature(3 * (logits - offsets), labels, offsets) == pytest.approx(3, rel=0.02)


def test_temperature_of_several_labels() -> None:
    logits, _ = draw_logits()
    generator = torch.Generator().manual_seed(1)
    labels = (torch.rand(logits.shape, generator=generator, dtype=torch.float64) < logits.sigmoid()).float()
    assert fit_temperature(4 * logits, labels) == pytest.approx(4, rel=0.02)
    expected = F.binary_cross_entropy_with_logits(logits, labels.double())
    assert compute_log_losses(logits, labels).mean().item() == pytest.approx(expected.item())


def test_rejection_keeps_as_many_answers_as_95_percent_allow() -> None:
    confidences = np.linspace(0.99, 0.0, 100)
    hits = np.arange(100) < 76  # the surest 76 are right: of the surest 80, 95 %
    threshold = choose_rejection(confidences, hits)
    assert threshold == confidences[79]
    assert hits[confidences >= threshold].mean() == 0.95
    assert choose_rejection(confidences, np.ones(100, dtype=bool)) is None  # nothing to reject
    assert choose_rejection(confidences, np.arange(100) < 3) is None  # hardly anything would be left
    assert choose_rejection(confidences, np.arange(100) >= 50) is None  # the surest are wrong


def test_coverage_falls_and_accuracy_follows() -> None:
    confidences, hits = np.linspace(0.99, 0.0, 200), np.arange(200) < 100
    curve = compute_coverage(confidences, hits)
    assert (curve.coverage[0], curve.accuracy[0]) == (1.0, 0.5)
    assert curve.accuracy[-1] == 1.0
    assert list(curve.thresholds) == sorted(curve.thresholds)
    for threshold, coverage, accuracy in zip(curve.thresholds, curve.coverage, curve.accuracy, strict=True):
        assert coverage == (confidences >= threshold).mean()
        assert accuracy == hits[confidences >= threshold].mean()


def test_thresholds_have_the_largest_f1() -> None:
    generator = np.random.default_rng(0)
    probabilities = generator.random((60, 3)).round(1)  # with ties
    labels = (generator.random((60, 3)) < probabilities * [1.0, 0.5, 0.1]).astype(float)
    thresholds = choose_thresholds(probabilities, labels)
    for column, threshold in enumerate(thresholds):
        scores = [
            f1_score(labels[:, column], probabilities[:, column] >= each) for each in (threshold, *np.linspace(0.05, 0.95, 19))
        ]
        assert scores[0] == max(scores)
    assert choose_thresholds(probabilities[:, :1], np.zeros((60, 1))) == (0.5,)
    assert choose_thresholds(probabilities[:, :1], np.ones((60, 1))) == (0.5,)


def test_p_value() -> None:
    generator = torch.Generator().manual_seed(0)
    old = torch.rand(200, generator=generator, dtype=torch.float64)
    new = old - 0.02 + 0.1 * torch.randn(200, generator=generator, dtype=torch.float64)
    found = compute_p_value(new, old)
    assert found == pytest.approx(float(wilcoxon(old.numpy(), new.numpy(), alternative="greater").pvalue), abs=0.02)
    assert found < 0.05 < compute_p_value(old, new)
    assert compute_p_value(old, old) == 1.0
