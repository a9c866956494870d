"""Ridge regression and LDA against scikit-learn's on the same features; softmax heads against logistic regression."""

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss
from torch import Tensor
from torch.nn import functional as F

from vitrine.evaluation.linear_heads import (
    Discriminant,
    RidgeProblem,
    Standardiser,
    fit_discriminant_head,
    fit_ridge_head,
    predict_held_out,
    scale_for_softmax,
    sum_by_class,
)

NUM_CLASSES = 5
SHAPES = ((200, 12), (13, 12), (12, 12), (30, 100), (1, 4))  # (13, 12) and (12, 12): either side of the change of formula


def draw_problem(num_images: int, num_features: int) -> tuple[Tensor, Tensor]:
    """Draw features of different means and scales, one of them constant."""
    generator = torch.Generator().manual_seed(num_images)
    features = torch.randn(num_images, num_features, generator=generator) * torch.linspace(0.1, 30, num_features)
    features += torch.linspace(-50, 50, num_features)
    features[:, 1] = 0.3
    return features, torch.randint(0, NUM_CLASSES, (num_images,), generator=generator)


def standardise(features: Tensor, others: Tensor) -> np.ndarray:
    """Standardise with NumPy and append the constant feature."""
    x = features.numpy().astype(np.float64)
    standardised = (others.numpy() - x.mean(axis=0)) / (x.std(axis=0) + 1e-5)
    return np.column_stack([standardised, np.full(len(others), 100.0)])


@pytest.mark.parametrize(("num_images", "num_features"), SHAPES)
def test_ridge_weights_equal_sklearn(num_images: int, num_features: int) -> None:
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
def test_folded_layer_gives_the_same_scores(num_images: int, num_features: int) -> None:
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


def test_features_are_not_modified() -> None:
    features = torch.randn(6, 3, dtype=torch.float64)
    before = features.clone()
    problem = RidgeProblem(features, torch.tensor([0, 1, 2, 0, 1, 2]), 3)
    problem.standardiser.apply(features)
    problem.solve(1.0)
    assert torch.equal(features, before)


def test_wrong_arguments_are_rejected() -> None:
    features, labels = draw_problem(20, 4)
    with pytest.raises(ValueError, match="19 labels"):
        RidgeProblem(features, labels[:19], NUM_CLASSES)
    with pytest.raises(ValueError, match="num_classes=4"):
        RidgeProblem(features, labels, 4)
    with pytest.raises(ValueError, match="-1 to 4"):
        RidgeProblem(features, torch.where(labels == 0, -1, labels), NUM_CLASSES)
    with pytest.raises(ValueError, match=r"\(20, 5\)"):
        RidgeProblem(features, F.one_hot(labels, NUM_CLASSES).float(), NUM_CLASSES)
    with pytest.raises(ValueError, match="num_classes=1"):
        RidgeProblem(features, torch.zeros(20, dtype=torch.int64), 1)
    with pytest.raises(ValueError, match="empty"):
        RidgeProblem(features[:0], labels[:0], NUM_CLASSES)
    with pytest.raises(ValueError, match=r"\(20,\)"):
        Standardiser.fit_and_apply(features[:, 0])
    with pytest.raises(ValueError, match="finite"):
        RidgeProblem(features / 0, labels, NUM_CLASSES)
    for l2 in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="l2="):
            RidgeProblem(features, labels, NUM_CLASSES).solve(l2)


