"""Linear classifiers on frozen features in closed form: ridge regression, LDA, and softmax heads made of either.

Ridge regression is the paper's few-shot classifier (arXiv:2010.11929, section 4.1). The paper specifies the targets, -1 and 1;
standardisation and the constant feature follow big_vision (`fewshot_lsr`), which computes in single precision.
Linear discriminant analysis (LDA) uses a shrunk covariance.

A softmax head from either starts fine-tuning from a linear probe. Neither method gives calibrated scores, so the regularisation
and the scale of the scores are chosen for the smallest cross-entropy of images that were left out of the fit.
Letters: N images, D features, K classes.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

CONSTANT_FEATURE = 100.0  # carries the bias; so large that the penalty on its weight hardly counts
COLUMNS_AT_ONCE = 192  # enough for an efficient matrix product
ROWS_AT_ONCE = 512  # few enough to stay in the CPU's cache
MIN_STD = 1e-5  # added to every std, so that a constant feature is not divided by zero

PENALTIES = (0.03, 0.1, 0.3, 1.0)  # candidates of ridge regression, times the number of images
SHRINKAGES = (0.03, 0.1, 0.3, 1.0, 3.0)  # candidates of LDA
NUM_FOLDS = 5
SCALES = (0.01, 100.0)  # bounds of the score scale
LABEL_SMOOTHING = 0.01  # while choosing the scale: without it, no scale is too large for separable classes


@dataclass(frozen=True)
class Standardiser:
    """Shift and scale that give the features it was fitted to mean 0 and std 1."""

    mean: Tensor
    """float64 (D)."""
    std: Tensor
    """float64 (D), with `MIN_STD` added."""

    @classmethod
    def fit_and_apply(cls, features: Tensor) -> tuple["Standardiser", Tensor]:
        """Fit to features (N, D), std with N; return the standardiser and the features standardised, float64 (N, D)."""
        if features.ndim != 2 or features.numel() == 0:
            raise ValueError(f"features have shape {tuple(features.shape)}; expected (N, D) with at least one image.")
        values = features.to(torch.float64, copy=True)  # in place from here: allocating takes longer than the arithmetic
        mean = values.mean(dim=0)
        values -= mean
        squares = torch.stack([part.square().sum(dim=0) for part in values.split(ROWS_AT_ONCE)]).sum(dim=0)
        std = (squares / len(values)).sqrt() + MIN_STD
        if not std.isfinite().all():
            raise ValueError("Features are not finite: check the model's weights.")
        values /= std
        return cls(mean, std), values

    def apply(self, features: Tensor) -> Tensor:
        """Return features standardised, float64 (N, D)."""
        return (features - self.mean).div_(self.std)

    def fold(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Turn a linear layer on standardised features, (K, D) and (K), into a float32 layer on the original ones."""
        folded = weight / self.std
        return folded.float().contiguous(), (bias - folded @ self.mean).float()


@dataclass(frozen=True)
class Spectrum:
    """A decomposed ridge problem: its weights are left (1 / (values + l2)) right."""

    values: Tensor
    vectors: Tensor
    left: Tensor
    right: Tensor


