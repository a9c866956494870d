"""Heads against scikit-learn's on the same features, and cross-validation that does not see the images it scores."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multioutput import MultiOutputClassifier
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from vitrine.fitting import heads
from vitrine.fitting.heads import (
    HEAD_KINDS,
    HeadChoice,
    HeadKind,
    RotatedRows,
    Samples,
    Validated,
    balance_classes,
    count_operations,
    cross_validate,
    draw_folds,
    fit_choice,
    fit_choices,
    fit_head,
    is_better,
    list_choices,
    measure_accuracies,
    pick_best,
    solve_shrunk,
)
from vitrine.fitting.readouts import Readout

NUM_CLASSES = 4


def draw_samples(num_images: int, num_features: int, noise: float = 1.0, seed: int = 0, flip: bool = False) -> Samples:
    """Draw features around a mean for each class; mirror images have other noise."""
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(NUM_CLASSES, num_features, generator=generator)
    labels = torch.arange(num_images) % NUM_CLASSES
    views = [means[labels] + noise * torch.randn(num_images, num_features, generator=generator) for _ in range(2)]
    return Samples(views[0], labels, NUM_CLASSES, views[1] if flip else None)


def draw_several(samples: Samples, seed: int = 0) -> Samples:
    """Add labels at random to those there are."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.eye(NUM_CLASSES)[samples.targets] + (torch.rand(len(samples), NUM_CLASSES, generator=generator) < 0.2)
    return Samples(samples.values, labels.clamp(max=1), NUM_CLASSES)


def test_ridge_equals_scikit_learn() -> None:
    rows = draw_samples(60, 8).values.double()
    labels = torch.arange(60) % NUM_CLASSES
    weight, bias, _ = fit_choice(rows, labels, NUM_CLASSES, HeadChoice("ridge", 0.1))
    signs = 2.0 * np.eye(NUM_CLASSES)[labels.numpy()] - 1
    reference = Ridge(alpha=0.1 * 60, solver="svd").fit(rows.numpy(), signs)
    np.testing.assert_allclose(weight.numpy(), reference.coef_, rtol=1e-9)
    np.testing.assert_allclose(bias.numpy(), reference.intercept_, rtol=1e-9)


def test_balanced_ridge_equals_scikit_learn_with_weights() -> None:
    rows, labels = draw_samples(60, 8).values.double(), (torch.arange(60) < 48).long()
    weight, bias, _ = fit_choice(rows, labels, 2, HeadChoice("ridge", 0.1, is_balanced=True))
    weights = np.where(labels.numpy() == 1, 60 / 2 / 48, 60 / 2 / 12)
    np.testing.assert_allclose(balance_classes(labels, 2).numpy(), weights)
    reference = Ridge(alpha=0.1 * 60, solver="svd").fit(rows.numpy(), 2.0 * np.eye(2)[labels.numpy()] - 1, weights)
    np.testing.assert_allclose(weight.numpy(), reference.coef_, rtol=1e-9)
    np.testing.assert_allclose(bias.numpy(), reference.intercept_, rtol=1e-9)


@pytest.mark.parametrize("is_balanced", [False, True])
def test_discriminant_is_its_closed_form(is_balanced: bool) -> None:
    rows, labels = draw_samples(40, 6).values.double().numpy(), np.arange(40) % 3
    weight, bias, offsets = fit_choice(
        torch.from_numpy(rows), torch.from_numpy(labels), 3, HeadChoice("discriminant", 0.5, is_balanced)
    )
    means = np.stack([rows[labels == label].mean(axis=0) for label in range(3)])
    spread = rows - means[labels]
    inverse = np.linalg.inv(spread.T @ spread / (40 - 3) + 0.5 * np.eye(6))
    np.testing.assert_allclose(weight.numpy(), means @ inverse, rtol=1e-9)
    np.testing.assert_allclose(bias.numpy(), -0.5 * np.einsum("kd,de,ke->k", means, inverse, means), rtol=1e-9)
    counts = np.bincount(labels) + 1
    np.testing.assert_allclose(offsets.numpy(), np.zeros(3) if is_balanced else np.log(counts / counts.sum()))


