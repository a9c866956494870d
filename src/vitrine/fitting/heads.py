"""Linear heads on frozen features, chosen by cross-validation: linear discriminant, ridge and logistic regression.

Features are standardised. With fewer images than features they are rotated into the space that the images span, which changes
no head and makes each fit small. A head's scores are calibrated on the images that it was not fitted to: logits are
scores / temperature + offsets, where offsets are the log class frequencies of a discriminant.

Letters: N images, M rows (images and their mirror images), D features, R of them after the rotation, K classes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vitrine.evaluation.calibration import compute_log_losses, fit_temperature
from vitrine.evaluation.linear_heads import Standardiser, sum_by_class
from vitrine.fitting.readouts import Readout

HeadKind = Literal["discriminant", "ridge", "logistic"]
HEAD_KINDS: tuple[HeadKind, ...] = get_args(HeadKind)
# Candidates for the strength of the regularisation: added to each feature's variance; times the number of images; of the
# squared weights.
STRENGTHS: dict[HeadKind, tuple[float, ...]] = {
    "discriminant": (0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
    "ridge": (0.03, 0.1, 0.3, 1.0, 3.0),
    "logistic": (0.003, 0.03),
}
NUM_FOLDS = 5  # to choose a head
MANY_FOLDS = 20  # to measure the one that was chosen: heads see nearly as many images as the one that is kept
MAX_ITERATIONS = 50  # of logistic regression; more change hardly an answer
MIN_EIGENVALUE = 1e-9  # of the largest; directions below it are rounding
MAX_EXACT = 8192  # rows, above which a head is fitted in float32: float64 takes twice as long, and changes no answer
# Operations that products in float32 get through in the time of a decomposition of a matrix of size n, in n ** 3: eigenvalues
# in float64, Cholesky and its solution in float32. Measured on two cores, n from 700 to 3,000.
EIGEN_COST, CHOLESKY_COST = 30, 1.5

Scores = tuple[Tensor, Tensor, Tensor]
"""Weight (K, R) and bias (K) of scores, and offsets (K) that are added to them after scaling."""


@dataclass(frozen=True)
class Samples:
    """What heads are fitted to: features of images, of their mirror images if there are any, and targets."""

    values: Tensor
    """float32 (N, D)."""
    targets: Tensor
    """int64 (N), or float (N, K) for images with several labels."""
    num_classes: int
    flipped: Tensor | None = None

    def __len__(self) -> int:
        return len(self.values)

    @property
    def has_several_labels(self) -> bool:
        return self.targets.ndim == 2

    def take(self, rows: Tensor) -> "Samples":
        """Return some of the images."""
        flipped = None if self.flipped is None else self.flipped[rows]
        return Samples(self.values[rows], self.targets[rows], self.num_classes, flipped)

    def select(self, columns: np.ndarray) -> "Samples":
        """Return some of the features."""
        where = torch.from_numpy(columns)
        flipped = None if self.flipped is None else self.flipped[:, where]
        return Samples(self.values[:, where], self.targets, self.num_classes, flipped)


@dataclass(frozen=True)
class HeadChoice:
    """A kind of head with its settings."""

    kind: HeadKind
    strength: float
    is_balanced: bool = False
    """Whether classes weigh the same, although they have different numbers of images."""


@dataclass(frozen=True)
class Validated:
    """A choice and what cross-validation says of it."""

    readout: Readout
    choice: HeadChoice
    logits: Tensor
    """float64 (N, K): calibrated logits of each image by a head that was fitted without it."""
    temperature: float
    log_loss: float
    """Mean over images, of a balanced head over classes."""
    accuracy: float
    """Fraction of images with the right first class, or of right decisions for several labels."""
    macro_accuracy: float
    """Mean over classes."""


class RotatedRows:
    """Standardised features, rotated into the space that they span if it is smaller."""

    def __init__(self, samples: Samples) -> None:
        """Fit the standardisation to the images and their mirror images."""
        parts = [samples.values] if samples.flipped is None else [samples.values, samples.flipped]
        self.num_images, self.num_views = len(samples), len(parts)
        self.standardiser, rows = Standardiser.fit_and_apply(torch.cat(parts))
        self.basis: Tensor | None = None
        if len(rows) < rows.shape[1]:
            values, vectors = torch.linalg.eigh(rows @ rows.T)
            is_kept = values > MIN_EIGENVALUE * values[-1]
            roots, vectors = values[is_kept].sqrt(), vectors[:, is_kept]
            self.basis = rows.T @ (vectors / roots)  # (D, R)
            rows = vectors * roots
        self.rows = rows
        """float64 (M, R): the images, then their mirror images."""

    def fold(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Turn a head on the rotated rows into a float32 head on the original features: (K, D) and (K)."""
        return self.standardiser.fold(weight if self.basis is None else weight @ self.basis.T, bias)


