"""Suspect labels from cross-validated probabilities."""

import torch

from vitrine.evaluation.label_issues import LabelIssue
from vitrine.fitting.suspects import find_suspects


def test_only_confident_contradictions_are_suspect() -> None:
    probabilities = torch.tensor(
        [[0.98, 0.01, 0.01], [0.01, 0.9, 0.09], [0.06, 0.9, 0.04], [0.04, 0.5, 0.46], [0.001, 0.998, 0.001]]
    )
    found = find_suspects(probabilities.log(), torch.tensor([0, 0, 0, 0, 2]), torch.tensor([10, 11, 12, 13, 14]))
    assert [(each.index, each.label, each.suggested) for each in found] == [(14, 2, 1), (11, 0, 1)]
    assert isinstance(found[0], LabelIssue)
    assert abs(found[1].fraction - 0.9) < 1e-6


def test_several_labels_have_no_suspects() -> None:
    assert find_suspects(torch.tensor([[9.0, -9.0]]), torch.tensor([[0.0, 1.0]]), torch.tensor([0])) == []
