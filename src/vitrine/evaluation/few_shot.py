"""Few-shot accuracy: a linear classifier fitted in closed form to a few images of each class (arXiv:2010.11929, section 4.1).

The paper does not say how images are drawn, nor how strong the penalty is; both are big_vision's (`fewshot_lsr`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitrine.core.config_checks import is_whole
from vitrine.core.console import join_names, warn_user
from vitrine.evaluation.config import L2
from vitrine.evaluation.features import Features, FeatureSplit
from vitrine.evaluation.intervals import compute_spread
from vitrine.evaluation.linear_heads import RidgeProblem

L2_GRID = tuple(2.0**power for power in range(-10, 20))  # what mean rank chooses from; the paper names none


@dataclass(frozen=True)
class FewShot:
    """Shares in 0..1 of the test images whose first answer is their label."""

    shots: int | None
    """Images of each class that the classifier was fitted to, fewer where a class has fewer; None: all of them."""
    l2: float
    accuracies: tuple[float, ...]
    """One for each seed."""
    mean: float
    std: float | None
    """Between the seeds, with n - 1; None for a single one."""


def evaluate_few_shot(split: FeatureSplit, shots: int | None, seeds: Sequence[int] = (0, 1, 2), l2: float = L2) -> FewShot:
    """Each seed draws other images to train on, whatever their order; with the same seed, more shots add to fewer.

    Without a number of shots all images are taken, once: no seed would change anything.
    """
    return sweep_few_shot(split, shots, seeds, (l2,))[0]


def sweep_few_shot(
    split: FeatureSplit, shots: int | None, seeds: Sequence[int] = (0, 1, 2), l2s: Sequence[float] = L2_GRID
) -> list[FewShot]:
    """One for each strength of the penalty, for which no seed's images are factorised twice."""
    require_seeds(seeds)
    if shots is not None and (not is_whole(shots) or shots < 1):
        raise ValueError(f"shots={shots} must be a whole number of at least 1: the images taken of each class.")
    rows = list_rows_by_class(split.train, split.num_classes)
    if shots is not None:
        report_small_classes([len(each) for each in rows], shots)
    draws = [torch.arange(len(split.train))] if shots is None else [draw_shots(rows, shots, seed) for seed in seeds]
    table = [compute_accuracies(split, draw, l2s) for draw in draws]  # of each draw, by l2
    found = []
    for l2, accuracies in zip(l2s, zip(*table, strict=True), strict=True):
        spread = compute_spread(accuracies)
        found.append(FewShot(shots=shots, l2=l2, accuracies=accuracies, mean=spread.mean, std=spread.std))
    return found


def choose_by_mean_rank(sweeps: Sequence[Sequence[FewShot]]) -> int:
    """The place of the l2 that ranks best on average over data sets, each swept over the same grid with the same shots.

    So the first version of the released code chose it, on the test images themselves.
    """
    from scipy.stats import rankdata

    means = np.array([[found.mean for found in sweep] for sweep in sweeps])  # (data sets, grid)
    return int(rankdata(-means, axis=1).mean(axis=0).argmin())


def require_seeds(seeds: Sequence[int]) -> None:
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
        warn_user(
            f"{len(small)} of {len(counts)} classes have fewer than shots={shots} images to train on, and give all of them: "
            f"{join_names(small)}."
        )


def draw_shots(rows: list[np.ndarray], shots: int, seed: int) -> Tensor:
    """Rows of the first few images of each class, in the order that the seed gives them: one generator, class after class."""
    generator = np.random.default_rng(seed)
    return torch.from_numpy(np.concatenate([generator.permutation(each)[:shots] for each in rows]))


def compute_accuracies(split: FeatureSplit, rows: Tensor, l2s: Sequence[float]) -> tuple[float, ...]:
    """On all images to test on, after a fit to some of those to train on; one for each l2."""
    problem = RidgeProblem(split.train.values[rows], split.train.labels[rows], split.num_classes)
    if len(l2s) > 1:
        problem.decompose()
    asked = problem.standardiser.apply(split.test.values)

    def measure(l2: float) -> float:
        weights, bias = problem.solve(l2)
        return ((asked @ weights + bias).argmax(dim=1) == split.test.labels).double().mean().item()

    return tuple(map(measure, l2s))