class RidgeProblem:
    """Ridge regression to targets of 1 at the label and -1 elsewhere, solved for one penalty or decomposed for several.

    With Z the standardised features and Y the targets, the weights are (Z'Z + l2)^-1 Z'Y, or equally Z'(ZZ' + l2)^-1 Y; the
    smaller matrix is used. The constant feature is solved for separately: it is orthogonal to Z, whose columns sum to 0.
    """

    def __init__(self, features: Tensor, labels: Tensor, num_classes: int) -> None:
        """Take features (N, D) and labels int64 (N) on a device that supports float64."""
        require_one_class_each(labels, num_classes, "The labels")
        if len(features) != len(labels):
            raise ValueError(f"There are {len(features)} rows of features but {len(labels)} labels: give one label per row.")
        self.standardiser, self.z = Standardiser.fit_and_apply(features)
        self.labels, self.num_classes = labels, num_classes
        self.is_primal = len(features) >= features.shape[1]
        self.products = compute_gram_matrix(self.z if self.is_primal else self.z.T)
        self.spectrum: Spectrum | None = None

    def decompose(self) -> Spectrum:
        """Compute the eigenvectors once, in the time of ten solutions; each further penalty costs a matrix product."""
        if self.spectrum is None:
            eigenvalues, vectors = torch.linalg.eigh(self.products)
            values = eigenvalues.clamp(min=0)  # rounding makes some negative, which a small l2 would not hide
            if self.is_primal:
                self.spectrum = Spectrum(values, vectors, vectors, vectors.T @ self.multiply_targets(self.z))
            else:
                self.spectrum = Spectrum(values, vectors, self.z.T @ vectors, self.multiply_targets(vectors))
        return self.spectrum

    def multiply_targets(self, rows: Tensor) -> Tensor:
        """Return rows' Y (M, K) of rows (N, M) from sums over classes: targets are 1 at the label and -1 elsewhere."""
        sums = sum_by_class(rows, self.labels, self.num_classes)
        return (2 * sums - rows.sum(dim=0)).T

    def solve(self, l2: float) -> tuple[Tensor, Tensor]:
        """Return weights float64 (D, K) and biases float64 (K), for standardised features."""
        if not (l2 > 0 and math.isfinite(l2)):
            raise ValueError(f"l2={l2} must be a finite number above 0, e.g. 1024.")
        sums = 2 * torch.bincount(self.labels, minlength=self.num_classes).double() - len(self.labels)  # of the targets
        bias = self.bias_leverage(l2) * sums
        if self.spectrum is not None:
            return (self.spectrum.left / (self.spectrum.values + l2)) @ self.spectrum.right, bias
        penalised = self.products.clone()
        penalised.diagonal().add_(l2)
        factor = torch.linalg.cholesky(penalised)
        if self.is_primal:
            return torch.cholesky_solve(self.multiply_targets(self.z), factor), bias
        return self.z.T @ torch.cholesky_solve(self.build_targets(), factor), bias

    def bias_leverage(self, l2: float) -> float:
        """Return the weight of each image in the bias: 1 / N, except for the penalty on the constant feature."""
        return CONSTANT_FEATURE**2 / (len(self.labels) * CONSTANT_FEATURE**2 + l2)

    def build_targets(self) -> Tensor:
        """Return Y, float64 (N, K)."""
        return F.one_hot(self.labels, self.num_classes).double() * 2 - 1

    def predict_left_out(self, l2: float) -> Tensor:
        """Return leave-one-out scores float64 (N, K): each image's by weights fitted without it, computed without refitting."""
        fractions = self.leverages / (self.decompose().values + l2)
        leverage = fractions.sum(dim=1, keepdim=True) + self.bias_leverage(l2)  # an image's weight in its own score
        weights, bias = self.solve(l2)
        return (self.z @ weights + bias - leverage * self.build_targets()) / (1 - leverage)

    @cached_property
    def leverages(self) -> Tensor:
        """Squared projections of each image on each eigenvector, (N, N or D)."""
        spectrum = self.decompose()
        return (self.z @ spectrum.vectors).square_() if self.is_primal else spectrum.vectors.square() * spectrum.values


def compute_gram_matrix(rows: Tensor) -> Tensor:
    """Return rows' rows (M, M) of rows (N, M): the upper triangle is computed, the lower is its mirror."""
    products = rows.new_empty(rows.shape[1], rows.shape[1])
    for start in range(0, rows.shape[1], COLUMNS_AT_ONCE):
        stop = start + COLUMNS_AT_ONCE
        products[start:stop, start:] = rows[:, start:stop].T @ rows[:, start:]
        products[stop:, start:stop] = products[start:stop, stop:].T
    return products


