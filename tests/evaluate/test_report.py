"""A report against scikit-learn, scipy, and a loop over the bins of confidence."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax
from scipy.stats import binomtest, norm, sem
from sklearn.metrics import confusion_matrix, log_loss, recall_score, top_k_accuracy_score
from torch import Tensor

from vitrine.data.batch import Batch
from vitrine.data.source import Labels
from vitrine.evaluate.answers import Answers, collect_answers
from vitrine.evaluate.report import build_report, compute_calibration_error, count_confusions, find_mistakes, report_classes

NUM_CLASSES = 8
NAMES = tuple(f"class {number}" for number in range(NUM_CLASSES))
IMAGES = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60)


def draw_logits(num_images: int, num_classes: int = NUM_CLASSES) -> Tensor:
    return 2 * torch.randn(num_images, num_classes, generator=torch.Generator().manual_seed(3))


def answer(logits: Tensor, labels: Labels, index: list[int] | None = None) -> Answers:
    """Those that a model with these logits gives to the images of a source, or to some of them."""
    numbers = torch.arange(len(logits)) if index is None else torch.tensor(index)
    batch = torch.from_numpy(labels.to_batch(numbers.numpy(), logits.shape[1]))
    return collect_answers(lambda images: images[:, :, 0, 0], [Batch(logits[:, :, None, None], batch, numbers, 0)])


def draw_labels(num_images: int, num_classes: int = NUM_CLASSES) -> Labels:
    return Labels.one_each(np.random.default_rng(4).integers(num_classes, size=num_images))


def compute_error_by_loop(confidences: np.ndarray, hits: np.ndarray) -> float:
    """The expected calibration error as its definition says it (section 2 of arXiv:1706.04599)."""
    error = 0.0
    for number in range(15):
        inside = [place for place, each in enumerate(confidences) if number == min(int(each * 15), 14)]
        if inside:
            confidence = sum(float(confidences[place]) for place in inside) / len(inside)
            accuracy = sum(bool(hits[place]) for place in inside) / len(inside)
            error += len(inside) / len(hits) * abs(confidence - accuracy)
    return error


def test_figures_are_scikit_learn_s() -> None:
    logits, labels = draw_logits(90), draw_labels(90)
    report = build_report(answer(logits, labels), labels, NAMES)
    shares, classes = softmax(logits.double().numpy(), axis=1), np.arange(NUM_CLASSES)
    assert (report.num_images, report.num_left_out) == (90, 0)
    assert report.top1.value == pytest.approx(top_k_accuracy_score(labels.values, shares, k=1, labels=classes))
    assert report.top5.value == pytest.approx(top_k_accuracy_score(labels.values, shares, k=5, labels=classes))
    assert report.loss.value == pytest.approx(log_loss(labels.values, shares, labels=classes), rel=1e-5)
    hits = shares.argmax(axis=1) == labels.values
    assert report.calibration_error.value == pytest.approx(compute_error_by_loop(shares.max(axis=1), hits), abs=1e-6)


def test_intervals_are_scipy_s() -> None:
    logits, labels = draw_logits(90), draw_labels(90)
    report = build_report(answer(logits, labels), labels, NAMES)
    shares = [(report.top1, 90), (report.top5, 90), *((each.top1, each.num_images) for each in report.classes)]
    for share, num_images in shares:
        expected = binomtest(round(share.value * num_images), num_images).proportion_ci(method="wilson")
        assert (share.low, share.high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    losses = torch.nn.functional.cross_entropy(logits.double(), torch.from_numpy(labels.values), reduction="none").numpy()
    expected = norm.interval(0.95, loc=losses.mean(), scale=sem(losses))
    assert (report.loss.low, report.loss.high) == pytest.approx(expected, rel=1e-5)
    error = report.calibration_error
    assert error.low is not None
    assert error.high is not None
    assert 0 <= error.low < error.value < error.high


def test_confusions_are_scikit_learn_s() -> None:
    logits, labels = draw_logits(90), draw_labels(90)
    found = count_confusions(answer(logits, labels), labels, NUM_CLASSES)
    assert np.array_equal(found, confusion_matrix(labels.values, logits.argmax(dim=1), labels=np.arange(NUM_CLASSES)))


def test_classes_are_scikit_learn_s_with_their_commonest_mistake() -> None:
    logits, labels = draw_logits(90), draw_labels(90)
    classes = build_report(answer(logits, labels), labels, NAMES).classes
    answers = logits.argmax(dim=1).numpy()
    recalls = recall_score(labels.values, answers, labels=np.arange(NUM_CLASSES), average=None)
    assert [each.name for each in classes] == list(NAMES)
    assert [each.num_images for each in classes] == np.bincount(labels.values).tolist()
    assert [each.top1.value for each in classes] == pytest.approx(recalls.tolist())
    for number, each in enumerate(classes):
        wrong = answers[(labels.values == number) & (answers != number)].tolist()
        counts = {NAMES[other]: wrong.count(other) for other in wrong}
        assert counts[each.mistaken_for] == max(counts.values())


def test_a_class_without_images_is_not_reported_and_one_without_mistakes_has_none() -> None:
    [first, third] = report_classes(np.array([[4, 0, 0], [0, 0, 0], [1, 2, 5]]), ("a", "b", "c"))
    assert (first.name, first.num_images, first.top1.value, first.mistaken_for) == ("a", 4, 1.0, None)
    assert (third.name, third.num_images, third.top1.value, third.mistaken_for) == ("c", 8, 5 / 8, "b")


def test_labels_are_found_by_the_number_of_the_image() -> None:
    """Images that could not be read are missing among the answers, and no other has their labels."""
    logits, labels = draw_logits(20), draw_labels(20)
    kept = [0, 3, 4, 11, 19]
    report = build_report(answer(logits[kept], labels, kept), labels, NAMES)
    hits = logits.argmax(dim=1).numpy()[kept] == labels.values[kept]
    assert report.num_images == 5
    assert report.top1.value == pytest.approx(hits.mean())
    names = [NAMES[label] for label in labels.values[kept]]
    assert {each.name: each.num_images for each in report.classes} == {name: names.count(name) for name in names}
    assert sum(each.top1.value * each.num_images for each in report.classes) == pytest.approx(hits.sum())


def test_several_labels_have_no_loss_and_no_classes_and_images_without_any_are_left_out() -> None:
    logits = draw_logits(4)
    order = logits.argsort(dim=1, descending=True).tolist()
    labels = Labels.several_each([[order[0][0], order[0][7]], [order[1][4]], [], [order[3][5]]])
    report = build_report(answer(logits, labels), labels, NAMES)
    assert (report.num_images, report.num_left_out) == (3, 1)
    assert (report.loss, report.classes) == (None, [])
    assert report.top1.value == pytest.approx(1 / 3)
    assert report.top5.value == pytest.approx(2 / 3)
    shares = softmax(logits.double().numpy(), axis=1).max(axis=1)[[0, 1, 3]]
    expected = compute_error_by_loop(shares, np.array([True, False, False]))
    assert report.calibration_error.value == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("num_classes", [1, 2, 4])
def test_with_fewer_than_five_classes_one_of_the_first_five_is_right(num_classes: int) -> None:
    logits, labels = draw_logits(10, num_classes), draw_labels(10, num_classes)
    report = build_report(answer(logits, labels), labels, NAMES[:num_classes])
    assert report.top5.value == 1
    assert sum(each.num_images for each in report.classes) == 10


def test_one_image_is_enough() -> None:
    labels = Labels.one_each([2])
    report = build_report(answer(torch.tensor([[0.0, 0.0, 9.0]]), labels), labels, NAMES[:3])
    assert (report.num_images, report.top1.value, report.top5.value) == (1, 1, 1)
    assert [(each.name, each.num_images) for each in report.classes] == [("class 2", 1)]


@pytest.mark.parametrize("labels", [Labels.none_each(3), Labels.several_each([[], [], []])])
def test_nothing_with_a_label_costs_a_sentence(labels: Labels) -> None:
    with pytest.raises(ValueError, match=r"There is no image with a label to evaluate on: check the data and its split\."):
        build_report(answer(draw_logits(3), labels), labels, NAMES)


@given(IMAGES)
def test_the_calibration_error_is_that_of_a_loop_over_the_bins(images: list[tuple[float, bool]]) -> None:
    confidences, hits = (np.array(column) for column in zip(*images, strict=True))
    found = compute_calibration_error(confidences, hits)
    assert found == pytest.approx(compute_error_by_loop(confidences, hits), abs=1e-12)
    assert 0 <= found <= 1 + 1e-12


@given(IMAGES)
def test_the_calibration_error_does_not_depend_on_the_order(images: list[tuple[float, bool]]) -> None:
    there, back = (
        compute_calibration_error(*(np.array(column) for column in zip(*order, strict=True)))
        for order in (images, images[::-1])
    )
    assert there == pytest.approx(back, abs=1e-12)


def test_who_is_as_often_right_as_sure_is_calibrated() -> None:
    hits = np.array([True] * 3 + [False])
    assert compute_calibration_error(np.full(4, 0.75), hits) == pytest.approx(0)
    assert compute_calibration_error(np.full(4, 1.0), ~np.ones(4, bool)) == 1
    assert compute_calibration_error(np.full(4, 0.5), hits) == pytest.approx(0.25)
    assert compute_calibration_error(np.array([np.float64(np.float32(1) + np.finfo(np.float32).eps)]), hits[:1]) < 1e-6


def test_too_sure_and_not_sure_enough_do_not_cancel() -> None:
    confidences, hits = np.array([0.9, 0.1]), np.array([False, True])
    assert compute_calibration_error(confidences, hits) == pytest.approx(0.9)


def test_mistakes_come_the_surest_first() -> None:
    logits, labels = draw_logits(90), draw_labels(90)
    mistakes = find_mistakes(answer(logits, labels), 10)
    shares = softmax(logits.double().numpy(), axis=1).max(axis=1)
    wrong = np.flatnonzero(logits.argmax(dim=1).numpy() != labels.values)
    assert mistakes.index.tolist() == wrong[np.argsort(-shares[wrong])][:10].tolist()
    assert not mistakes.hits[:, 0].any()
    assert len(find_mistakes(answer(logits, labels), 1000)) == len(wrong)
    assert len(find_mistakes(answer(logits, labels), 0)) == 0


def test_an_image_without_a_label_is_no_mistake() -> None:
    labels = Labels.several_each([[], [0, 1], [2]])
    logits = torch.tensor([[9.0, 0.0, 0.0], [0.0, 5.0, 0.0], [1.0, 0.0, 0.0]])
    assert find_mistakes(answer(logits, labels), 20).index.tolist() == [2]


def test_where_all_is_right_there_is_no_mistake() -> None:
    assert len(find_mistakes(answer(torch.eye(3), Labels.one_each([0, 1, 2])), 20)) == 0
