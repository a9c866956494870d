"""The contract."""

import pytest
import torch

from vitrine.objectives.objective import LossOutput, Objective


def test_an_objective_has_to_say_what_it_minimises() -> None:
    with pytest.raises(NotImplementedError):
        Objective().forward(None)
    assert LossOutput(torch.tensor(1.0)).metrics == {}