def cross_validate(
    samples: Samples,
    readout: Readout,
    choices: Sequence[HeadChoice],
    folds: Tensor,
    has_time: Callable[[], bool] = lambda: True,
) -> list[Validated]:
    """Score every image by heads that were fitted to the other folds, for each choice; `folds` is int64 (N).

    Images of fold -1 are always fitted to and never scored. Returns nothing if time runs out before the last fold.
    """
    rotated = RotatedRows(samples)
    rows, targets = rotated.rows.float(), samples.targets  # a choice needs no float64, which takes twice as long
    scores: dict[HeadChoice, Tensor] = {}
    offsets: dict[HeadChoice, Tensor] = {}
    is_scored = folds >= 0
    numbers = folds[is_scored].unique()
    for fold in numbers:
        is_out = folds == fold
        is_fitted = (~is_out).repeat(rotated.num_views)
        fitted = targets[~is_out].repeat(rotated.num_views, *(1,) * (targets.ndim - 1))
        for choice, (weight, bias, offset) in fit_choices(rows[is_fitted], fitted, samples.num_classes, choices):
            if not has_time():
                return []
            out = scores.setdefault(choice, torch.zeros(len(samples), samples.num_classes, dtype=torch.float64))
            out[is_out] = (rows[: len(samples)][is_out] @ weight.T + bias).double()
            offsets[choice] = offset.double() if choice not in offsets else offsets[choice] + offset
    return [
        validate(readout, choice, scores[choice][is_scored], offsets[choice] / len(numbers), targets[is_scored])
        for choice in scores
    ]


def validate(readout: Readout, choice: HeadChoice, scores: Tensor, offsets: Tensor, targets: Tensor) -> Validated:
    """Calibrate scores (N, K) of images that were not fitted, and measure them."""
    weights = balance_classes(targets, scores.shape[1]) if choice.is_balanced else None
    temperature = fit_temperature(scores, targets, offsets, weights)
    logits = scores / temperature + offsets
    accuracy, macro = measure_accuracies(logits, targets)
    losses = compute_log_losses(logits, targets)
    log_loss = (losses if weights is None else weights * losses).mean().item()
    return Validated(readout, choice, logits, temperature, log_loss, accuracy, macro)


def is_better(new: Validated, old: Validated) -> bool:
    """Return whether a head replaces another: a lower log loss, or if one of them is balanced a higher mean over classes."""
    if new.choice.is_balanced != old.choice.is_balanced:
        return new.macro_accuracy > old.macro_accuracy
    return new.log_loss < old.log_loss


def pick_best(validated: Sequence[Validated]) -> Validated:
    """Return the best of some heads: the one with the lowest log loss, of plain or of balanced ones."""
    groups = ([each for each in validated if each.choice.is_balanced == is_balanced] for is_balanced in (False, True))
    best, *others = (min(group, key=lambda each: each.log_loss) for group in groups if group)
    return others[0] if others and is_better(others[0], best) else best


def fit_head(samples: Samples, choice: HeadChoice, temperature: float) -> tuple[Tensor, Tensor]:
    """Fit one head to all images; return weight (K, D) and bias (K), float32, of logits before division by the temperature."""
    rotated = RotatedRows(samples)
    rows = rotated.rows if len(rotated.rows) <= MAX_EXACT else rotated.rows.float()
    targets = samples.targets.repeat(rotated.num_views, *(1,) * (samples.targets.ndim - 1))
    weight, bias, offset = fit_choice(rows, targets, samples.num_classes, choice)
    return rotated.fold(weight, bias + temperature * offset)


