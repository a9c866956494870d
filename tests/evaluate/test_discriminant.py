"""Against scikit-learn's linear discriminant analysis with a covariance of our choice."""

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor

from vitrine.evaluate.discriminant import Discriminant, predict_held_out

NUM_CLASSES = 3


class Shrunk:
    """The covariance of one class with something added to every variance, as scikit-learn asks for it."""

    def __init__(self, added: float) -> None:
        self.added = added

    def fit(self, features: np.ndarray) -> None:
        around = features - features.mean(axis=0)
        self.covariance_ = around.T @ around / len(features) + self.added * np.eye(features.shape[1])


def draw_problem(num_images: int, num_features: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(num_images)
    labels = torch.arange(num_images) % NUM_CLASSES
    mixing = torch.randn(num_features, num_features, generator=generator, dtype=torch.float64)
    noise = torch.randn(num_images, num_features, generator=generator, dtype=torch.float64) @ mixing
    centres = torch.randn(NUM_CLASSES, num_features, generator=generator, dtype=torch.float64)
    return (centres[labels] + noise) - (centres[labels] + noise).mean(dim=0), labels


@pytest.mark.parametrize(("num_images", "num_features"), [(60, 4), (12, 30)])
@pytest.mark.parametrize("shrinkage", [0.1, 3.0])
def test_scores_are_scikit_learn_s(num_images: int, num_features: int, shrinkage: float) -> None:
    """It divides the spread by N, we by N - K, so that scores differ by that factor."""
    features, labels = draw_problem(num_images, num_features)
    factor = num_images / (num_images - NUM_CLASSES)
    reference = LinearDiscriminantAnalysis(
        solver="lsqr", covariance_estimator=Shrunk(shrinkage / factor), priors=np.full(NUM_CLASSES, 1 / NUM_CLASSES)
    ).fit(features.numpy(), labels.numpy())
    expected = reference.decision_function(features.numpy()) + np.log(NUM_CLASSES)
    weight, bias = Discriminant.fit(features, labels, NUM_CLASSES).solve(shrinkage)
    np.testing.assert_allclose(factor * (features @ weight.T + bias).numpy(), expected, rtol=1e-8, atol=1e-8)


def test_held_out_scores_are_those_of_a_fit_without_the_fold() -> None:
    features, labels = draw_problem(60, 4)
    scores = predict_held_out(features, labels, NUM_CLASSES, (0.1, 1.0))
    folds = torch.stack([torch.arange(60)[labels == each] for each in range(NUM_CLASSES)]).reshape(-1, 5).T  # (5, 12)
    for held_out in folds:
        others = torch.ones(60, dtype=torch.bool)
        others[held_out] = False
        assert torch.bincount(labels[held_out]).tolist() == [4, 4, 4]
        for shrinkage in (0.1, 1.0):
            weight, bias = Discriminant.fit(features[others], labels[others], NUM_CLASSES).solve(shrinkage)
            torch.testing.assert_close(scores[shrinkage][held_out], features[held_out] @ weight.T + bias)


def test_frequent_classes_are_likelier_and_missing_ones_rare() -> None:
    shares = Discriminant.fit(torch.eye(4, dtype=torch.float64), torch.tensor([0, 0, 0, 1]), 3).log_shares.exp()
    torch.testing.assert_close(shares, torch.tensor([4, 2, 1], dtype=torch.float64) / 7)


def test_fewer_images_than_folds_will_do() -> None:
    scores = predict_held_out(torch.eye(3, dtype=torch.float64), torch.arange(3), 3, (1.0,))
    assert scores[1.0].isfinite().all()
