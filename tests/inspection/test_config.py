"""Checks of the inspection configs."""

from typing import Any

import pytest

from vitrine.inspection.config import InspectConfig, RolloutConfig


@pytest.mark.parametrize("fraction", [-0.1, 1.0, 2.0])
def test_dropped_share_must_be_below_one(fraction: float) -> None:
    with pytest.raises(ValueError, match="dropped_share"):
        RolloutConfig(dropped_share=fraction)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_drawn": 0}, "num_drawn=0"),
        ({"num_measured": 0}, "num_measured=0"),
        ({"layers": (1, 1)}, "layers"),
        ({"heads": (0, 2, 0)}, "heads"),
    ],
)
def test_wrong_settings_are_rejected(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        InspectConfig(**changes)
