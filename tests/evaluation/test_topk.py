"""Top-k predictions and summed metrics against scipy and scikit-learn, whatever the batches; released weights."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import softmax
from sklearn.metrics import log_loss, top_k_accuracy_score
from torch import Tensor, nn

from vitrine.data.augment.transforms import EvalTransform
from vitrine.data.batch import Batch
from vitrine.data.config import LoaderConfig
from vitrine.data.loader import Loader
from vitrine.data.open_data import open_data
from vitrine.data.preprocessing import Preprocessing, build_inception_preprocessing
from vitrine.evaluation.topk import (
    Classification,
    count_hits,
    evaluating,
    predict_batch,
    predict_batches,
    summarise_counts,
)
from vitrine.formats.load import load_checkpoint

NUM_CLASSES = 12


def draw_logits(num_images: int, num_classes: int = NUM_CLASSES) -> Tensor:
    return 3 * torch.randn(num_images, num_classes, generator=torch.Generator().manual_seed(num_images))


def draw_labels(num_images: int, num_classes: int = NUM_CLASSES) -> Tensor:
    return torch.randint(0, num_classes, (num_images,), generator=torch.Generator().manual_seed(1))


def make_batches(logits: Tensor, labels: Tensor, batch_size: int = 7) -> list[Batch]:
    """Make batches of images whose pixels are the logits, with indices from 100."""
    indices = torch.arange(len(logits)).split(batch_size)
    return [Batch(logits[some, :, None, None], labels[some], some + 100, step) for step, some in enumerate(indices)]


def pixels_as_logits(images: Tensor) -> Tensor:
    return images[:, :, 0, 0]


def test_classes_and_probabilities_equal_scipy_softmax() -> None:
    logits, labels = draw_logits(40), draw_labels(40)
    result = predict_batches(pixels_as_logits, make_batches(logits, labels))
    probabilities = softmax(logits.double().numpy(), axis=1)
    order = np.argsort(-probabilities, axis=1)[:, :5]
    assert len(result) == 40
    assert result.index.tolist() == list(range(100, 140))
    assert np.array_equal(result.classes.numpy(), order)
    assert result.probabilities.dtype == torch.float32
    np.testing.assert_allclose(result.probabilities.numpy(), np.take_along_axis(probabilities, order, axis=1), rtol=1e-5)
    assert np.array_equal(result.hits.numpy(), order == labels.numpy()[:, None])


def test_hits_and_losses_equal_sklearn() -> None:
    logits, labels = draw_logits(60), draw_labels(60)
    result = predict_batches(pixels_as_logits, make_batches(logits, labels))
    probabilities, classes = softmax(logits.double().numpy(), axis=1), np.arange(NUM_CLASSES)
    for k in (1, 2, 5):
        accuracy = result.hits[:, :k].any(dim=1).double().mean().item()
        assert accuracy == pytest.approx(top_k_accuracy_score(labels, probabilities, k=k, labels=classes))
    assert result.losses.double().mean().item() == pytest.approx(log_loss(labels, probabilities, labels=classes), rel=1e-5)
    assert result.has_label.all()


@pytest.mark.parametrize("batch_size", [1, 3, 50])
def test_batch_size_changes_nothing(batch_size: int) -> None:
    logits, labels = draw_logits(11), draw_labels(11)
    result = predict_batches(pixels_as_logits, make_batches(logits, labels, batch_size))
    whole = predict_batch(pixels_as_logits, make_batches(logits, labels, 11)[0])
    for name, tensor in vars(whole).items():
        assert torch.equal(getattr(result, name), tensor)


@pytest.mark.parametrize(("num_classes", "top", "expected"), [(3, 5, 3), (1, 5, 1), (12, 1, 1), (12, 12, 12), (5, 99, 5)])
def test_number_of_predicted_classes(num_classes: int, top: int, expected: int) -> None:
    batches = make_batches(draw_logits(4, num_classes), draw_labels(4, num_classes))
    result = predict_batches(pixels_as_logits, batches, top=top)
    assert result.classes.shape == result.probabilities.shape == result.hits.shape == (4, expected)
    if expected == num_classes:
        torch.testing.assert_close(result.probabilities.sum(dim=1), torch.ones(4))
        assert result.hits.sum(dim=1).tolist() == [1, 1, 1, 1]


def test_several_labels_and_none() -> None:
    logits = draw_logits(4)
    order = logits.argsort(dim=1, descending=True)
    labels = torch.zeros(4, NUM_CLASSES)
    labels[0, order[0, [0, 3]]] = 1
    labels[1, order[1, [2, 8]]] = 1
    labels[3, order[3, 11]] = 1
    result = predict_batches(pixels_as_logits, make_batches(logits, labels))
    assert result.has_label.tolist() == [True, True, False, True]
    assert result.hits.tolist() == [
        [True, False, False, True, False],
        [False, False, True, False, False],
        [False] * 5,
        [False] * 5,
    ]
    assert result.losses.isnan().all()
    assert result.probabilities.isfinite().all()  # what it says to an image without a label is known all the same


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_large_logits_stay_finite(size: float) -> None:
    logits = torch.tensor([[size, size - 1, size - 2]])
    result = predict_batches(pixels_as_logits, make_batches(logits, torch.tensor([1])))
    np.testing.assert_allclose(result.probabilities[0].numpy(), softmax([0.0, -1.0, -2.0]), rtol=1e-3)  # float32 at 1e4
    assert result.losses.item() == pytest.approx(-np.log(softmax([0.0, -1.0, -2.0])[1]), rel=1e-3)


def test_half_precision_logits_are_computed_in_float32() -> None:
    logits = draw_logits(6, 1000).bfloat16()
    result = predict_batches(lambda images: pixels_as_logits(images).bfloat16(), make_batches(logits, draw_labels(6, 1000)))
    expected = torch.nn.functional.cross_entropy(logits.float(), draw_labels(6, 1000), reduction="none")
    assert result.losses.dtype == torch.float32
    torch.testing.assert_close(result.losses, expected)


def test_take_rows_by_mask_or_number() -> None:
    whole = predict_batches(pixels_as_logits, make_batches(draw_logits(6), draw_labels(6)))
    masked = whole.take(torch.tensor([False, True, False, False, True, False]))
    numbered = whole.take(torch.tensor([4, 1]))
    assert masked.index.tolist() == [101, 104]
    assert numbered.index.tolist() == [104, 101]
    for name, tensor in vars(whole).items():
        assert torch.equal(getattr(numbered, name), tensor[[4, 1]])
        assert torch.equal(getattr(masked, name), tensor[[1, 4]])
    assert len(whole.take(torch.zeros(6, dtype=torch.bool))) == 0


def test_empty_batch_adds_nothing() -> None:
    logits, labels = draw_logits(5), draw_labels(5)
    empty = Batch(logits[:0, :, None, None], labels[:0], torch.zeros(0, dtype=torch.int64), 0, skipped=("bad.png",))
    result = predict_batches(pixels_as_logits, [empty, *make_batches(logits, labels, 2), empty])
    assert result.index.tolist() == [100, 101, 102, 103, 104]
    assert len(predict_batches(pixels_as_logits, [empty])) == 0


def test_no_batches_raise() -> None:
    with pytest.raises(ValueError, match="no images"):
        predict_batches(pixels_as_logits, iter(()))


def test_predictions_have_no_gradient() -> None:
    kept: list[Tensor] = []
    layer = torch.nn.Linear(NUM_CLASSES, NUM_CLASSES)

    def predict(images: Tensor) -> Tensor:
        kept.append(layer(pixels_as_logits(images)))
        return kept[-1]

    predict_batches(predict, make_batches(draw_logits(2), draw_labels(2)))
    assert not kept[0].requires_grad
    assert not kept[0].is_inference()


PREPROCESSING = build_inception_preprocessing((8, 8))


class Linear(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(192, num_classes)
        self.dropout = nn.Dropout(0.5)  # must be off

    def forward(self, images: Tensor) -> Tensor:
        return self.dropout(self.head(images.flatten(1)))


def draw_batches(labels: Tensor, batch_size: int) -> list[Batch]:
    images = torch.randint(0, 256, (len(labels), 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    indices = torch.arange(len(labels)).split(batch_size)
    return [Batch(images[some], labels[some], some, step) for step, some in enumerate(indices)]


def classify(model: nn.Module, preprocessing: Preprocessing, batches: list[Batch]) -> Classification:
    with evaluating(model):
        return summarise_counts(count_hits(lambda images: model(preprocessing.normalise(images)), batches, "cpu"))


def compute_probabilities(model: nn.Module, preprocessing: Preprocessing, batches: list[Batch]) -> np.ndarray:
    logits = model.eval()(preprocessing.normalise(torch.cat([batch.image for batch in batches])))
    return logits.detach().double().softmax(dim=1).numpy()


def test_accuracy_and_loss_equal_sklearn() -> None:
    labels = torch.randint(0, 12, (50,), generator=torch.Generator().manual_seed(2))
    model, batches = Linear(12), draw_batches(labels, 16)
    result = classify(model, PREPROCESSING, batches)
    assert model.training
    probabilities, classes = compute_probabilities(model, PREPROCESSING, batches), np.arange(12)
    assert result.num_images == 50
    assert result.top1 == top_k_accuracy_score(labels, probabilities, k=1, labels=classes)
    assert result.top5 == top_k_accuracy_score(labels, probabilities, k=5, labels=classes)
    assert result.loss == pytest.approx(log_loss(labels, probabilities, labels=classes), rel=1e-5)


def test_one_of_several_labels_is_enough() -> None:
    model, labels = Linear(12), torch.zeros(6, 12)
    batches = draw_batches(labels, 6)
    order = np.argsort(-compute_probabilities(model, PREPROCESSING, batches), axis=1)
    for image, rank in enumerate((0, 4, 5, 2)):  # rank of the prediction that is a label; the last two images have none
        labels[image, order[image, rank]] = 1
        labels[image, order[image, 11]] = 1
    result = classify(model, PREPROCESSING, draw_batches(labels, 4))
    assert (result.num_images, result.top1, result.top5, result.loss) == (4, 1 / 4, 3 / 4, None)


def test_fewer_than_five_classes_and_no_labels() -> None:
    result = classify(Linear(3), PREPROCESSING, draw_batches(torch.tensor([0, 1, 2, 0]), 2))
    assert result.top5 == 1.0
    with pytest.raises(ValueError, match="no images with a label"):
        classify(Linear(3), PREPROCESSING, draw_batches(torch.zeros(4, 3), 2))
    with pytest.raises(ValueError, match="no images with a label"):
        classify(Linear(3), PREPROCESSING, [])


def test_counts_of_ranks_add_up() -> None:
    """Ranks may have different numbers of images, or none."""
    labels = torch.randint(0, 12, (23,), generator=torch.Generator().manual_seed(3))
    model, whole = Linear(12).eval(), draw_batches(labels, 23)
    result = classify(model, PREPROCESSING, whole)
    for bounds in ((0, 23, 23), (0, 1, 23), (0, 7, 7, 20, 23)):
        parts = [slice_batch(whole[0], start, end) for start, end in itertools.pairwise(bounds)]
        counts = sum(count_hits(lambda images: model(PREPROCESSING.normalise(images)), [part], "cpu") for part in parts)
        summary = summarise_counts(counts)
        assert (summary.num_images, summary.top1, summary.top5) == (23, result.top1, result.top5)
        assert summary.loss == pytest.approx(result.loss, rel=1e-6)


def slice_batch(batch: Batch, start: int, end: int) -> Batch:
    return Batch(batch.image[start:end], batch.target[start:end], batch.index[start:end], batch.step)


@pytest.mark.parametrize("labels", [torch.zeros(0, dtype=torch.int64), torch.zeros(0, 12)])
def test_empty_batches_do_not_count(labels: Tensor) -> None:
    empty = Batch(torch.zeros(0, 3, 8, 8, dtype=torch.uint8), labels, torch.zeros(0, dtype=torch.int64), 0)
    full = draw_batches(torch.tensor([0, 1, 2, 3]) if labels.ndim == 1 else torch.eye(12)[:4], 2)
    model = Linear(12)
    expected = classify(model, PREPROCESSING, full)
    assert classify(model, PREPROCESSING, [empty, full[0], empty, full[1]]) == expected
    with pytest.raises(ValueError, match="no images with a label"):
        classify(model, PREPROCESSING, [empty])


def test_no_batches_count_as_zeros() -> None:
    nothing = count_hits(Linear(12), [], "cpu")
    assert nothing.tolist() == [0, 0, 0, 0]
    assert nothing.dtype == torch.float64  # so that counts of other ranks can be added


def test_counting_has_no_gradient() -> None:
    model, kept = Linear(12), []

    def predict(images: Tensor) -> Tensor:
        kept.append(model(images.float()))
        return kept[-1]

    count_hits(predict, draw_batches(torch.tensor([0, 1]), 2), "cpu")
    assert not kept[0].requires_grad
    assert not kept[0].is_inference()


@pytest.mark.parametrize("was_training", [True, False])
def test_evaluating_restores_the_mode(was_training: bool) -> None:
    model = Linear(3).train(was_training)
    with evaluating(model):
        assert not model.training
        assert not model.dropout.training
    assert (model.training, model.dropout.training) == (was_training, was_training)
    with pytest.raises(RuntimeError, match="broken"), evaluating(model):
        raise RuntimeError("broken")
    assert model.training == was_training


@pytest.mark.filterwarnings("ignore::vitrine.core.console.VitrineWarning")
def test_deit_tiny_on_a_hundred_photographs(assets: Path) -> None:
    """Loader and metrics against `Preprocessing.load` and the model, file by file."""
    checkpoint = load_checkpoint(assets / "deit-tiny" / "model.safetensors")
    source = open_data(assets / "imagenet-val-1000")
    loader = Loader(source, EvalTransform(checkpoint.preprocessing), LoaderConfig(batch_size=50, num_workers=0), shuffle=False)
    batches = list(loader.read(0, 2))
    result = classify(checkpoint.model, checkpoint.preprocessing, batches)
    images = torch.stack([checkpoint.preprocessing.load(path) for path in source.files()[:100]])
    assert torch.equal(torch.cat([batch.image for batch in batches]), images)
    with torch.inference_mode():
        predictions = checkpoint.model.eval()(checkpoint.preprocessing.normalise(images)).argmax(dim=1)
    assert result.top1 == pytest.approx((predictions == torch.arange(100)).float().mean().item())
    assert result.top1 > 0.6