def sum_by_class(rows: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Sum rows (N, M) over the images of each class: (K, M). Many times faster than `index_add_`."""
    counts = torch.bincount(labels, minlength=num_classes)
    return F.embedding_bag(labels.argsort(stable=True), rows, counts.cumsum(dim=0) - counts, mode="sum")


def require_one_class_each(labels: Tensor, num_classes: int, what: str) -> None:
    """Raise ValueError unless labels are int64 (N) in 0..num_classes-1; `what` begins the message, e.g. "The labels"."""
    if num_classes < 2:
        raise ValueError(f"num_classes={num_classes} must be at least 2.")
    if labels.dtype != torch.int64 or labels.ndim != 1:
        raise ValueError(f"{what} are {labels.dtype} {tuple(labels.shape)}; expected int64 (N): one class per image.")
    if len(labels) == 0:
        raise ValueError(f"{what} are empty: check the data and its split.")
    lowest, highest = labels.min().item(), labels.max().item()
    if lowest < 0 or highest >= num_classes:
        raise ValueError(f"{what} go from {lowest} to {highest}; expected 0 to {num_classes - 1} (num_classes={num_classes}).")


@dataclass(frozen=True)
class Discriminant:
    """Class means and decomposed covariance of LDA; weights for any shrinkage then cost a matrix product."""

    means: Tensor
    """float64 (K, D); 0, the overall mean, for a class without images."""
    counts: Tensor
    """float64 (K): images of each class."""
    values: Tensor
    """float64 (D): eigenvalues, with `vectors`, of the covariance of features around their class mean."""
    vectors: Tensor

    @classmethod
    def fit(cls, features: Tensor, labels: Tensor, num_classes: int) -> "Discriminant":
        """Fit to standardised features, float64 (N, D), and labels int64 (N)."""
        counts = torch.bincount(labels, minlength=num_classes).double()
        means = sum_by_class(features, labels, num_classes) / counts.clamp(min=1)[:, None]
        spread = features - means[labels]
        num_free = max(1, len(features) - int((counts > 0).sum()))  # each mean takes one degree of freedom
        values, vectors = torch.linalg.eigh(spread.T @ spread / num_free)
        return cls(means, counts, values.clamp(min=0), vectors)

    def solve(self, shrinkage: float) -> tuple[Tensor, Tensor]:
        """Return weights (K, D) and biases (K) of the nearest mean; `shrinkage` is added to each feature's variance."""
        weight = (self.means @ self.vectors / (self.values + shrinkage)) @ self.vectors.T
        return weight, -0.5 * (weight * self.means).sum(dim=1)

    @property
    def log_priors(self) -> Tensor:
        """Log class frequencies (K), with one image added to each class, so that empty classes are rare but possible."""
        return ((self.counts + 1) / (self.counts + 1).sum()).log()


def predict_held_out(features: Tensor, labels: Tensor, num_classes: int, shrinkages: tuple[float, ...]) -> dict[float, Tensor]:
    """Return {shrinkage: LDA scores (N, K)}, each image scored by a fit to the other folds; folds are stratified."""
    folds = torch.empty_like(labels)
    folds[labels.argsort(stable=True)] = torch.arange(len(labels), device=labels.device) % NUM_FOLDS
    scores = {shrinkage: features.new_zeros(len(features), num_classes) for shrinkage in shrinkages}
    for fold in folds.unique():
        held_out = folds == fold
        discriminant = Discriminant.fit(features[~held_out], labels[~held_out], num_classes)
        for shrinkage in shrinkages:
            weight, bias = discriminant.solve(shrinkage)
            scores[shrinkage][held_out] = features[held_out] @ weight.T + bias
    return scores


def fit_ridge_head(features: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Fit the paper's ridge regression and scale it to a softmax head: return weight (K, D) and bias (K), float32."""
    problem = RidgeProblem(features, labels, num_classes)
    fits = {penalty: scale_for_softmax(problem.predict_left_out(penalty * len(labels)), labels) for penalty in PENALTIES}
    penalty = min(fits, key=lambda each: fits[each][1])
    scale, (weights, bias) = fits[penalty][0], problem.solve(penalty * len(labels))
    return problem.standardiser.fold(scale * weights.T, scale * bias)


def fit_discriminant_head(features: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Fit LDA, better than ridge for few images, and scale it to a softmax head: return weight (K, D) and bias (K)."""
    require_one_class_each(labels, num_classes, "The labels")
    standardiser, standardised = Standardiser.fit_and_apply(features)
    discriminant = Discriminant.fit(standardised, labels, num_classes)
    held_out = predict_held_out(standardised, labels, num_classes, SHRINKAGES)
    fits = {each: scale_for_softmax(scores, labels, discriminant.log_priors) for each, scores in held_out.items()}
    shrinkage = min(fits, key=lambda each: fits[each][1])
    scale, (weight, bias) = fits[shrinkage][0], discriminant.solve(shrinkage)
    return standardiser.fold(scale * weight, scale * bias + discriminant.log_priors)


def scale_for_softmax(scores: Tensor, labels: Tensor, offsets: Tensor | None = None) -> tuple[float, float]:
    """Return the scale of the scores, to which offsets (K) are added, that has the smallest cross-entropy, and that value."""
    from scipy.optimize import minimize_scalar

    added = torch.zeros_like(scores[0]) if offsets is None else offsets

    def measure(scale: float) -> float:
        return F.cross_entropy(scale * scores + added, labels, label_smoothing=LABEL_SMOOTHING).item()

    result: Any = minimize_scalar(measure, bounds=SCALES, method="bounded")
    return float(result.x), float(result.fun)
