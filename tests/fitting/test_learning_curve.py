"""Learning curves: a power law is found again, and its extrapolation covers what more images bring."""

import numpy as np
import pytest
import torch

from tests.fitting.test_heads import draw_samples
from vitrine.fitting.heads import HeadChoice, Samples, draw_folds, fit_head, measure_accuracies
from vitrine.fitting.learning_curve import compute_learning_curve, fit_power_law

CHOICE = HeadChoice("discriminant", 1.0)


def test_a_power_law_is_found_again() -> None:
    sizes = [2.0, 4.0, 8.0, 16.0]
    accuracies = 1 - 0.8 * np.array(sizes) ** -0.5
    assert fit_power_law(accuracies, sizes, (32.0, 64.0), 1000) == pytest.approx([1 - 0.8 * 32**-0.5, 1 - 0.8 * 64**-0.5])
    assert fit_power_law(np.array([0.9, 0.8, 0.7, 0.6]), sizes, (32.0,), 1000)[0] == pytest.approx(0.7, abs=0.1)  # never falls


def test_the_curve_rises_and_tells_what_more_images_bring() -> None:
    """Half of the images tell, with an interval, the accuracy of a head that is fitted to all."""
    whole = draw_samples(800, 40, noise=4.0)
    half = whole.take(torch.arange(400))
    curve = compute_learning_curve(half, CHOICE, draw_folds(half.targets, 4, seed=0))
    assert curve is not None
    values = [each.value for each in curve.accuracies]
    assert values[0] < values[-1]
    assert curve.doubled_images_per_class == 200
    new = draw_samples(4000, 40, noise=4.0, seed=0)
    weight, bias = fit_head(whole, CHOICE, 1.0)
    accuracy, _ = measure_accuracies(new.values[800:] @ weight.T + bias, new.targets[800:])
    assert curve.doubled.low is not None
    assert curve.doubled.high is not None
    assert curve.doubled.low - 0.02 <= accuracy <= curve.doubled.high + 0.02
    assert curve.gain.value == pytest.approx(curve.doubled.value - values[-1], abs=0.03)
    assert curve.gain.low is not None
    assert curve.gain.high is not None
    assert curve.gain.low < curve.gain.value < curve.gain.high


def test_the_curve_of_a_part_of_the_images_tells_what_twice_as_many_of_all_bring() -> None:
    part = draw_samples(400, 40, noise=4.0)
    folds = draw_folds(part.targets, 4, seed=0)
    curve, of_more = (compute_learning_curve(part, CHOICE, folds, num_images=count) for count in (None, 1600))
    assert curve is not None
    assert of_more is not None
    assert (curve.doubled_images_per_class, of_more.doubled_images_per_class) == (200, 800)
    assert of_more.accuracies == curve.accuracies
    assert 0 <= of_more.gain.value < curve.gain.value


def test_no_curve_of_few_images_or_without_time() -> None:
    few: Samples = draw_samples(30, 4)
    assert compute_learning_curve(few, CHOICE, draw_folds(few.targets, 4, seed=0)) is None
    more = draw_samples(100, 4)
    assert compute_learning_curve(more, CHOICE, draw_folds(more.targets, 4, seed=0), has_time=lambda: False) is None