def test_logistic_equals_scikit_learn() -> None:
    rows, labels = draw_samples(80, 5, noise=2.0).values.double(), torch.arange(80) % NUM_CLASSES
    weight, bias, _ = fit_choice(rows, labels, NUM_CLASSES, HeadChoice("logistic", 0.01))
    reference = LogisticRegression(C=1 / (0.01 * 80), max_iter=1000, tol=1e-8).fit(rows.numpy(), labels.numpy())
    found = (rows @ weight.T + bias).softmax(dim=1).numpy()
    np.testing.assert_allclose(found, reference.predict_proba(rows.numpy()), atol=1e-3)  # stopped after 50 iterations


def test_logistic_with_several_labels_equals_scikit_learn() -> None:
    samples = draw_several(draw_samples(80, 5, noise=2.0))
    rows = samples.values.double()
    weight, bias, _ = fit_choice(rows, samples.targets, NUM_CLASSES, HeadChoice("logistic", 0.01))
    # Our loss is the mean over classes, so the penalty of each class is as many times as large.
    single = LogisticRegression(C=1 / (0.01 * NUM_CLASSES * 80), max_iter=1000, tol=1e-8)
    reference = MultiOutputClassifier(single).fit(rows.numpy(), samples.targets.numpy())
    expected = np.stack([each[:, 1] for each in reference.predict_proba(rows.numpy())], axis=1)
    np.testing.assert_allclose((rows @ weight.T + bias).sigmoid().numpy(), expected, atol=1e-3)


@pytest.mark.parametrize("kind", HEAD_KINDS)
@pytest.mark.parametrize("flip", [False, True])
def test_rotation_changes_no_head(kind: HeadKind, flip: bool) -> None:
    """With more features than images the rows are rotated; the same head follows from the features themselves."""
    samples = draw_samples(20, 60, flip=flip)
    weight, bias = fit_head(samples, HeadChoice(kind, 0.3), temperature=1.0)
    rotated = RotatedRows(samples)
    assert rotated.basis is not None
    assert rotated.rows.shape[1] < 60
    rotated.rows, rotated.basis = rotated.rows @ rotated.basis.T, None
    targets = samples.targets.repeat(2 if flip else 1)
    plain, plain_bias, offset = fit_choice(rotated.rows, targets, NUM_CLASSES, HeadChoice(kind, 0.3))
    expected = rotated.fold(plain, plain_bias + offset)
    others = draw_samples(30, 60, seed=1).values
    tolerance = 1e-2 if kind == "logistic" else 1e-4  # float32, and stopped early
    torch.testing.assert_close(others @ weight.T + bias, others @ expected[0].T + expected[1], rtol=tolerance, atol=tolerance)


