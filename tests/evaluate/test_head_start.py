"""On blobs that overlap, where logistic regression shows the best that a linear layer can do."""

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from torch import Tensor
from torch.nn import functional as F

from vitrine.evaluate.head_start import fit_discriminant_head, fit_ridge_head, scale_for_softmax

FITS = (fit_ridge_head, fit_discriminant_head)


def draw_blobs(num_images: int, shares: tuple[int, ...] = (0, 1, 2)) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.tensor(shares)[torch.arange(num_images) % len(shares)]
    centres = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    return centres[labels] + torch.randn(num_images, 2, generator=generator) + 7, labels


@pytest.mark.parametrize("shares", [(0, 1, 2), (0, 0, 0, 0, 0, 0, 1, 2)])
@pytest.mark.parametrize("fit", FITS)
def test_head_is_right_and_as_sure_as_it_should_be(fit: type, shares: tuple[int, ...]) -> None:
    features, labels = draw_blobs(1200, shares)
    weight, bias = fit(features[:400], labels[:400], 3)
    assert weight.dtype == bias.dtype == torch.float32
    logits, truth = features[400:] @ weight.T + bias, labels[400:]
    reference = LogisticRegression(C=1e6).fit(features[:400], labels[:400])
    assert (logits.argmax(dim=1) == truth).float().mean() > reference.score(features[400:], truth) - 0.03
    loss = F.cross_entropy(logits, truth)
    assert loss < F.cross_entropy(2 * logits, truth)
    assert loss < F.cross_entropy(logits / 2, truth)
    assert loss < log_loss(truth, reference.predict_proba(features[400:])) + 0.08


def test_the_discriminant_knows_how_frequent_classes_are() -> None:
    """Of blobs whose spread is the same, its probabilities are the true ones."""
    features, labels = draw_blobs(4000, (0, 0, 0, 0, 0, 0, 1, 2))
    weight, bias = fit_discriminant_head(features, labels, 3)
    expected = (features @ weight.T + bias).softmax(dim=1).mean(dim=0)
    torch.testing.assert_close(expected, torch.tensor([0.75, 0.125, 0.125]), rtol=0, atol=0.02)


@pytest.mark.parametrize("fit", FITS)
def test_a_class_without_images_is_never_the_answer(fit: type) -> None:
    features, labels = draw_blobs(300)
    weight, bias = fit(features, labels, 5)
    assert set((features @ weight.T + bias).argmax(dim=1).tolist()) == {0, 1, 2}


@pytest.mark.parametrize("fit", FITS)
def test_one_image_of_each_class_is_enough(fit: type) -> None:
    features = torch.eye(4) * 5
    weight, bias = fit(features, torch.arange(4), 4)
    assert (features @ weight.T + bias).argmax(dim=1).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("fit", FITS)
def test_several_classes_each_are_refused(fit: type) -> None:
    with pytest.raises(ValueError, match=r"one class for each image, int64 \(N\), was needed"):
        fit(torch.randn(4, 2), torch.ones(4, 3), 3)


def test_the_scale_is_where_the_cross_entropy_is_least() -> None:
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
