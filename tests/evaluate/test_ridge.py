"""Against scikit-learn's ridge regression, on the same standardised features."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch import Tensor
from torch.nn import functional as F

from vitrine.evaluate.ridge import RidgeProblem, Standardiser, sum_by_class

NUM_CLASSES = 5
SHAPES = ((200, 12), (13, 12), (12, 12), (30, 100), (1, 4))  # (13, 12) and (12, 12): either side of the change of formula


def draw_problem(num_images: int, num_features: int) -> tuple[Tensor, Tensor]:
    """Features of different means and scales, one of which never varies."""
    generator = torch.Generator().manual_seed(num_images)
    features = torch.randn(num_images, num_features, generator=generator) * torch.linspace(0.1, 30, num_features)
    features += torch.linspace(-50, 50, num_features)
    features[:, 1] = 0.3
    return features, torch.randint(0, NUM_CLASSES, (num_images,), generator=generator)


def standardise(features: Tensor, others: Tensor) -> np.ndarray:
    """The others as numpy does it, with the constant behind them."""
    x = features.numpy().astype(np.float64)
    standardised = (others.numpy() - x.mean(axis=0)) / (x.std(axis=0) + 1e-5)
    return np.column_stack([standardised, np.full(len(others), 100.0)])


@pytest.mark.parametrize(("num_images", "num_features"), SHAPES)
def test_weights_are_scikit_learn_s_for_any_l2(num_images: int, num_features: int) -> None:
    features, labels = draw_problem(num_images, num_features)
    problem = RidgeProblem(features, labels, NUM_CLASSES)
    targets = 2.0 * np.eye(NUM_CLASSES)[labels.numpy()] - 1
    for l2 in (1e-2, 1.0, 1024.0, 2.0**20):
        reference = Ridge(alpha=l2, fit_intercept=False, solver="svd").fit(standardise(features, features), targets)
        weights, bias = problem.solve(l2)
        assert weights.dtype == bias.dtype == torch.float64
        np.testing.assert_allclose(weights.numpy(), reference.coef_.T[:-1], rtol=1e-6, atol=1e-9)  # some weights are 0
        np.testing.assert_allclose(bias.numpy(), 100 * reference.coef_.T[-1], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("num_images", "num_features"), SHAPES)
def test_scores_and_the_folded_layer_are_the_prediction(num_images: int, num_features: int) -> None:
    features, labels = draw_problem(num_images, num_features)
    others, _ = draw_problem(num_images + 1, num_features)
    problem = RidgeProblem(features, labels, NUM_CLASSES)
    weights, bias = problem.solve(8.0)
    scores = problem.standardiser.apply(others) @ weights + bias
    expected = standardise(features, others) @ np.vstack([weights.numpy(), bias.numpy() / 100])
    np.testing.assert_allclose(scores.numpy(), expected, rtol=1e-9, atol=1e-9)
    weight, bias = problem.standardiser.fold(weights.T, bias)
    assert weight.shape == (NUM_CLASSES, num_features)
    folded = F.linear(others, weight, bias)
    assert folded.dtype == torch.float32
    # Single precision: means are up to 500 times the std.
    torch.testing.assert_close(folded.double(), scores, rtol=1e-5, atol=1e-4)


def test_features_stay_as_they_are() -> None:
    features = torch.randn(6, 3, dtype=torch.float64)
    before = features.clone()
    problem = RidgeProblem(features, torch.tensor([0, 1, 2, 0, 1, 2]), 3)
    problem.standardiser.apply(features)
    problem.solve(1.0)
    assert torch.equal(features, before)


def test_mistakes_are_said_in_a_sentence() -> None:
    features, labels = draw_problem(20, 4)
    with pytest.raises(ValueError, match=r"20 rows of features but 19 labels"):
        RidgeProblem(features, labels[:19], NUM_CLASSES)
    with pytest.raises(ValueError, match=r"labels go from 0 to 4, and 0 to 3 was needed: check num_classes=4"):
        RidgeProblem(features, labels, 4)
    with pytest.raises(ValueError, match=r"labels go from -1 to 4"):
        RidgeProblem(features, torch.where(labels == 0, -1, labels), NUM_CLASSES)
    with pytest.raises(ValueError, match=r"float32 of shape \(20, 5\), and one class for each image"):
        RidgeProblem(features, F.one_hot(labels, NUM_CLASSES).float(), NUM_CLASSES)
    with pytest.raises(ValueError, match=r"num_classes=1 must be at least 2"):
        RidgeProblem(features, torch.zeros(20, dtype=torch.int64), 1)
    with pytest.raises(ValueError, match=r"of no images"):
        RidgeProblem(features[:0], labels[:0], NUM_CLASSES)
    with pytest.raises(ValueError, match=r"Features of shape \(20,\) cannot be standardised"):
        Standardiser.fit_and_apply(features[:, 0])
    with pytest.raises(ValueError, match=r"infinite or not a number"):
        RidgeProblem(features / 0, labels, NUM_CLASSES)
    for l2 in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"l2=.* must be a finite number above 0"):
            RidgeProblem(features, labels, NUM_CLASSES).solve(l2)


@pytest.mark.parametrize(("num_images", "num_features"), [(60, 5), (12, 30)])
def test_left_out_scores_are_those_of_a_fit_without_the_image(num_images: int, num_features: int) -> None:
    features, labels = draw_problem(num_images, num_features)
    problem = RidgeProblem(features, labels, NUM_CLASSES)
    left_out = problem.predict_left_out(2.0).numpy()
    z, targets = np.column_stack([problem.z.numpy(), np.full(num_images, 100.0)]), 2.0 * np.eye(NUM_CLASSES)[labels.numpy()] - 1
    for image in range(0, num_images, 5):
        others = np.arange(num_images) != image
        ridge = Ridge(alpha=2.0, fit_intercept=False, solver="svd").fit(z[others], targets[others])
        np.testing.assert_allclose(left_out[image], ridge.predict(z[[image]])[0], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_by_class_are_those_of_one_hot_labels(dtype: torch.dtype) -> None:
    """Rows need not lie one behind the other in memory, and classes need not have images."""
    rows, labels = torch.randn(7, 20, dtype=dtype).T, torch.randint(1, 5, (20,))
    torch.testing.assert_close(sum_by_class(rows, labels, 9), F.one_hot(labels, 9).to(dtype).T @ rows)
