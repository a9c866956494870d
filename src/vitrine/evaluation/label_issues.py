"""Find probably wrong labels: images whose nearest neighbours in feature space have another label.

Letters: N images, D features, K neighbours.
"""

from dataclasses import dataclass

import numpy as np
import torch

from vitrine.core.console import warn_user
from vitrine.data.quality.check import DataCheck, ImageRef, Issue
from vitrine.data.subsets import SubsetSource
from vitrine.evaluation.features import FeatureCache, Features
from vitrine.evaluation.linear_heads import require_one_class_each
from vitrine.evaluation.predictor import Predictor

NUM_NEIGHBOURS = 10
# A label is suspect if its own class has at most the first fraction of the neighbours' votes, and another at least the second.
MAX_OWN_FRACTION, MIN_OTHER_FRACTION = 0.1, 0.6


@dataclass(frozen=True)
class LabelIssue:
    """An image whose neighbours have another label."""

    index: int
    """Index of the image in its source."""
    label: int
    suggested: int
    """The class of most neighbours."""
    fraction: float
    """Fraction of the neighbours' votes for it."""


def find_label_issues(check: DataCheck, predictor: Predictor, cache: FeatureCache | None = None) -> list[Issue]:
    """Return the labels of checked data that a model's features contradict, over all splits together.

    Returns no issues, with a warning, for data that has less than two classes, other classes in each split, or several
    labels for an image.
    """
    class_names, *others = {source.class_names for source in check.sources.values()}
    if others or len(class_names) < 2 or any(source.labels.has_several for source in check.sources.values()):
        warn_user("Labels were not checked: this needs at least two classes, the same in all splits, and one label per image.")
        return []
    images, parts = [], []
    for split, stats in check.stats.items():
        readable = np.array([number for number in range(len(stats)) if number not in stats.unreadable])
        if len(readable):
            part = predictor.features(SubsetSource(check.sources[split], readable), cache, f"features of {split or 'images'}")
            parts.append(part)
            images += [ImageRef(split, int(readable[index])) for index in part.index.tolist()]
    if not parts:
        warn_user("Labels were not checked: no image can be read.")
        return []
    values, labels = (torch.cat([getattr(part, name) for part in parts]) for name in ("values", "labels"))
    features = Features(values, labels, torch.arange(len(values)))
    return [
        Issue(
            "label suspect",
            (images[each.index],),
            f"looks like {class_names[each.suggested]} ({100 * each.fraction:.0f} % of its neighbours)",
        )
        for each in find_contradicted_labels(features, len(class_names))
    ]


def find_contradicted_labels(features: Features, num_classes: int) -> list[LabelIssue]:
    """Return the images whose neighbours, weighted by cosine, vote for another class, the most doubtful label first."""
    require_one_class_each(features.labels, num_classes, "The labels")
    num_neighbours = min(NUM_NEIGHBOURS, len(features) - 1)
    if num_neighbours < 1:
        return []
    labels = features.labels.numpy()
    votes = count_votes(features.values, labels, num_classes, num_neighbours)  # (N, classes)
    rows = np.arange(len(labels))
    own, suggested = votes[rows, labels], votes.argmax(axis=1)
    other = votes[rows, suggested]
    suspects = np.flatnonzero((own <= MAX_OWN_FRACTION) & (other >= MIN_OTHER_FRACTION) & (suggested != labels))
    suspects = suspects[np.argsort(own[suspects] - other[suspects], kind="stable")]
    index = features.index.numpy()
    return [LabelIssue(int(index[row]), int(labels[row]), int(suggested[row]), float(other[row])) for row in suspects]


def count_votes(values: torch.Tensor, labels: np.ndarray, num_classes: int, num_neighbours: int) -> np.ndarray:
    """Return the fraction of each image's neighbours, weighted by cosine, that have each label: (N, classes)."""
    from sklearn.neighbors import NearestNeighbors  # takes half a second to import

    rows = torch.nn.functional.normalize(values, dim=1).numpy()
    distances, neighbours = NearestNeighbors(n_neighbors=num_neighbours).fit(rows).kneighbors()  # (N, K), without itself
    weights = np.maximum(1 - distances**2 / 2, 1e-6)  # cosine
    votes = np.zeros((len(rows), num_classes))
    np.add.at(votes, (np.arange(len(rows))[:, None], labels[neighbours]), weights)
    return votes / votes.sum(axis=1, keepdims=True)