def count_operations(num_rows: int, num_features: int, choices: Sequence[HeadChoice], num_fits: int = 1) -> float:
    """Return about how many float32 operations closed-form heads on rows (M, D) take, each choice fitted so many times.

    A fit in float64 counts as two.
    """
    rank, num_kinds = min(num_rows, num_features), len({(choice.kind, choice.is_balanced) for choice in choices})
    rotation = 4 * num_rows**2 * num_features + EIGEN_COST * num_rows**3 if num_rows < num_features else 0
    return rotation + num_fits * (2 * num_kinds * num_rows * rank**2 + CHOLESKY_COST * len(choices) * rank**3)


def fit_choice(rows: Tensor, targets: Tensor, num_classes: int, choice: HeadChoice) -> Scores:
    """Fit one choice to rows (M, R)."""
    ((_, scores),) = fit_choices(rows, targets, num_classes, [choice])
    return scores


def list_choices(kinds: Sequence[HeadKind], balances: Sequence[bool] = (False,)) -> list[HeadChoice]:
    """List all strengths of some kinds of heads."""
    return [HeadChoice(kind, strength, balanced) for balanced in balances for kind in kinds for strength in STRENGTHS[kind]]


def fit_choices(
    rows: Tensor, targets: Tensor, num_classes: int, choices: Sequence[HeadChoice]
) -> Iterator[tuple[HeadChoice, Scores]]:
    """Fit every choice to rows (M, R); those that differ in strength alone, and follow each other, share most of the work."""
    for (kind, is_balanced), group in groupby(choices, key=lambda choice: (choice.kind, choice.is_balanced)):
        alike = list(group)
        fits = FITS[kind](rows, targets, num_classes, [choice.strength for choice in alike], is_balanced)
        yield from zip(alike, fits, strict=True)


def fit_discriminants(
    rows: Tensor, targets: Tensor, num_classes: int, strengths: Sequence[float], is_balanced: bool
) -> Iterator[Scores]:
    """Fit linear discriminants whose shared covariance is shrunk; balanced, all classes are equally frequent."""
    counts = torch.bincount(targets, minlength=num_classes).to(rows)
    means = sum_by_class(rows, targets, num_classes) / counts.clamp(min=1)[:, None]
    num_free = max(1, len(rows) - int((counts > 0).sum()))  # each mean takes one degree of freedom
    covariance = (rows.T @ rows - means.T @ (counts[:, None] * means)) / num_free
    frequencies = (counts + 1) / (counts + 1).sum()  # so that empty classes are rare but possible
    offsets = torch.zeros_like(counts) if is_balanced else frequencies.log()
    for strength in strengths:
        weight = solve_shrunk(covariance, strength, means.T).T
        yield weight, -0.5 * (weight * means).sum(dim=1), offsets


def fit_ridges(
    rows: Tensor, targets: Tensor, num_classes: int, strengths: Sequence[float], is_balanced: bool
) -> Iterator[Scores]:
    """Fit ridge regressions to targets of 1 at a label and -1 elsewhere."""
    signs = (2 * to_matrix(targets, num_classes) - 1).to(rows)
    weights = balance_classes(targets, num_classes)[:, None].to(rows) if is_balanced else rows.new_ones(len(rows), 1)
    centre, middle = (weights * rows).mean(dim=0), (weights * signs).mean(dim=0)  # weights are 1 on average
    centred = rows - centre
    products, correlation = centred.T @ (weights * centred), centred.T @ (weights * (signs - middle))
    for strength in strengths:
        weight = solve_shrunk(products, strength * len(rows), correlation).T
        yield weight, middle - weight @ centre, torch.zeros(num_classes, dtype=rows.dtype)


