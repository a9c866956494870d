"""Ridge and LDA in closed form, heads for softmax.

Regularised least squares from features to classes, in closed form (arXiv:2010.11929, section 4.1).

The paper gives the targets, -1 and 1. Standardising and the constant feature are big_vision's (`fewshot_lsr`), which computes
in single precision. Letters: N images, D features, K classes.
Linear discriminant analysis with a shrunk covariance, in closed form. Letters: N images, D features, K classes.
Heads for softmax in closed form on frozen features, so that fine-tuning begins from a linear probe.

Neither method says how sure to be. So its scores are scaled, and its strength chosen, for the least cross-entropy of images
that were left out of the fit. Letters: N images, D features, K classes.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

CONSTANT_FEATURE = 100.0  # carries the bias; so large that the penalty on its weight hardly counts
COLUMNS_AT_ONCE = 192  # enough for a product of matrices to be quick
ROWS_AT_ONCE = 512  # few enough to stay in a processor's cache
SMALLEST_STD = 1e-5  # added to every std, so that a feature that never varies is not divided by zero


@dataclass(frozen=True)
class Standardiser:
    """Mean 0 and std 1 for the features that it was fitted to, and the same change for any others."""

    mean: Tensor
    """float64 (D)."""
    std: Tensor
    """float64 (D), with `SMALLEST_STD` added."""

    @classmethod
    def fit_and_apply(cls, features: Tensor) -> tuple["Standardiser", Tensor]:
        """Of features (N, D), with them standardised, float64 (N, D). The std divides by N, not N - 1."""
        if features.ndim != 2 or features.numel() == 0:
            shape = tuple(features.shape)
            raise ValueError(f"Features of shape {shape} cannot be standardised: give (N, D), of at least one image.")
        values = features.to(torch.float64, copy=True)  # in place from here: making memory takes longer than the arithmetic
        mean = values.mean(dim=0)
        values -= mean
        squares = torch.stack([part.square().sum(dim=0) for part in values.split(ROWS_AT_ONCE)]).sum(dim=0)
        std = (squares / len(values)).sqrt() + SMALLEST_STD
        if not std.isfinite().all():
            raise ValueError("Features are infinite or not a number, and finite ones were needed: check the model's weights.")
        values /= std
        return cls(mean, std), values

    def apply(self, features: Tensor) -> Tensor:
        """float64 (N, D)."""
        return (features - self.mean).div_(self.std)

    def fold(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """A linear layer on standardised features, (K, D) and (K), as one on features as they come, in float32.

        In single precision digits are lost where a feature's mean is far larger than its std.
        """
        folded = weight / self.std
        return folded.float().contiguous(), (bias - folded @ self.mean).float()


@dataclass(frozen=True)
class Spectrum:
    """A decomposed problem: its weights are left (1 / (values + l2)) right."""

    values: Tensor
    vectors: Tensor
    left: Tensor
    right: Tensor


class RidgeProblem:
    """Solved for one strength of the penalty; or decomposed, after which weights for any strength cost a product of matrices.

    With Z the standardised features and Y the targets, the weights are (Z'Z + l2)^-1 Z'Y, or Z'(ZZ' + l2)^-1 Y, which are
    equal; whichever matrix is smaller is taken. The constant feature is solved for by itself: every column of Z adds up to 0,
    so it is orthogonal to all of them.
    """

    def __init__(self, features: Tensor, labels: Tensor, num_classes: int) -> None:
        """From features (N, D) and labels int64 (N), where they are: a device that has double precision."""
        require_one_class_each(labels, num_classes, "The labels")
        if len(features) != len(labels):
            raise ValueError(f"{len(features)} rows of features but {len(labels)} labels: give as many of each.")
        self.standardiser, self.z = Standardiser.fit_and_apply(features)
        self.labels, self.num_classes = labels, num_classes
        self.is_primal = len(features) >= features.shape[1]
        self.products = multiply_by_itself(self.z if self.is_primal else self.z.T)
        self.spectrum: Spectrum | None = None

    def decompose(self) -> Spectrum:
        """Once, for several strengths: it takes as long as some ten solutions by themselves."""
        if self.spectrum is None:
            eigenvalues, vectors = torch.linalg.eigh(self.products)
            values = eigenvalues.clamp(min=0)  # none is negative but for rounding, which a small l2 would not hide
            if self.is_primal:
                self.spectrum = Spectrum(values, vectors, vectors, vectors.T @ self.multiply_targets(self.z))
            else:
                self.spectrum = Spectrum(values, vectors, self.z.T @ vectors, self.multiply_targets(vectors))
        return self.spectrum

    def multiply_targets(self, rows: Tensor) -> Tensor:
        """rows' Y (M, K) of rows (N, M). Targets are 1 at one class and -1 at all others, so sums over classes are enough."""
        sums = sum_by_class(rows, self.labels, self.num_classes)
        return (2 * sums - rows.sum(dim=0)).T

    def solve(self, l2: float) -> tuple[Tensor, Tensor]:
        """Weights float64 (D, K) and biases float64 (K), for standardised features."""
        if not (l2 > 0 and math.isfinite(l2)):
            raise ValueError(f"l2={l2} must be a finite number above 0, as 1024.")
        sums = 2 * torch.bincount(self.labels, minlength=self.num_classes).double() - len(self.labels)  # of the targets
        bias = self.get_constant_share(l2) * sums
        if self.spectrum is not None:
            return (self.spectrum.left / (self.spectrum.values + l2)) @ self.spectrum.right, bias
        penalised = self.products.clone()
        penalised.diagonal().add_(l2)
        factor = torch.linalg.cholesky(penalised)
        if self.is_primal:
            return torch.cholesky_solve(self.multiply_targets(self.z), factor), bias
        return self.z.T @ torch.cholesky_solve(self.build_targets(), factor), bias

    def get_constant_share(self, l2: float) -> float:
        """How far each image decides the bias: 1 / N but for the penalty on the weight of the constant feature."""
        return CONSTANT_FEATURE**2 / (len(self.labels) * CONSTANT_FEATURE**2 + l2)

    def build_targets(self) -> Tensor:
        """float64 (N, K)."""
        return F.one_hot(self.labels, self.num_classes).double() * 2 - 1

    def predict_left_out(self, l2: float) -> Tensor:
        """Scores float64 (N, K) of each image by the weights that were fitted without it: no second fit is needed for that."""
        shares = self.leverages / (self.decompose().values + l2)
        leverage = shares.sum(dim=1, keepdim=True) + self.get_constant_share(l2)  # how far an image decides its own score
        weights, bias = self.solve(l2)
        return (self.z @ weights + bias - leverage * self.build_targets()) / (1 - leverage)

    @cached_property
    def leverages(self) -> Tensor:
        """(N, N or D): of each image along each eigenvector."""
        spectrum = self.decompose()
        return (self.z @ spectrum.vectors).square_() if self.is_primal else spectrum.vectors.square() * spectrum.values


