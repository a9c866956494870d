"""Against scikit-learn's ridge classifier on drawn digits, and on data whose answer is known."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import RidgeClassifier

from vitrine.core.notices import Notice
from vitrine.evaluate.features import Features
from vitrine.evaluate.few_shot import evaluate_few_shot


def make_features(values: np.ndarray, labels: np.ndarray) -> Features:
    return Features(torch.from_numpy(values).float(), torch.from_numpy(labels), torch.arange(len(values)))


def draw_blobs(num_each: int, seed: int = 0) -> Features:
    """Four classes, 50 std out along axes of their own, around a point far from the origin."""
    labels = np.repeat(np.arange(4), num_each)
    noise = np.random.default_rng(seed).normal(size=(len(labels), 4))
    return make_features(noise + 50 * np.eye(4)[labels] + 1000, labels)


@pytest.fixture(scope="module")
def digits() -> tuple[Features, Features]:
    values, labels = load_digits(return_X_y=True)
    return make_features(values[:1000], labels[:1000]), make_features(values[1000:], labels[1000:])


def compute_with_scikit_learn(train: Features, test: Features, num_classes: int, shots: int, seed: int, l2: float) -> float:
    generator = np.random.default_rng(seed)
    labels = train.labels.numpy()
    rows = [row for label in range(num_classes) for row in generator.permutation(np.flatnonzero(labels == label))[:shots]]
    x = train.values.numpy().astype(np.float64)[rows]
    mean, std = x.mean(axis=0), x.std(axis=0) + 1e-5
    first, second = (
        np.column_stack([(values - mean) / std, np.full(len(values), 100.0)]) for values in (x, test.values.numpy())
    )
    classifier = RidgeClassifier(alpha=l2, fit_intercept=False, solver="svd").fit(first, labels[rows])
    return float(classifier.score(second, test.labels.numpy()))


@pytest.mark.parametrize(("shots", "l2"), [(1, 1024.0), (5, 1024.0), (25, 1024.0), (5, 0.5)])  # fewer, more rows than features
def test_accuracies_are_scikit_learn_s(digits: tuple[Features, Features], shots: int, l2: float) -> None:
    found = evaluate_few_shot(*digits, num_classes=10, shots=shots, seeds=(0, 1, 7), l2=l2)
    reference = [compute_with_scikit_learn(*digits, 10, shots, seed, l2) for seed in (0, 1, 7)]
    assert found.shots == shots
    assert found.accuracies == pytest.approx(reference)
    assert (found.mean, found.std) == pytest.approx((np.mean(reference), np.std(reference, ddof=1)))
    assert 0.3 < found.mean < 0.99
    assert len(set(found.accuracies)) == 3


def test_the_default_is_three_seeds_and_1024(digits: tuple[Features, Features]) -> None:
    assert evaluate_few_shot(*digits, 10, 5) == evaluate_few_shot(*digits, 10, 5, seeds=(0, 1, 2), l2=1024.0)


def test_blobs_are_told_apart() -> None:
    found = evaluate_few_shot(draw_blobs(8), draw_blobs(50, seed=1), num_classes=4, shots=2, seeds=[3])
    assert (found.accuracies, found.mean, found.std) == ((1.0,), 1.0, None)


def test_the_order_of_rows_changes_nothing(digits: tuple[Features, Features]) -> None:
    train, test = digits
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
    shuffled = Features(train.values[order], train.labels[order], train.index[order])
    assert evaluate_few_shot(shuffled, test, 10, 2).accuracies == evaluate_few_shot(train, test, 10, 2).accuracies


def test_a_class_with_fewer_gives_all_and_it_is_said_once() -> None:
    train, test = draw_blobs(6), draw_blobs(50, seed=1)
    kept = torch.cat([torch.arange(0, 1), torch.arange(6, 18)])  # one image of class 0, none of class 3
    some = Features(train.values[kept], train.labels[kept], train.index[kept])
    with pytest.warns(Notice) as caught:
        found = evaluate_few_shot(some, test, num_classes=4, shots=6)
    assert [str(warning.message) for warning in caught] == [
        "2 of 4 classes have fewer than shots=6 images to train on, and give all of them: class 0 has 1, class 3 has 0."
    ]
    reference = compute_with_scikit_learn(some, test, 4, 6, seed=0, l2=1024.0)
    assert found.accuracies == pytest.approx([reference] * 3)  # all images are taken, whatever the seed


def test_mistakes_are_said_in_a_sentence() -> None:
    train, test = draw_blobs(6), draw_blobs(3)
    several = Features(test.values, torch.eye(4)[test.labels], test.index)
    narrow = Features(test.values[:, :3], test.labels, test.index)
    empty = Features(test.values[:0], test.labels[:0], test.index[:0])
    with pytest.raises(ValueError, match=r"labels to train on are torch.float32 of shape \(12, 4\), and one class for each"):
        evaluate_few_shot(several, test, 4, 1)
    with pytest.raises(ValueError, match=r"labels to test on are torch.float32"):
        evaluate_few_shot(train, several, 4, 1)
    with pytest.raises(ValueError, match=r"labels to train on go from 0 to 3, and 0 to 2 was needed: check num_classes=3"):
        evaluate_few_shot(train, test, 3, 1)
    with pytest.raises(ValueError, match=r"labels to test on are of no images"):
        evaluate_few_shot(train, empty, 4, 1)
    with pytest.raises(ValueError, match=r"train on have 4 features, those to test on 3"):
        evaluate_few_shot(train, narrow, 4, 1)
    for shots in (0, -1, 2.5, True):
        with pytest.raises(ValueError, match=r"shots=.* must be a whole number of at least 1"):
            evaluate_few_shot(train, test, 4, shots)
    for seeds in ((), (0, -1), (0.5,)):
        with pytest.raises(ValueError, match=r"seeds=.* must be one or more whole numbers"):
            evaluate_few_shot(train, test, 4, 1, seeds=seeds)
    with pytest.raises(ValueError, match=r"l2=0 must be a finite number above 0"):
        evaluate_few_shot(train, test, 4, 1, l2=0)
