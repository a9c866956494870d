"""Answers against scipy's softmax and scikit-learn's figures, whatever the batches."""

import numpy as np
import pytest
import torch
from scipy.special import softmax
from sklearn.metrics import log_loss, top_k_accuracy_score
from torch import Tensor

from vitrine.data.batch import Batch
from vitrine.evaluate.answers import answer_batch, collect_answers

NUM_CLASSES = 12


def draw_logits(num_images: int, num_classes: int = NUM_CLASSES) -> Tensor:
    return 3 * torch.randn(num_images, num_classes, generator=torch.Generator().manual_seed(num_images))


def draw_labels(num_images: int, num_classes: int = NUM_CLASSES) -> Tensor:
    return torch.randint(0, num_classes, (num_images,), generator=torch.Generator().manual_seed(1))


def make_batches(logits: Tensor, labels: Tensor, batch_size: int = 7) -> list[Batch]:
    """Of images whose pixels are the logits, numbered from 100 on."""
    places = torch.arange(len(logits)).split(batch_size)
    return [Batch(logits[some, :, None, None], labels[some], some + 100, step) for step, some in enumerate(places)]


def read_off(images: Tensor) -> Tensor:
    return images[:, :, 0, 0]


def test_answers_are_the_likeliest_classes_with_their_probabilities() -> None:
    logits, labels = draw_logits(40), draw_labels(40)
    found = collect_answers(read_off, make_batches(logits, labels))
    shares = softmax(logits.double().numpy(), axis=1)
    order = np.argsort(-shares, axis=1)[:, :5]
    assert len(found) == 40
    assert found.index.tolist() == list(range(100, 140))
    assert np.array_equal(found.classes.numpy(), order)
    assert found.probabilities.dtype == torch.float32
    np.testing.assert_allclose(found.probabilities.numpy(), np.take_along_axis(shares, order, axis=1), rtol=1e-5)
    assert np.array_equal(found.hits.numpy(), order == labels.numpy()[:, None])


def test_figures_of_them_are_scikit_learn_s() -> None:
    logits, labels = draw_logits(60), draw_labels(60)
    found = collect_answers(read_off, make_batches(logits, labels))
    shares, classes = softmax(logits.double().numpy(), axis=1), np.arange(NUM_CLASSES)
    for k in (1, 2, 5):
        share = found.hits[:, :k].any(dim=1).double().mean().item()
        assert share == pytest.approx(top_k_accuracy_score(labels, shares, k=k, labels=classes))
    assert found.losses.double().mean().item() == pytest.approx(log_loss(labels, shares, labels=classes), rel=1e-5)
    assert found.counts.all()


@pytest.mark.parametrize("batch_size", [1, 3, 50])
def test_the_size_of_batches_changes_nothing(batch_size: int) -> None:
    logits, labels = draw_logits(11), draw_labels(11)
    found = collect_answers(read_off, make_batches(logits, labels, batch_size))
    whole = answer_batch(read_off, make_batches(logits, labels, 11)[0])
    for name, tensor in vars(whole).items():
        assert torch.equal(getattr(found, name), tensor)


@pytest.mark.parametrize(
    ("num_classes", "num_answers", "expected"), [(3, 5, 3), (1, 5, 1), (12, 1, 1), (12, 12, 12), (5, 99, 5)]
)
def test_there_are_as_many_answers_as_were_asked_for_or_classes(num_classes: int, num_answers: int, expected: int) -> None:
    batches = make_batches(draw_logits(4, num_classes), draw_labels(4, num_classes))
    found = collect_answers(read_off, batches, num_answers=num_answers)
    assert found.classes.shape == found.probabilities.shape == found.hits.shape == (4, expected)
    if expected == num_classes:
        torch.testing.assert_close(found.probabilities.sum(dim=1), torch.ones(4))
        assert found.hits.sum(dim=1).tolist() == [1, 1, 1, 1]


def test_of_several_labels_each_is_right_and_without_any_nothing_counts() -> None:
    logits = draw_logits(4)
    order = logits.argsort(dim=1, descending=True)
    labels = torch.zeros(4, NUM_CLASSES)
    labels[0, order[0, [0, 3]]] = 1
    labels[1, order[1, [2, 8]]] = 1
    labels[3, order[3, 11]] = 1
    found = collect_answers(read_off, make_batches(logits, labels))
    assert found.counts.tolist() == [True, True, False, True]
    assert found.hits.tolist() == [
        [True, False, False, True, False],
        [False, False, True, False, False],
        [False] * 5,
        [False] * 5,
    ]
    assert found.losses.isnan().all()
    assert found.probabilities.isfinite().all()  # what it says to an image without a label is known all the same


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_large_logits_stay_finite(size: float) -> None:
    logits = torch.tensor([[size, size - 1, size - 2]])
    found = collect_answers(read_off, make_batches(logits, torch.tensor([1])))
    np.testing.assert_allclose(found.probabilities[0].numpy(), softmax([0.0, -1.0, -2.0]), rtol=1e-3)  # float32 at 1e4
    assert found.losses.item() == pytest.approx(-np.log(softmax([0.0, -1.0, -2.0])[1]), rel=1e-3)


def test_half_precision_is_left_before_anything_is_summed() -> None:
    logits = draw_logits(6, 1000).bfloat16()
    found = collect_answers(lambda images: read_off(images).bfloat16(), make_batches(logits, draw_labels(6, 1000)))
    expected = torch.nn.functional.cross_entropy(logits.float(), draw_labels(6, 1000), reduction="none")
    assert found.losses.dtype == torch.float32
    torch.testing.assert_close(found.losses, expected)


def test_some_are_taken_by_mask_or_by_number() -> None:
    whole = collect_answers(read_off, make_batches(draw_logits(6), draw_labels(6)))
    masked = whole.take(torch.tensor([False, True, False, False, True, False]))
    numbered = whole.take(torch.tensor([4, 1]))
    assert masked.index.tolist() == [101, 104]
    assert numbered.index.tolist() == [104, 101]
    for name, tensor in vars(whole).items():
        assert torch.equal(getattr(numbered, name), tensor[[4, 1]])
        assert torch.equal(getattr(masked, name), tensor[[1, 4]])
    assert len(whole.take(torch.zeros(6, dtype=torch.bool))) == 0


def test_a_batch_of_which_all_was_skipped_adds_nothing() -> None:
    logits, labels = draw_logits(5), draw_labels(5)
    empty = Batch(logits[:0, :, None, None], labels[:0], torch.zeros(0, dtype=torch.int64), 0, ("bad.png",))
    found = collect_answers(read_off, [empty, *make_batches(logits, labels, 2), empty])
    assert found.index.tolist() == [100, 101, 102, 103, 104]
    assert len(collect_answers(read_off, [empty])) == 0


def test_nothing_to_answer_costs_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"There is no image to evaluate on: check the data and its split\."):
        collect_answers(read_off, iter(()))


def test_no_gradient_is_kept() -> None:
    kept: list[Tensor] = []
    layer = torch.nn.Linear(NUM_CLASSES, NUM_CLASSES)

    def predict(images: Tensor) -> Tensor:
        kept.append(layer(read_off(images)))
        return kept[-1]

    collect_answers(predict, make_batches(draw_logits(2), draw_labels(2)))
    assert not kept[0].requires_grad
    assert not kept[0].is_inference()