def multiply_by_itself(rows: Tensor) -> Tensor:
    """rows' rows (M, M) of rows (N, M): only what lies on its diagonal and above is multiplied, the rest is its mirror."""
    products = rows.new_empty(rows.shape[1], rows.shape[1])
    for start in range(0, rows.shape[1], COLUMNS_AT_ONCE):
        stop = start + COLUMNS_AT_ONCE
        products[start:stop, start:] = rows[:, start:stop].T @ rows[:, start:]
        products[stop:, start:stop] = products[start:stop, stop:].T
    return products


def sum_by_class(rows: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """(K, M) of rows (N, M); many times faster than `index_add_`."""
    counts = torch.bincount(labels, minlength=num_classes)
    return F.embedding_bag(labels.argsort(stable=True), rows, counts.cumsum(dim=0) - counts, mode="sum")


def require_one_class_each(labels: Tensor, num_classes: int, what: str) -> None:
    """`what` begins the sentence, as "The labels"."""
    if num_classes < 2:
        raise ValueError(f"num_classes={num_classes} must be at least 2: with fewer there is nothing to tell apart.")
    if labels.dtype != torch.int64 or labels.ndim != 1:
        raise ValueError(
            f"{what} are {labels.dtype} of shape {tuple(labels.shape)}, and one class for each image, int64 (N), was needed: "
            "take data whose images do not have several classes."
        )
    if len(labels) == 0:
        raise ValueError(f"{what} are of no images, and at least one was needed: check the data and its split.")
    lowest, highest = labels.min().item(), labels.max().item()
    if lowest < 0 or highest >= num_classes:
        raise ValueError(
            f"{what} go from {lowest} to {highest}, and 0 to {num_classes - 1} was needed: check num_classes={num_classes}."
        )


NUM_FOLDS = 5


@dataclass(frozen=True)
class Discriminant:
    """What is known of the classes of some images, from which weights for any shrinkage cost a product of matrices."""

    means: Tensor
    """float64 (K, D); of a class without images, 0, which is the mean of all."""
    counts: Tensor
    """float64 (K): images."""
    values: Tensor
    """float64 (D): with `vectors`, the decomposed covariance of features around the mean of their class."""
    vectors: Tensor

    @classmethod
    def fit(cls, features: Tensor, labels: Tensor, num_classes: int) -> "Discriminant":
        """Of standardised features, float64 (N, D), and labels int64 (N)."""
        counts = torch.bincount(labels, minlength=num_classes).double()
        means = sum_by_class(features, labels, num_classes) / counts.clamp(min=1)[:, None]
        spread = features - means[labels]
        num_free = max(1, len(features) - int((counts > 0).sum()))  # each mean takes one away
        values, vectors = torch.linalg.eigh(spread.T @ spread / num_free)
        return cls(means, counts, values.clamp(min=0), vectors)

    def solve(self, shrinkage: float) -> tuple[Tensor, Tensor]:
        """Weights (K, D) and biases (K): the class whose mean is nearest, as far as features spread, scores highest.

        `shrinkage` is added to the variance of every feature, which is 1 over all images.
        """
        weight = (self.means @ self.vectors / (self.values + shrinkage)) @ self.vectors.T
        return weight, -0.5 * (weight * self.means).sum(dim=1)

    @property
    def log_shares(self) -> Tensor:
        """(K): how frequent each class is, with one image more of each, so that one without images is rare, not barred."""
        return ((self.counts + 1) / (self.counts + 1).sum()).log()


def predict_held_out(features: Tensor, labels: Tensor, num_classes: int, shrinkages: tuple[float, ...]) -> dict[float, Tensor]:
    """By shrinkage, scores (N, K) of each image by a fit to the other folds, of which each has its share of every class."""
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


PENALTIES = (0.03, 0.1, 0.3, 1.0)  # of ridge regression, to choose from, times the number of images
SHRINKAGES = (0.03, 0.1, 0.3, 1.0, 3.0)  # of the discriminant, to choose from
SCALES = (0.01, 100.0)
DOUBT = 0.01  # spread over all classes when the scale is chosen: none would be too large for classes that lie apart


def fit_ridge_head(features: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Weight (K, D) and bias (K), float32, by the paper's least squares."""
    problem = RidgeProblem(features, labels, num_classes)
    found = {share: scale_for_softmax(problem.predict_left_out(share * len(labels)), labels) for share in PENALTIES}
    share = min(found, key=lambda share: found[share][1])
    scale, (weights, bias) = found[share][0], problem.solve(share * len(labels))
    return problem.standardiser.fold(scale * weights.T, scale * bias)


def fit_discriminant_head(features: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Weight (K, D) and bias (K), float32, by linear discriminant analysis: better than least squares where images are few."""
    require_one_class_each(labels, num_classes, "The labels")
    standardiser, standardised = Standardiser.fit_and_apply(features)
    discriminant = Discriminant.fit(standardised, labels, num_classes)
    held_out = predict_held_out(standardised, labels, num_classes, SHRINKAGES)
    found = {each: scale_for_softmax(scores, labels, discriminant.log_shares) for each, scores in held_out.items()}
    shrinkage = min(found, key=lambda each: found[each][1])
    scale, (weight, bias) = found[shrinkage][0], discriminant.solve(shrinkage)
    return standardiser.fold(scale * weight, scale * bias + discriminant.log_shares)


def scale_for_softmax(scores: Tensor, labels: Tensor, offsets: Tensor | None = None) -> tuple[float, float]:
    """The factor of least cross-entropy, which is convex in it, and that cross-entropy. Offsets (K) are not scaled."""
    from scipy.optimize import minimize_scalar

    added = torch.zeros_like(scores[0]) if offsets is None else offsets

    def measure(scale: float) -> float:
        return F.cross_entropy(scale * scores + added, labels, label_smoothing=DOUBT).item()

    found = minimize_scalar(measure, bounds=SCALES, method="bounded")
    return float(found.x), float(found.fun)