def fit_logistics(
    rows: Tensor, targets: Tensor, num_classes: int, strengths: Sequence[float], is_balanced: bool
) -> Iterator[Scores]:
    """Fit logistic regressions, softmax or for several labels sigmoid, each started from the one before it."""
    from scipy.optimize import minimize

    dtype, rows, labels = rows.dtype, rows.float(), to_matrix(targets, num_classes).float()  # float32 is exact enough
    weights = balance_classes(targets, num_classes)[:, None].float() if is_balanced else torch.ones(len(rows), 1)
    start = np.zeros(num_classes * (rows.shape[1] + 1))

    def measure(flat: np.ndarray, strength: float) -> tuple[float, np.ndarray]:
        """Return the loss and its gradient."""
        whole = torch.from_numpy(flat).float().view(num_classes, -1)
        weight, bias = whole[:, :-1], whole[:, -1]
        logits = rows @ weight.T + bias
        probabilities = logits.sigmoid() if targets.ndim == 2 else logits.softmax(dim=1)
        losses = compute_log_losses(logits, targets)
        errors = weights * (probabilities - labels) / len(rows)  # (M, K)
        if targets.ndim == 2:
            errors = errors / num_classes
        gradient = torch.cat([errors.T @ rows + strength * weight, errors.sum(dim=0)[:, None]], dim=1)
        loss = (weights[:, 0] * losses).mean() + 0.5 * strength * weight.square().sum()
        return loss.item(), gradient.reshape(-1).double().numpy()

    for strength in strengths:
        found = minimize(measure, start, (strength,), "L-BFGS-B", jac=True, options={"maxiter": MAX_ITERATIONS})
        start = found.x
        whole = torch.from_numpy(found.x.copy()).view(num_classes, -1).to(dtype)
        yield whole[:, :-1], whole[:, -1], torch.zeros(num_classes, dtype=dtype)


FITS: dict[HeadKind, Callable[..., Iterator[Scores]]] = {
    "discriminant": fit_discriminants,
    "ridge": fit_ridges,
    "logistic": fit_logistics,
}


def solve_shrunk(matrix: Tensor, strength: float, right: Tensor) -> Tensor:
    """Solve (matrix + strength) x = right, a symmetric matrix with `strength` added to its diagonal."""
    shrunk = matrix + strength * torch.eye(len(matrix), dtype=matrix.dtype)
    factor, failed = torch.linalg.cholesky_ex(shrunk)
    if failed:  # rounding to float32 has made it indefinite
        return torch.linalg.solve(shrunk.double(), right.double()).to(right)
    return torch.cholesky_solve(right, factor)


def to_matrix(targets: Tensor, num_classes: int) -> Tensor:
    """Return targets as float64 (N, K) of 0 and 1."""
    return targets.double() if targets.ndim == 2 else F.one_hot(targets, num_classes).double()


def balance_classes(targets: Tensor, num_classes: int) -> Tensor:
    """Return weights (N), 1 on average, under which all classes that have images weigh the same.

    Of an image with several labels, the rarest counts.
    """
    labels = to_matrix(targets, num_classes)
    counts = labels.sum(dim=0)
    rarity = torch.where(counts > 0, 1 / counts.clamp(min=1), 0)
    weights = (labels * rarity).amax(dim=1)
    weights = torch.where(weights > 0, weights, rarity[rarity > 0].min())  # images without a label
    return weights / weights.mean()


def measure_accuracies(logits: Tensor, targets: Tensor) -> tuple[float, float]:
    """Return the accuracy over images, and its mean over classes; for several labels, of the decision for each class.

    There the mean is over labels and absent labels of each class, so that always saying "absent" scores a half.
    """
    if targets.ndim == 2:
        is_label, is_right = targets > 0.5, ((logits > 0) == (targets > 0.5)).double()
        parts = [
            is_right[mask, column] for column in range(logits.shape[1]) for mask in (is_label[:, column], ~is_label[:, column])
        ]
        return is_right.mean().item(), torch.stack([part.mean() for part in parts if len(part)]).mean().item()
    is_right = (logits.argmax(dim=1) == targets).double()
    counts = torch.bincount(targets, minlength=logits.shape[1])
    sums = torch.bincount(targets, is_right, minlength=logits.shape[1])
    return is_right.mean().item(), (sums / counts)[counts > 0].mean().item()


def draw_folds(targets: Tensor, num_classes: int, seed: int, num_folds: int = NUM_FOLDS) -> Tensor:
    """Assign each image to a fold at random, int64 (N), each class evenly; fewer folds if the largest class has fewer images.

    Of an image with several labels, the rarest counts.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(targets), generator=generator)
    labels = to_matrix(targets, num_classes)
    counts = labels.sum(dim=0)
    rarest = torch.where(labels > 0, counts, torch.inf).argmin(dim=1) if targets.ndim == 2 else targets
    num_folds = max(2, min(num_folds, int(counts.max())))
    by_class = order[rarest[order].argsort(stable=True)]
    folds = torch.empty(len(targets), dtype=torch.int64)
    folds[by_class] = torch.arange(len(targets)) % num_folds
    return folds
