"""Settings of a fit that are refused."""

from typing import Any

import pytest

from vitrine.fitting.config import FitConfig


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"minutes": -1.0}, "minutes=-1"),
        ({"minutes": 1e9}, "30 days"),
        ({"balance": "some"}, "balance='some'"),
        ({"framing": "wide"}, "framing='wide'"),
        ({"image_size": 0}, "image_size=0"),
        ({"seed": -1}, "seed=-1"),
        ({"changed": "maybe"}, "changed='maybe'"),
        ({"num_workers": -1}, "num_workers=-1"),
    ],
)
def test_wrong_settings_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FitConfig(**changes)
