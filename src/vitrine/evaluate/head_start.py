"""Heads for softmax in closed form on frozen features, so that fine-tuning begins from a linear probe.

Neither method says how sure to be. So its scores are scaled, and its strength chosen, for the least cross-entropy of images
that were left out of the fit. Letters: N images, D features, K classes.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrine.evaluate.discriminant import Discriminant, predict_held_out
from vitrine.evaluate.ridge import RidgeProblem, Standardiser, require_one_class_each

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
