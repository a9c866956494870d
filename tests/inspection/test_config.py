"""Mistakes in how a model is to be looked into."""

from typing import Any

import pytest

from vitrine.inspection.config import InspectConfig, RolloutConfig


@pytest.mark.parametrize("share", [-0.1, 1.0, 2.0])
def test_some_attention_has_to_be_left(share: float) -> None:
    with pytest.raises(ValueError, match=r"dropped_share=.* must be at least 0 and below 1"):
        RolloutConfig(dropped_share=share)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num_drawn": 0}, "num_drawn=0 must be at least 1"),
        ({"num_measured": 0}, "num_measured=0 must be at least 1"),
        ({"layers": (1, 1)}, r"layers=\(1, 1\) must name each one once"),
        ({"heads": (0, 2, 0)}, r"heads=\(0, 2, 0\) must name each one once"),
    ],
)
def test_mistakes_are_named(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        InspectConfig(**changes)