@pytest.mark.parametrize(("num_images", "num_features"), [(60, 5), (12, 30)])
def test_leave_one_out_scores_equal_refits(num_images: int, num_features: int) -> None:
    features, labels = draw_problem(num_images, num_features)
    problem = RidgeProblem(features, labels, NUM_CLASSES)
    left_out = problem.predict_left_out(2.0).numpy()
    z, targets = np.column_stack([problem.z.numpy(), np.full(num_images, 100.0)]), 2.0 * np.eye(NUM_CLASSES)[labels.numpy()] - 1
    for image in range(0, num_images, 5):
        others = np.arange(num_images) != image
        ridge = Ridge(alpha=2.0, fit_intercept=False, solver="svd").fit(z[others], targets[others])
        np.testing.assert_allclose(left_out[image], ridge.predict(z[[image]])[0], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_by_class_equal_one_hot_products(dtype: torch.dtype) -> None:
    """Rows may be strided, and classes may have no images."""
    rows, labels = torch.randn(7, 20, dtype=dtype).T, torch.randint(1, 5, (20,))
    torch.testing.assert_close(sum_by_class(rows, labels, 9), F.one_hot(labels, 9).to(dtype).T @ rows)


NUM_CLASSES_DISCRIMINANT = 3


class Shrunk:
    """Covariance estimator for scikit-learn that adds a constant to every variance."""

    def __init__(self, added: float) -> None:
        self.added = added

    def fit(self, features: np.ndarray) -> None:
        around = features - features.mean(axis=0)
        self.covariance_ = around.T @ around / len(features) + self.added * np.eye(features.shape[1])


def draw_problem_discriminant(num_images: int, num_features: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(num_images)
    labels = torch.arange(num_images) % NUM_CLASSES_DISCRIMINANT
    mixing = torch.randn(num_features, num_features, generator=generator, dtype=torch.float64)
    noise = torch.randn(num_images, num_features, generator=generator, dtype=torch.float64) @ mixing
    centres = torch.randn(NUM_CLASSES_DISCRIMINANT, num_features, generator=generator, dtype=torch.float64)
    return (centres[labels] + noise) - (centres[labels] + noise).mean(dim=0), labels


@pytest.mark.parametrize(("num_images", "num_features"), [(60, 4), (12, 30)])
@pytest.mark.parametrize("shrinkage", [0.1, 3.0])
def test_lda_scores_equal_sklearn(num_images: int, num_features: int, shrinkage: float) -> None:
    """Scikit-learn divides by N, we by N - K, so scores differ by that factor."""
    features, labels = draw_problem_discriminant(num_images, num_features)
    factor = num_images / (num_images - NUM_CLASSES_DISCRIMINANT)
    reference = LinearDiscriminantAnalysis(
        solver="lsqr",
        covariance_estimator=Shrunk(shrinkage / factor),
        priors=np.full(NUM_CLASSES_DISCRIMINANT, 1 / NUM_CLASSES_DISCRIMINANT),
    ).fit(features.numpy(), labels.numpy())
    expected = reference.decision_function(features.numpy()) + np.log(NUM_CLASSES_DISCRIMINANT)
    weight, bias = Discriminant.fit(features, labels, NUM_CLASSES_DISCRIMINANT).solve(shrinkage)
    np.testing.assert_allclose(factor * (features @ weight.T + bias).numpy(), expected, rtol=1e-8, atol=1e-8)


def test_held_out_scores_equal_refits() -> None:
    features, labels = draw_problem_discriminant(60, 4)
    scores = predict_held_out(features, labels, NUM_CLASSES_DISCRIMINANT, (0.1, 1.0))
    folds = (
        torch.stack([torch.arange(60)[labels == each] for each in range(NUM_CLASSES_DISCRIMINANT)]).reshape(-1, 5).T
    )  # (5, 12)
    for held_out in folds:
        others = torch.ones(60, dtype=torch.bool)
        others[held_out] = False
        assert torch.bincount(labels[held_out]).tolist() == [4, 4, 4]
        for shrinkage in (0.1, 1.0):
            weight, bias = Discriminant.fit(features[others], labels[others], NUM_CLASSES_DISCRIMINANT).solve(shrinkage)
            torch.testing.assert_close(scores[shrinkage][held_out], features[held_out] @ weight.T + bias)


def test_log_priors() -> None:
    priors = Discriminant.fit(torch.eye(4, dtype=torch.float64), torch.tensor([0, 0, 0, 1]), 3).log_priors.exp()
    torch.testing.assert_close(priors, torch.tensor([4, 2, 1], dtype=torch.float64) / 7)


def test_fewer_images_than_folds() -> None:
    scores = predict_held_out(torch.eye(3, dtype=torch.float64), torch.arange(3), 3, (1.0,))
    assert scores[1.0].isfinite().all()


FITS = (fit_ridge_head, fit_discriminant_head)


def draw_blobs(num_images: int, pattern: tuple[int, ...] = (0, 1, 2)) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.tensor(pattern)[torch.arange(num_images) % len(pattern)]
    centres = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    return centres[labels] + torch.randn(num_images, 2, generator=generator) + 7, labels


@pytest.mark.parametrize("pattern", [(0, 1, 2), (0, 0, 0, 0, 0, 0, 1, 2)])
@pytest.mark.parametrize("fit", FITS)
def test_head_is_accurate_and_calibrated(fit: type, pattern: tuple[int, ...]) -> None:
    features, labels = draw_blobs(1200, pattern)
    weight, bias = fit(features[:400], labels[:400], 3)
    assert weight.dtype == bias.dtype == torch.float32
    logits, truth = features[400:] @ weight.T + bias, labels[400:]
    reference = LogisticRegression(C=1e6).fit(features[:400], labels[:400])
    assert (logits.argmax(dim=1) == truth).float().mean() > reference.score(features[400:], truth) - 0.03
    loss = F.cross_entropy(logits, truth)
    assert loss < F.cross_entropy(2 * logits, truth)
    assert loss < F.cross_entropy(logits / 2, truth)
    assert loss < log_loss(truth, reference.predict_proba(features[400:])) + 0.08


def test_lda_head_predicts_class_frequencies() -> None:
    """For clusters of equal covariance, its probabilities are the true ones."""
    features, labels = draw_blobs(4000, (0, 0, 0, 0, 0, 0, 1, 2))
    weight, bias = fit_discriminant_head(features, labels, 3)
    expected = (features @ weight.T + bias).softmax(dim=1).mean(dim=0)
    torch.testing.assert_close(expected, torch.tensor([0.75, 0.125, 0.125]), rtol=0, atol=0.02)


@pytest.mark.parametrize("fit", FITS)
def test_class_without_images_is_never_predicted(fit: type) -> None:
    features, labels = draw_blobs(300)
    weight, bias = fit(features, labels, 5)
    assert set((features @ weight.T + bias).argmax(dim=1).tolist()) == {0, 1, 2}


@pytest.mark.parametrize("fit", FITS)
def test_one_image_per_class(fit: type) -> None:
    features = torch.eye(4) * 5
    weight, bias = fit(features, torch.arange(4), 4)
    assert (features @ weight.T + bias).argmax(dim=1).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("fit", FITS)
def test_several_labels_are_rejected(fit: type) -> None:
    with pytest.raises(ValueError, match=r"\(4, 3\)"):
        fit(torch.randn(4, 2), torch.ones(4, 3), 3)


def test_scale_minimises_cross_entropy() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(500) % 4
    scores = F.one_hot(labels, 4) + torch.randn(500, 4, generator=generator, dtype=torch.float64)
    for offsets in (torch.zeros(4), torch.tensor([0.5, 0.0, 0.0, -0.5])):
        scale, loss = scale_for_softmax(scores, labels, offsets)
        losses = [
            F.cross_entropy(factor * scores + offsets, labels, label_smoothing=0.01).item()
            for factor in (scale, scale * 1.02, scale / 1.02)
        ]
        assert loss == pytest.approx(losses[0], rel=1e-9)
        assert loss < min(losses[1:])
