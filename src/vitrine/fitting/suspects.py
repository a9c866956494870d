"""Training labels worth checking: a model that was fitted without an image finds its label unlikely, and another likely."""

import numpy as np
from torch import Tensor

from vitrine.evaluation.label_issues import LabelIssue

# A label is suspect if it has at most the first probability in cross-validation, and another class at least the second.
MAX_OWN, MIN_OTHER = 0.05, 0.8


def find_suspects(logits: Tensor, targets: Tensor, index: Tensor) -> list[LabelIssue]:
    """Return the suspect labels, the most doubtful first, from cross-validated logits (N, K); none for several labels.

    `index` (N) are the images' places in their source.
    """
    if targets.ndim == 2:
        return []
    probabilities, labels = logits.double().softmax(dim=1).numpy(), targets.numpy()
    rows = np.arange(len(labels))
    own, suggested = probabilities[rows, labels], probabilities.argmax(axis=1)
    other = probabilities[rows, suggested]
    found = np.flatnonzero((own <= MAX_OWN) & (other >= MIN_OTHER))
    found = found[np.argsort(own[found] - other[found], kind="stable")]
    return [LabelIssue(int(index[row]), int(labels[row]), int(suggested[row]), float(other[row])) for row in found]
