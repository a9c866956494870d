"""Images whose label is probably wrong: those whose neighbours in feature space have another.

Letters: N images, D features, K neighbours.
"""

from dataclasses import dataclass

import numpy as np
import torch
from sklearn.neighbors import NearestNeighbors

from vitrine.core.console import warn_user
from vitrine.data.quality.check import DataCheck, ImageRef, Issue
from vitrine.data.subsets import SubsetSource
from vitrine.evaluation.config import AS_USUAL, InferenceConfig
from vitrine.evaluation.features import FeatureCache, Features
from vitrine.evaluation.linear_heads import require_one_class_each
from vitrine.evaluation.predictor import featurise_images
from vitrine.formats.checkpoint import Checkpoint

NUM_NEIGHBOURS = 10
MOST_OWN, LEAST_OTHER = 0.1, 0.6  # shares of the neighbours' votes, at which a label is doubted


@dataclass(frozen=True)
class LabelIssue:
    index: int
    """The number of the image in its source."""
    label: int
    """As it is."""
    suggested: int
    """What most of its neighbours are."""
    share: float
    """Of their votes."""


def find_label_issues(features: Features, num_classes: int) -> list[LabelIssue]:
    """The most doubtful first. A neighbour's vote counts by how near it is; an image has none on itself."""
    require_one_class_each(features.labels, num_classes, "The labels")
    num_neighbours = min(NUM_NEIGHBOURS, len(features) - 1)
    if num_neighbours < 1:
        return []
    labels = features.labels.numpy()
    shares = share_votes(features.values, labels, num_classes, num_neighbours)  # (N, classes)
    rows = np.arange(len(labels))
    own, suggested = shares[rows, labels], shares.argmax(axis=1)
    others = shares[rows, suggested]
    doubtful = np.flatnonzero((own <= MOST_OWN) & (others >= LEAST_OTHER) & (suggested != labels))
    doubtful = doubtful[np.argsort(own[doubtful] - others[doubtful], kind="stable")]
    index = features.index.numpy()
    return [LabelIssue(int(index[row]), int(labels[row]), int(suggested[row]), float(others[row])) for row in doubtful]


def share_votes(values: torch.Tensor, labels: np.ndarray, num_classes: int, num_neighbours: int) -> np.ndarray:
    """Of each image's neighbours by cosine, the share of each class (N, classes)."""
    rows = torch.nn.functional.normalize(values, dim=1).numpy()
    distances, neighbours = NearestNeighbors(n_neighbors=num_neighbours).fit(rows).kneighbors()  # (N, K), without itself
    weights = np.maximum(1 - distances**2 / 2, 1e-6)  # cosine
    shares = np.zeros((len(rows), num_classes))
    np.add.at(shares, (np.arange(len(rows))[:, None], labels[neighbours]), weights)
    return shares / shares.sum(axis=1, keepdims=True)


def doubt_labels(
    check: DataCheck,
    checkpoint: Checkpoint,
    reading: InferenceConfig = AS_USUAL,
    device: torch.device | str = "cpu",
    cache: FeatureCache | None = None,
) -> None:
    """Add to a check what the model's features say of its labels, those of all splits together."""
    class_names, *others = {source.class_names for source in check.sources.values()}
    if others or len(class_names) < 2 or any(source.labels.has_several for source in check.sources.values()):
        warn_user(
            "Labels cannot be doubted here: that needs two or more classes, the same in all splits, and one for each image."
        )
        return
    places, parts = [], []
    for split, survey in check.surveys.items():
        readable = np.array([number for number in range(len(survey)) if number not in survey.unreadable])
        if len(readable):
            source = SubsetSource(check.sources[split], readable)
            found = featurise_images(checkpoint, source, reading, device, cache, f"features of {split or 'images'}")
            parts.append(found)
            places += [ImageRef(split, int(readable[index])) for index in found.index.tolist()]
    if not parts:
        warn_user("Labels cannot be doubted here: no image can be read.")
        return
    values, labels = (torch.cat([getattr(part, name) for part in parts]) for name in ("values", "labels"))
    features = Features(values, labels, torch.arange(len(values)))
    for suspect in find_label_issues(features, len(class_names)):
        detail = f"looks like {class_names[suspect.suggested]} ({100 * suspect.share:.0f} % of its neighbours)"
        check.findings.append(Issue("label suspect", (places[suspect.index],), detail))
