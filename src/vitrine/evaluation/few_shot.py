"""Few-shot accuracy: a linear classifier fitted in closed form to a few images of each class (arXiv:2010.11929, section 4.1).

The paper specifies neither how images are drawn nor the penalty; both follow big_vision (`fewshot_lsr`).
`few_shot` is the command of that name.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitrine.core.config_checks import is_whole
from vitrine.core.console import join_names, warn_user
from vitrine.data.open_data import DataLike, find_data
from vitrine.evaluation.config import L2, InferenceConfig
from vitrine.evaluation.features import Features, FeatureSplit
from vitrine.evaluation.intervals import compute_spread, wilson_interval
from vitrine.evaluation.linear_heads import RidgeProblem
from vitrine.evaluation.predictor import ModelLike, Predictor, extract_split

L2_GRID = tuple(2.0**power for power in range(-10, 20))  # candidates of mean rank; the paper does not list its own
SHOTS = (1, 5, 10, 25)
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class FewShot:
    """Accuracy of the classifiers fitted to one number of shots, over the seeds."""

    shots: int | None
    """Training images of each class, or fewer where a class has fewer; None: all images."""
    l2: float
    accuracies: tuple[float, ...]
    """Fraction of test images classified correctly, for each seed."""
    mean: float
    std: float | None
    """Standard deviation over the seeds, with n - 1; None for a single seed."""


@dataclass(frozen=True)
class FewShotResult:
    """`FewShot` on a named dataset, with a 95 % interval of the mean."""

    data: str
    num_test_images: int
    shots: int | None
    l2: float
    accuracies: tuple[float, ...]
    mean: float
    std: float | None
    low: float | None
    high: float | None


def few_shot(
    model: ModelLike,
    data: DataLike | Sequence[DataLike],
    shots: Sequence[int | None] = SHOTS,
    seeds: Sequence[int] = SEEDS,
    l2: float = L2,
    mean_rank: bool = False,
    *,
    held_out: float | None = None,
    subset: str = "all",
    device: torch.device | str | None = None,
    inference: InferenceConfig | None = None,
    use_cache: bool = True,
) -> list[FewShotResult]:
    """Measure few-shot accuracy on one dataset or a list of them, for each number of shots (None: all images).

    `mean_rank` replaces `l2` by the penalty that ranks best over all datasets, for each number of shots. It is chosen on the
    test images, as in the first version of the paper's code. Data sets whose classes are too small for some shots are left
    out there, with a warning. `held_out` is for datasets without splits; if there are none, it is an error.
    """
    require_seeds(seeds)
    if tuple(seeds) != SEEDS and all(count is None for count in shots):
        raise ValueError(f"seeds={tuple(seeds)} have no effect with all images, of which none are drawn: leave them out.")
    given = data if isinstance(data, list | tuple) else [data]
    datasets = {str(each) if isinstance(each, str | Path) else find_data(each).name: find_data(each) for each in given}
    predictor = Predictor(model, device, inference, show_progress=True)
    is_held_out = {name: not each.splits or all(other.splits for other in datasets.values()) for name, each in datasets.items()}
    splits = {
        name: extract_split(predictor, each, held_out if is_held_out[name] else None, subset, use_cache=use_cache)
        for name, each in datasets.items()
    }
    results, l2s = [], L2_GRID if mean_rank else (l2,)
    for count in shots:
        possible = {name: split for name, split in splits.items() if has_enough_images(name, split, count)}
        sweeps = {name: sweep_few_shot(split, count, seeds, l2s) for name, split in possible.items()}
        chosen = choose_by_mean_rank(list(sweeps.values())) if sweeps else 0
        for name, sweep in sweeps.items():
            num_images, result = len(splits[name].test), sweep[chosen]
            interval = wilson_interval(result.mean, num_images)
            results.append(FewShotResult(name, num_images, **vars(result), low=interval.low, high=interval.high))
    return results


def has_enough_images(name: str, split: FeatureSplit, shots: int | None) -> bool:
    """Return whether any class has as many training images as shots; warn if not."""
    largest = int(split.train.labels.bincount().max())
    if shots is not None and shots > largest:
        warn_user(f"{name} has at most {largest} training images of a class; skipping {shots} shots.")
        return False
    return True


def evaluate_few_shot(split: FeatureSplit, shots: int | None, seeds: Sequence[int] = SEEDS, l2: float = L2) -> FewShot:
    """Fit a ridge classifier to `shots` images of each class, drawn anew for each seed, and measure its test accuracy.

    The draw does not depend on the order of the images. With the same seed, more shots contain the fewer ones. With
    shots=None all images are used, once, because seeds would change nothing.
    """
    return sweep_few_shot(split, shots, seeds, (l2,))[0]


def sweep_few_shot(
    split: FeatureSplit, shots: int | None, seeds: Sequence[int] = SEEDS, l2s: Sequence[float] = L2_GRID
) -> list[FewShot]:
    """Return the few-shot accuracy for each penalty; the images of a seed are decomposed only once for all penalties."""
    require_seeds(seeds)
    if shots is not None and (not is_whole(shots) or shots < 1):
        raise ValueError(f"shots={shots} must be a whole number of at least 1: training images per class.")
    rows = list_rows_by_class(split.train, split.num_classes)
    small = [f"class {label} has {len(each)}" for label, each in enumerate(rows) if shots is not None and len(each) < shots]
    if small:
        warn_user(f"{len(small)} of {len(rows)} classes have fewer than shots={shots} images, all used: {join_names(small)}.")
    draws = [torch.arange(len(split.train))] if shots is None else [draw_shots(rows, shots, seed) for seed in seeds]
    table = [compute_accuracies(split, draw, l2s) for draw in draws]  # (draws, l2s)
    columns = zip(l2s, zip(*table, strict=True), strict=True)
    return [FewShot(shots, l2, accuracies, **vars(compute_spread(accuracies))) for l2, accuracies in columns]


def choose_by_mean_rank(sweeps: Sequence[Sequence[FewShot]]) -> int:
    """Return the index of the penalty with the best mean rank over datasets, each with its `sweep_few_shot`."""
    from scipy.stats import rankdata

    means = np.array([[result.mean for result in sweep] for sweep in sweeps])  # (datasets, l2s)
    return int(rankdata(-means, axis=1).mean(axis=0).argmin())


def require_seeds(seeds: Sequence[int]) -> None:
    """Raise ValueError unless seeds are one or more whole numbers of at least 0."""
    if not seeds or not all(is_whole(seed) and seed >= 0 for seed in seeds):
        raise ValueError(f"seeds={seeds!r} must be one or more whole numbers of at least 0, e.g. (0, 1, 2).")


def list_rows_by_class(features: Features, num_classes: int) -> list[np.ndarray]:
    """Return the row numbers of each class, sorted by image index, so that draws do not depend on the order of rows."""
    labels = features.labels.numpy()
    counts = np.bincount(labels, minlength=num_classes)
    return np.split(np.lexsort((features.index.numpy(), labels)), np.cumsum(counts)[:-1])


def draw_shots(rows: list[np.ndarray], shots: int, seed: int) -> Tensor:
    """Draw `shots` rows of each class, class after class, from one generator."""
    generator = np.random.default_rng(seed)
    return torch.from_numpy(np.concatenate([generator.permutation(each)[:shots] for each in rows]))


def compute_accuracies(split: FeatureSplit, rows: Tensor, l2s: Sequence[float]) -> tuple[float, ...]:
    """Fit a ridge classifier to some training rows; return its accuracy on all test images for each penalty."""
    problem = RidgeProblem(split.train.values[rows], split.train.labels[rows], split.num_classes)
    if len(l2s) > 1:
        problem.decompose()
    queries = problem.standardiser.apply(split.test.values)

    def measure(l2: float) -> float:
        weights, bias = problem.solve(l2)
        return ((queries @ weights + bias).argmax(dim=1) == split.test.labels).double().mean().item()

    return tuple(map(measure, l2s))
