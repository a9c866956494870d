"""Linear discriminant analysis with a shrunk covariance, in closed form. Letters: N images, D features, K classes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vitrine.evaluate.ridge import sum_by_class

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