def test_temperature_and_offsets_are_in_the_head() -> None:
    """Logits of the head divided by the temperature are scores / temperature + offsets."""
    samples, choice = draw_samples(50, 6), HeadChoice("discriminant", 1.0)
    rotated = RotatedRows(samples)
    scores, bias, offsets = fit_choice(rotated.rows, samples.targets, NUM_CLASSES, choice)
    weight, whole_bias = fit_head(samples, choice, temperature=3.0)
    logits = (samples.values @ weight.T + whole_bias) / 3
    torch.testing.assert_close(logits.double(), (rotated.rows @ scores.T + bias) / 3 + offsets, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("flip", [False, True])
def test_images_are_scored_by_heads_that_have_not_seen_them(flip: bool) -> None:
    """Labels drawn at random cannot be predicted, though a head on more features than images fits them all."""
    samples = draw_samples(200, 300, flip=flip)
    generator = torch.Generator().manual_seed(3)
    values = torch.randn(200, 300, generator=generator)
    random = Samples(values, samples.targets, NUM_CLASSES, values + 1e-3 if flip else None)
    folds = draw_folds(random.targets, NUM_CLASSES, seed=0)
    validated = cross_validate(random, Readout(), list_choices(["discriminant", "ridge"]), folds)
    assert len(validated) == 11
    for each in validated:
        assert each.accuracy < 0.37  # 0.25 by chance, with a standard deviation of 0.03
        assert each.log_loss == pytest.approx(np.log(NUM_CLASSES), abs=0.1)  # the temperature hides what is not there
    weight, bias = fit_head(random, HeadChoice("ridge", 0.03), 1.0)
    assert measure_accuracies(values @ weight.T + bias, random.targets)[0] > 0.9


def test_cross_validated_accuracy_is_that_of_new_images() -> None:
    samples = draw_samples(400, 10, noise=2.0)
    folds = draw_folds(samples.targets, NUM_CLASSES, seed=0)
    best = min(cross_validate(samples, Readout(), list_choices(["discriminant"]), folds), key=lambda each: each.log_loss)
    weight, bias = fit_head(samples, best.choice, best.temperature)
    generator = torch.Generator().manual_seed(9)
    labels = torch.arange(4000) % NUM_CLASSES
    means = torch.randn(NUM_CLASSES, 10, generator=torch.Generator().manual_seed(0))
    new = means[labels] + 2 * torch.randn(4000, 10, generator=generator)
    accuracy, _ = measure_accuracies(new @ weight.T + bias, labels)
    assert best.accuracy == pytest.approx(accuracy, abs=0.06)  # 400 images: a standard deviation of 0.02


def test_more_folds_come_closer_to_the_accuracy_of_the_head_that_is_kept() -> None:
    """With twenty images of a class, heads of five folds see sixteen of them, and those of twenty folds all but one."""
    found: dict[int, list[float]] = {5: [], 20: []}
    for seed in range(20):
        samples = draw_samples(20 * NUM_CLASSES, 60, noise=4.0, seed=seed)
        for num_folds, accuracies in found.items():
            folds = draw_folds(samples.targets, NUM_CLASSES, seed, num_folds)
            (each,) = cross_validate(samples, Readout(), [HeadChoice("discriminant", 1.0)], folds)
            accuracies.append(each.accuracy)
    kept = np.mean([measure_on_new_images(seed) for seed in range(20)])
    few, many = (kept - np.mean(accuracies) for accuracies in found.values())
    assert abs(many) < 0.6 * few


def measure_on_new_images(seed: int) -> float:
    """Return the accuracy of a head that is fitted to all images of `draw_samples`."""
    samples = draw_samples(20 * NUM_CLASSES + 4000, 60, noise=4.0, seed=seed)
    fitted, new = samples.take(torch.arange(20 * NUM_CLASSES)), samples.take(torch.arange(20 * NUM_CLASSES, len(samples)))
    weight, bias = fit_head(fitted, HeadChoice("discriminant", 1.0), 1.0)
    return measure_accuracies(new.values @ weight.T + bias, new.targets)[0]


def test_no_result_when_time_runs_out() -> None:
    samples = draw_samples(40, 4)
    folds = draw_folds(samples.targets, NUM_CLASSES, seed=0)
    left = iter([True] * 5 + [False] * 100)
    assert cross_validate(samples, Readout(), list_choices(["ridge"]), folds, has_time=lambda: next(left)) == []


def test_balanced_heads_find_the_small_class() -> None:
    """Two overlapping classes, one of them forty times as large: only balanced heads predict the small one."""
    generator = torch.Generator().manual_seed(0)
    labels = (torch.arange(820) >= 800).long()
    values = torch.randn(820, 3, generator=generator) + 1.5 * labels[:, None]
    samples, folds = Samples(values, labels, 2), draw_folds(labels, 2, seed=0)
    for kind in HEAD_KINDS:
        plain, balanced = (
            min(cross_validate(samples, Readout(), list_choices([kind], [is_balanced]), folds), key=lambda each: each.log_loss)
            for is_balanced in (False, True)
        )
        assert balanced.macro_accuracy > plain.macro_accuracy + 0.1
        assert balanced.macro_accuracy > 0.8


@pytest.mark.parametrize(("counts", "num_folds"), [((20, 20), 5), ((4, 4), 4), ((2, 2), 2), ((30, 3), 5)])
def test_folds_share_classes_evenly(counts: tuple[int, ...], num_folds: int) -> None:
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    folds = draw_folds(labels, len(counts), seed=0)
    assert folds.unique().tolist() == list(range(num_folds))
    for label, count in enumerate(counts):
        sizes = torch.bincount(folds[labels == label], minlength=num_folds)
        assert sizes.sum() == count
        assert sizes.max() - sizes.min() <= 1
    assert not torch.equal(folds, draw_folds(labels, len(counts), seed=1))


def test_accuracies() -> None:
    logits = torch.tensor([[2.0, 1.0], [2.0, 1.0], [2.0, 1.0], [2.0, 1.0]])
    assert measure_accuracies(logits, torch.tensor([0, 0, 0, 1])) == (0.75, 0.5)
    several = torch.tensor([[1.0, -1.0], [1.0, 1.0], [-1.0, -1.0], [1.0, 1.0]])
    targets: Tensor = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    assert measure_accuracies(several, targets) == (7 / 8, pytest.approx((1 + 1 + 1 + 2 / 3) / 4))


def validated(log_loss: float, macro: float, *, is_balanced: bool = False) -> Validated:
    return Validated(Readout(), HeadChoice("ridge", 1.0, is_balanced), torch.zeros(1, 2), 1.0, log_loss, 0.9, macro)


def test_heads_are_compared_by_log_loss_and_balanced_ones_by_the_mean_over_classes() -> None:
    plain, worse = validated(0.3, 0.6), validated(0.4, 0.8)
    balanced = validated(0.5, 0.7, is_balanced=True)
    assert pick_best([worse, plain]) is plain
    assert pick_best([worse, plain, balanced]) is balanced
    assert is_better(plain, worse)
    assert not is_better(worse, plain)
    assert is_better(balanced, plain)
    assert not is_better(balanced, worse)


@pytest.mark.parametrize("kind", ["discriminant", "ridge"])
@pytest.mark.parametrize("is_balanced", [False, True])
def test_float32_finds_the_head_of_float64(kind: HeadKind, is_balanced: bool) -> None:
    """Cross-validation fits in float32, the head that is saved in float64."""
    samples = draw_samples(80, 30)
    choice = HeadChoice(kind, 0.03, is_balanced)
    exact, rounded = (
        fit_choice(samples.values.to(dtype), samples.targets, NUM_CLASSES, choice) for dtype in (torch.float64, torch.float32)
    )
    for one, other in zip(exact, rounded, strict=True):
        assert (one.dtype, other.dtype) == (torch.float64, torch.float32)
        torch.testing.assert_close(other.double(), one, rtol=1e-3, atol=1e-4)  # rounding times the condition number, about 100


def test_a_matrix_that_rounding_made_indefinite_is_solved() -> None:
    matrix = torch.full((3, 3), 1.0) - 1e-3 * torch.eye(3)  # its smallest eigenvalue is -1e-3
    right = torch.tensor([[1.0], [2.0], [4.0]])
    solution = solve_shrunk(matrix, 5e-4, right)
    torch.testing.assert_close((matrix + 5e-4 * torch.eye(3)) @ solution, right, rtol=1e-3, atol=1e-2)


def test_images_of_fold_minus_1_are_fitted_to_and_not_scored() -> None:
    samples = draw_samples(200, 10, noise=2.0)
    is_held = torch.arange(200) % 5 == 0
    choice = HeadChoice("discriminant", 1.0)
    (found,) = cross_validate(samples, Readout(), [choice], torch.where(is_held, 0, -1))
    assert found.logits.shape == (40, NUM_CLASSES)
    rows = RotatedRows(samples).rows.float()
    weight, bias, offset = fit_choice(rows[~is_held], samples.targets[~is_held], NUM_CLASSES, choice)
    expected = (rows[is_held] @ weight.T + bias).double() / found.temperature + offset.double()
    torch.testing.assert_close(found.logits, expected)


@pytest.mark.parametrize("kind", ["discriminant", "ridge"])
def test_many_images_are_fitted_in_float32(kind: HeadKind, monkeypatch: pytest.MonkeyPatch) -> None:
    samples, choice = draw_samples(300, 20), HeadChoice(kind, 0.1)
    exact = fit_head(samples, choice, 1.0)
    monkeypatch.setattr(heads, "MAX_EXACT", 100)
    rounded = fit_head(samples, choice, 1.0)
    assert not torch.equal(exact[0], rounded[0])
    torch.testing.assert_close(rounded, exact, rtol=1e-3, atol=1e-4)


def test_operations_are_those_that_torch_counts() -> None:
    """Its counter knows products alone, which are nearly all where there are many more images than features."""
    samples, choices = draw_samples(4000, 32), list_choices(["discriminant", "ridge"])
    rows = RotatedRows(samples).rows.float()
    with FlopCounterMode(display=False) as counter:
        list(fit_choices(rows, samples.targets, NUM_CLASSES, choices))
    assert count_operations(4000, 32, choices) == pytest.approx(counter.get_total_flops(), rel=0.3)
    assert count_operations(4000, 32, choices, 5) == pytest.approx(5 * count_operations(4000, 32, choices))
    assert count_operations(100, 3000, choices) > count_operations(100, 100, choices)  # the rotation
