"""Losses against closed forms, mixup in training, and checks of the data."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from vitrine.data.augment.mixup import draw_mixing, mixup_batch
from vitrine.data.batch import Batch
from vitrine.data.config import MixupConfig
from vitrine.data.preprocessing import build_inception_preprocessing
from vitrine.data.source import ArraySource, Labels
from vitrine.models.registry import build_model
from vitrine.objectives.config import SupervisedConfig
from vitrine.objectives.supervised import Supervised, compute_hits, compute_losses

LOGITS = torch.tensor([[2.0, 0.0, -1.0], [0.5, 0.5, 3.0]])
SOFTMAX = SupervisedConfig()
SIGMOID = SupervisedConfig(loss="sigmoid")


def build_batch(labels: Tensor, step: int = 3) -> Batch:
    images = torch.randint(0, 256, (len(labels), 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return Batch(images, labels, torch.arange(len(labels)), step)


def build_objective(config: SupervisedConfig = SOFTMAX, mixing: MixupConfig | None = None) -> Supervised:
    torch.manual_seed(0)
    model = build_model("ViT-Ti/8", width=16, depth=1, num_heads=2, mlp_dim=32, image_size=16, num_classes=3)
    torch.nn.init.normal_(model.head.weight)
    return Supervised(model, build_inception_preprocessing((16, 16)), config, mixing, seed=5)


def test_softmax_loss_is_minus_the_log_probability() -> None:
    first = math.exp(2) / (math.exp(2) + 1 + math.exp(-1))
    second = math.exp(0.5) / (2 * math.exp(0.5) + math.exp(3))
    expected = [-math.log(first), -math.log(second)]
    assert compute_losses(LOGITS, torch.tensor([0, 1]), SOFTMAX).tolist() == pytest.approx(expected, rel=1e-5)


def test_label_smoothing_spreads_a_fraction_over_all_classes() -> None:
    labels = torch.tensor([0, 1])
    smoothed = torch.full((2, 3), 0.3 / 3)
    smoothed[torch.arange(2), labels] += 0.7
    expected = compute_losses(LOGITS, smoothed, SOFTMAX)
    torch.testing.assert_close(compute_losses(LOGITS, labels, SupervisedConfig(label_smoothing=0.3)), expected)


def test_sigmoid_loss_is_a_sum_over_classes() -> None:
    rows = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    expected = [
        sum(math.log1p(math.exp(-z if t else z)) for z, t in zip(row, target, strict=True))
        for row, target in zip(LOGITS.tolist(), rows.tolist(), strict=True)
    ]
    assert compute_losses(LOGITS, rows, SIGMOID).tolist() == pytest.approx(expected, rel=1e-5)
    one = compute_losses(LOGITS, torch.tensor([2, 0]), SIGMOID)
    torch.testing.assert_close(one, compute_losses(LOGITS, torch.eye(3)[[2, 0]], SIGMOID))


def test_a_hit_is_the_label_or_one_of_several() -> None:
    assert compute_hits(LOGITS, torch.tensor([0, 1])).tolist() == [True, False]
    assert compute_hits(LOGITS, torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])).tolist() == [True, False]


def test_the_loss_is_the_mean_over_normalised_images() -> None:
    objective, batch = build_objective(), build_batch(torch.tensor([0, 2, 1, 1]))
    logits = objective.encoder(batch.image / 127.5 - 1)
    output = objective(batch)
    torch.testing.assert_close(output.loss, torch.nn.functional.cross_entropy(logits, batch.target), rtol=1e-5, atol=1e-6)
    assert output.metrics["accuracy"] == (logits.argmax(dim=1) == batch.target).float().mean()
    assert not output.metrics["accuracy"].requires_grad
    output.loss.backward()
    assert all(parameter.grad is not None for parameter in objective.parameters())


def test_mixup_applies_in_training_only() -> None:
    mixing = MixupConfig(mixup=1.0)
    objective, plain = build_objective(mixing=mixing), build_objective()
    batch = objective.add_draws(build_batch(torch.tensor([0, 2, 1, 1])))
    draws = draw_mixing(mixing, (16, 16), 5, batch.index, 3)
    images, targets = mixup_batch(batch.image, batch.target, mixing, draws, 3)
    logits = objective.encoder(images * 2 - 1)
    torch.testing.assert_close(objective(batch).loss, compute_losses(logits, targets, SOFTMAX).mean(), rtol=1e-5, atol=1e-6)
    other = objective.add_draws(build_batch(batch.target, step=4))
    assert not torch.equal(objective(batch).loss, objective(other).loss)
    with pytest.raises(ValueError, match="add_draws"):
        objective(build_batch(batch.target))
    torch.testing.assert_close(objective.eval()(batch).loss, plain.eval()(batch).loss)


def build_source(labels: Labels, class_names: tuple[str, ...]) -> ArraySource:
    return ArraySource(np.zeros((2, 16, 16, 3), np.uint8), labels, class_names, "made")


@pytest.mark.parametrize(
    ("labels", "class_names", "match"),
    [
        (Labels.none_each(2), (), "photos has no labels"),
        (Labels.one_each([0, 0]), ("grass",), "grass"),
        (Labels.several_each([[0, 1], [1]]), ("grass", "tree"), "sigmoid"),
    ],
)
def test_softmax_needs_one_label_of_several_classes(labels: Labels, class_names: tuple[str, ...], match: str) -> None:
    source = build_source(labels, class_names)
    with pytest.raises(ValueError, match=match):
        Supervised.check_data(source, SOFTMAX, "photos")
    if class_names:
        Supervised.check_data(source, SIGMOID, "photos")
