"""Against scikit-learn, and on released weights."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss, top_k_accuracy_score
from torch import Tensor, nn

from vitrine.data.batch import Batch
from vitrine.data.config import LoaderConfig
from vitrine.data.loader import Loader
from vitrine.data.opening import open_data
from vitrine.data.preprocessing import Preprocessing, build_inception_preprocessing
from vitrine.data.transforms import Evaluation
from vitrine.evaluate.classification import count_hits, evaluate_classification, evaluating, summarise_counts
from vitrine.formats.load import load_checkpoint

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
    places = torch.arange(len(labels)).split(batch_size)
    return [Batch(images[some], labels[some], some, step) for step, some in enumerate(places)]


def compute_shares(model: nn.Module, preprocessing: Preprocessing, batches: list[Batch]) -> np.ndarray:
    logits = model.eval()(preprocessing.normalise(torch.cat([batch.image for batch in batches])))
    return logits.detach().double().softmax(dim=1).numpy()


def test_it_is_scikit_learn_s() -> None:
    labels = torch.randint(0, 12, (50,), generator=torch.Generator().manual_seed(2))
    model, batches = Linear(12), draw_batches(labels, 16)
    found = evaluate_classification(model, PREPROCESSING, batches)
    assert model.training
    shares, classes = compute_shares(model, PREPROCESSING, batches), np.arange(12)
    assert found.num_images == 50
    assert found.top1 == top_k_accuracy_score(labels, shares, k=1, labels=classes)
    assert found.top5 == top_k_accuracy_score(labels, shares, k=5, labels=classes)
    assert found.loss == pytest.approx(log_loss(labels, shares, labels=classes), rel=1e-5)


def test_one_of_several_labels_is_right_and_none_does_not_count() -> None:
    model, labels = Linear(12), torch.zeros(6, 12)
    batches = draw_batches(labels, 6)
    order = np.argsort(-compute_shares(model, PREPROCESSING, batches), axis=1)
    for image, place in enumerate((0, 4, 5, 2)):  # which answer is one of the labels; the last two images have none
        labels[image, order[image, place]] = 1
        labels[image, order[image, 11]] = 1
    found = evaluate_classification(model, PREPROCESSING, draw_batches(labels, 4))
    assert (found.num_images, found.top1, found.top5, found.loss) == (4, 1 / 4, 3 / 4, None)


def test_fewer_than_five_classes_and_nothing_to_evaluate() -> None:
    found = evaluate_classification(Linear(3), PREPROCESSING, draw_batches(torch.tensor([0, 1, 2, 0]), 2))
    assert found.top5 == 1.0
    with pytest.raises(ValueError, match="There is no image with a label to evaluate on"):
        evaluate_classification(Linear(3), PREPROCESSING, draw_batches(torch.zeros(4, 3), 2))
    with pytest.raises(ValueError, match="no image with a label"):
        evaluate_classification(Linear(3), PREPROCESSING, [])


def test_counts_of_parts_add_up_to_the_whole() -> None:
    """Each of several processes counts its own images, and may have more of them than another, or none."""
    labels = torch.randint(0, 12, (23,), generator=torch.Generator().manual_seed(3))
    model, whole = Linear(12).eval(), draw_batches(labels, 23)
    found = evaluate_classification(model, PREPROCESSING, whole)
    for bounds in ((0, 23, 23), (0, 1, 23), (0, 7, 7, 20, 23)):
        parts = [slice_batch(whole[0], start, end) for start, end in itertools.pairwise(bounds)]
        counts = sum(count_hits(lambda images: model(PREPROCESSING.normalise(images)), [part], "cpu") for part in parts)
        summary = summarise_counts(counts)
        assert (summary.num_images, summary.top1, summary.top5) == (23, found.top1, found.top5)
        assert summary.loss == pytest.approx(found.loss, rel=1e-6)


def slice_batch(batch: Batch, start: int, end: int) -> Batch:
    return Batch(batch.image[start:end], batch.label[start:end], batch.index[start:end], batch.step)


@pytest.mark.parametrize("labels", [torch.zeros(0, dtype=torch.int64), torch.zeros(0, 12)])
def test_an_empty_batch_counts_nothing(labels: Tensor) -> None:
    empty = Batch(torch.zeros(0, 3, 8, 8, dtype=torch.uint8), labels, torch.zeros(0, dtype=torch.int64), 0)
    full = draw_batches(torch.tensor([0, 1, 2, 3]) if labels.ndim == 1 else torch.eye(12)[:4], 2)
    model = Linear(12)
    expected = evaluate_classification(model, PREPROCESSING, full)
    assert evaluate_classification(model, PREPROCESSING, [empty, full[0], empty, full[1]]) == expected
    with pytest.raises(ValueError, match="no image with a label"):
        evaluate_classification(model, PREPROCESSING, [empty])


def test_nothing_counted_can_be_added_to_something() -> None:
    nothing = count_hits(Linear(12), [], "cpu")
    assert nothing.tolist() == [0, 0, 0, 0]
    assert nothing.dtype == torch.float64  # what another process adds to it has to be of the same kind


def test_no_gradient_is_kept_while_counting() -> None:
    model, kept = Linear(12), []

    def predict(images: Tensor) -> Tensor:
        kept.append(model(images.float()))
        return kept[-1]

    count_hits(predict, draw_batches(torch.tensor([0, 1]), 2), "cpu")
    assert not kept[0].requires_grad
    assert not kept[0].is_inference()


@pytest.mark.parametrize("was_training", [True, False])
def test_a_module_is_behind_as_it_was(was_training: bool) -> None:
    model = Linear(3).train(was_training)
    with evaluating(model):
        assert not model.training
        assert not model.dropout.training
    assert (model.training, model.dropout.training) == (was_training, was_training)
    with pytest.raises(RuntimeError, match="broken"), evaluating(model):
        raise RuntimeError("broken")
    assert model.training == was_training


@pytest.mark.filterwarnings("ignore::vitrine.core.notices.Notice")
def test_deit_tiny_on_a_hundred_photographs(assets: Path) -> None:
    """Through source, loader and evaluation as through `Preprocessing.load`, file by file."""
    checkpoint = load_checkpoint(assets / "deit-tiny" / "model.safetensors")
    source = open_data(assets / "imagenet-val-1000")
    loader = Loader(source, Evaluation(checkpoint.preprocessing), LoaderConfig(batch_size=50, num_workers=0), shuffle=False)
    batches = list(loader.read(0, 2))
    found = evaluate_classification(checkpoint.model, checkpoint.preprocessing, batches)
    images = torch.stack([checkpoint.preprocessing.load(path) for path in source.files()[:100]])
    assert torch.equal(torch.cat([batch.image for batch in batches]), images)
    with torch.inference_mode():
        answers = checkpoint.model.eval()(checkpoint.preprocessing.normalise(images)).argmax(dim=1)
    assert found.top1 == pytest.approx((answers == torch.arange(100)).float().mean().item())
    assert found.top1 > 0.6
