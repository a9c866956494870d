"""Few-shot accuracy: a linear classifier fitted in closed form to a few images of each class (arXiv:2010.11929, section 4.1).

The paper does not say how images are drawn, nor how strong the penalty is; both are big_vision's (`fewshot_lsr`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np
import torch
from torch import Tensor

from vitrine.core.checks import is_whole
from vitrine.core.notices import notice
from vitrine.core.sentences import list_names
from vitrine.evaluate.features import Features
from vitrine.evaluate.ridge import RidgeProblem, compute_scores, require_one_class_each


@dataclass(frozen=True)
class FewShot:
    """Shares in 0..1 of the test images whose first answer is their label."""

    shots: int
    """Images of each class that the classifier was fitted to; fewer where a class has fewer."""
    accuracies: tuple[float, ...]
    """One for each seed."""
    mean: float
    std: float | None
    """Between the seeds, with n - 1; None for a single one."""


def evaluate_few_shot(
    train: Features, test: Features, num_classes: int, shots: int, seeds: Sequence[int] = (0, 1, 2), l2: float = 1024.0
) -> FewShot:
    """Each seed draws other images of `train`, whatever their order there; with the same seed, more shots add to fewer."""
    require_possible(train, test, num_classes, shots, seeds)
    rows = list_rows_by_class(train, num_classes)
    report_small_classes([len(each) for each in rows], shots)
    accuracies = tuple(compute_accuracy(train, test, draw_shots(rows, shots, seed), num_classes, l2) for seed in seeds)
    return FewShot(
        shots=shots, accuracies=accuracies, mean=fmean(accuracies), std=stdev(accuracies) if len(accuracies) > 1 else None
    )


def require_possible(train: Features, test: Features, num_classes: int, shots: int, seeds: Sequence[int]) -> None:
    require_one_class_each(train.labels, num_classes, "The labels to train on")
    require_one_class_each(test.labels, num_classes, "The labels to test on")
    if train.values.shape[1] != test.values.shape[1]:
        raise ValueError(
            f"Images to train on have {train.values.shape[1]} features, those to test on {test.values.shape[1]}, and as many "
            "were needed: compute both with the same model."
        )
    if not is_whole(shots) or shots < 1:
        raise ValueError(f"shots={shots} must be a whole number of at least 1: the images taken of each class.")
    if not seeds or not all(is_whole(seed) and seed >= 0 for seed in seeds):
        raise ValueError(f"seeds={seeds!r} must be one or more whole numbers of at least 0, as (0, 1, 2).")


def list_rows_by_class(features: Features, num_classes: int) -> list[np.ndarray]:
    """By image number, so that the draw does not depend on the order in which features were computed."""
    labels = features.labels.numpy()
    counts = np.bincount(labels, minlength=num_classes)
    return np.split(np.lexsort((features.index.numpy(), labels)), np.cumsum(counts)[:-1])


def report_small_classes(counts: list[int], shots: int) -> None:
    small = [f"class {label} has {count}" for label, count in enumerate(counts) if count < shots]
    if small:
        notice(
            f"{len(small)} of {len(counts)} classes have fewer than shots={shots} images to train on, and give all of them: "
            f"{list_names(small)}."
        )


def draw_shots(rows: list[np.ndarray], shots: int, seed: int) -> Tensor:
    """Rows of the first few images of each class, in the order that the seed gives them: one generator, class after class."""
    generator = np.random.default_rng(seed)
    return torch.from_numpy(np.concatenate([generator.permutation(each)[:shots] for each in rows]))


def compute_accuracy(train: Features, test: Features, rows: Tensor, num_classes: int, l2: float) -> float:
    """On all of `test`, after a fit to some rows of `train`."""
    problem = RidgeProblem(train.values[rows], train.labels[rows], num_classes)
    answers = compute_scores(test.values, problem.standardiser, problem.solve(l2)).argmax(dim=1)
    return (answers == test.labels).double().mean().item()
