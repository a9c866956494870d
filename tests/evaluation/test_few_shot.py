"""Few-shot accuracy against scikit-learn's ridge classifier on digits, and on data with a known result."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import rankdata
from sklearn.datasets import load_digits
from sklearn.linear_model import RidgeClassifier

from vitrine.core.console import VitrineWarning
from vitrine.evaluation.features import Features, FeatureSplit
from vitrine.evaluation.few_shot import L2_GRID, FewShot, choose_by_mean_rank, evaluate_few_shot, few_shot, sweep_few_shot


def make_features(values: np.ndarray, labels: np.ndarray) -> Features:
    return Features(torch.from_numpy(values).float(), torch.from_numpy(labels), torch.arange(len(values)))


def draw_blobs(num_each: int, seed: int = 0) -> Features:
    """Make four classes, 50 std apart along their own axes, around a point far from the origin."""
    labels = np.repeat(np.arange(4), num_each)
    noise = np.random.default_rng(seed).normal(size=(len(labels), 4))
    return make_features(noise + 50 * np.eye(4)[labels] + 1000, labels)


@pytest.fixture(scope="module")
def digits() -> FeatureSplit:
    values, labels = load_digits(return_X_y=True)
    return FeatureSplit(make_features(values[:1000], labels[:1000]), make_features(values[1000:], labels[1000:]), 10)


def draw_rows(split: FeatureSplit, shots: int, seed: int) -> list[int]:
    generator, labels = np.random.default_rng(seed), split.train.labels.numpy()
    by_class = [np.flatnonzero(labels == label) for label in range(split.num_classes)]
    return [int(row) for rows in by_class for row in generator.permutation(rows)[:shots]]


def compute_with_scikit_learn(split: FeatureSplit, rows: list[int], l2: float) -> float:
    train, test = split.train, split.test
    x = train.values.numpy().astype(np.float64)[rows]
    mean, std = x.mean(axis=0), x.std(axis=0) + 1e-5
    first, second = (
        np.column_stack([(values - mean) / std, np.full(len(values), 100.0)]) for values in (x, test.values.numpy())
    )
    classifier = RidgeClassifier(alpha=l2, fit_intercept=False, solver="svd").fit(first, train.labels.numpy()[rows])
    return float(classifier.score(second, test.labels.numpy()))


@pytest.mark.parametrize(("shots", "l2"), [(1, 1024.0), (5, 1024.0), (25, 1024.0), (5, 0.5)])  # fewer, more rows than features
def test_accuracies_equal_sklearn(digits: FeatureSplit, shots: int, l2: float) -> None:
    result = evaluate_few_shot(digits, shots=shots, seeds=(0, 1, 7), l2=l2)
    reference = [compute_with_scikit_learn(digits, draw_rows(digits, shots, seed), l2) for seed in (0, 1, 7)]
    assert (result.shots, result.l2) == (shots, l2)
    assert result.accuracies == pytest.approx(reference)
    assert (result.mean, result.std) == pytest.approx((np.mean(reference), np.std(reference, ddof=1)))
    assert 0.3 < result.mean < 0.99
    assert len(set(result.accuracies)) == 3


def test_defaults_are_three_seeds_and_1024(digits: FeatureSplit) -> None:
    assert evaluate_few_shot(digits, 5) == evaluate_few_shot(digits, 5, seeds=(0, 1, 2), l2=1024.0)


@pytest.mark.parametrize("shots", [2, None])
def test_sweep_equals_single_evaluations(digits: FeatureSplit, shots: int | None) -> None:
    l2s = (2.0**-10, 1.0, 1024.0, 2.0**19)
    swept = sweep_few_shot(digits, shots, (3, 4), l2s)
    assert swept == [evaluate_few_shot(digits, shots, (3, 4), l2) for l2 in l2s]
    assert len({result.mean for result in swept}) > 1


def test_default_sweep_is_over_powers_of_two() -> None:
    np.testing.assert_array_equal(L2_GRID, np.logspace(-10, 19, 30, base=2))
    split = FeatureSplit(draw_blobs(3), draw_blobs(2, seed=1), 4)
    assert [result.l2 for result in sweep_few_shot(split, 1, [0])] == list(L2_GRID)


def test_all_shots_use_all_images_once(digits: FeatureSplit) -> None:
    result = evaluate_few_shot(digits, shots=None, seeds=(5, 6))
    reference = compute_with_scikit_learn(digits, list(range(1000)), 1024.0)
    assert result == FewShot(shots=None, l2=1024.0, accuracies=(pytest.approx(reference),), mean=result.accuracies[0], std=None)


def test_all_shots_equal_the_size_of_the_largest_class(digits: FeatureSplit) -> None:
    counts = digits.train.labels.bincount()
    with pytest.warns(VitrineWarning, match="fewer than shots"):
        most = evaluate_few_shot(digits, shots=int(counts.max()), seeds=(0,))
    assert most.accuracies == evaluate_few_shot(digits, shots=None, seeds=(0,)).accuracies


def test_separated_clusters_are_classified() -> None:
    result = evaluate_few_shot(FeatureSplit(draw_blobs(8), draw_blobs(50, seed=1), 4), shots=2, seeds=[3])
    assert (result.accuracies, result.mean, result.std) == ((1.0,), 1.0, None)


def test_the_order_of_rows_changes_nothing(digits: FeatureSplit) -> None:
    train, test = digits.train, digits.test
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
    shuffled = FeatureSplit(Features(train.values[order], train.labels[order], train.index[order]), test, 10)
    assert evaluate_few_shot(shuffled, 2).accuracies == evaluate_few_shot(digits, 2).accuracies


def test_single_training_image_is_always_predicted() -> None:
    train = draw_blobs(1)
    alone = Features(train.values[2:3], train.labels[2:3], train.index[2:3])
    test = draw_blobs(5, seed=1)
    assert evaluate_few_shot(FeatureSplit(alone, test, 4), shots=None).accuracies == (0.25,)


def test_small_class_gives_all_its_images_with_one_warning() -> None:
    train, test = draw_blobs(6), draw_blobs(50, seed=1)
    kept = torch.cat([torch.arange(0, 1), torch.arange(6, 18)])  # one image of class 0, none of class 3
    some = FeatureSplit(Features(train.values[kept], train.labels[kept], train.index[kept]), test, 4)
    with pytest.warns(VitrineWarning) as caught:
        result = evaluate_few_shot(some, shots=6)
    assert len(caught) == 1
    assert "class 0 has 1, class 3 has 0" in str(caught[0].message)
    reference = compute_with_scikit_learn(some, draw_rows(some, 6, seed=0), l2=1024.0)
    assert result.accuracies == pytest.approx([reference] * 3)  # all images are used, whatever the seed


def make_sweeps(means: list[list[float]]) -> list[list[FewShot]]:
    return [[FewShot(5, 2.0**power, (mean,), mean, None) for power, mean in enumerate(row)] for row in means]


def test_mean_rank_differs_from_mean_accuracy() -> None:
    easy, hard, third = [0.90, 0.91, 0.92], [0.10, 0.60, 0.20], [0.50, 0.51, 0.52]
    assert np.mean([easy, hard, third], axis=0).argmax() == 1
    assert choose_by_mean_rank(make_sweeps([easy, hard, third])) == 2  # ranks 3 3 3, 2 1 2 and 1 2 1, if the best is 1


def test_mean_rank_of_ties_and_of_one_data_set() -> None:
    assert choose_by_mean_rank(make_sweeps([[0.1, 0.2], [0.2, 0.1]])) == 0
    assert choose_by_mean_rank(make_sweeps([[0.1, 0.7, 0.3, 0.7]])) == 1
    assert choose_by_mean_rank(make_sweeps([[0.5]])) == 0


@given(
    st.integers(1, 6).flatmap(
        lambda size: st.lists(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=size, max_size=size), min_size=1)
    )
)
def test_mean_rank_equals_ranks_by_hand(means: list[list[float]]) -> None:
    """Ties, which are frequent here, get the mean of their ranks."""
    sums = [0.0] * len(means[0])
    for row in means:
        for index, rank in enumerate(rankdata([-mean for mean in row])):
            sums[index] += rank
    assert choose_by_mean_rank(make_sweeps(means)) == sums.index(min(sums))


def test_wrong_arguments_are_rejected() -> None:
    train, test = draw_blobs(6), draw_blobs(3)
    split = FeatureSplit(train, test, 4)
    for shots in (0, -1, 2.5, True):
        with pytest.raises(ValueError, match="shots="):
            evaluate_few_shot(split, shots)
    for seeds in ((), (0, -1), (0.5,)):
        with pytest.raises(ValueError, match="seeds="):
            evaluate_few_shot(split, 1, seeds=seeds)
    with pytest.raises(ValueError, match=r"seeds=\(\)"):
        evaluate_few_shot(split, None, seeds=())
    with pytest.raises(ValueError, match="l2=0"):
        evaluate_few_shot(split, 1, l2=0)


def test_seeds_have_no_effect_on_all_images() -> None:
    with pytest.raises(ValueError, match=r"seeds=\(5,\)"):
        few_shot("no-model", "no-data", shots=(None,), seeds=(5,))
