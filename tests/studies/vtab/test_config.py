"""Invalid settings of VTAB are rejected before any data is opened."""

from typing import Any

import pytest

from vitrine.studies.vtab.config import VtabConfig


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"seeds": (0, 1, 0)}, r"seeds=\(0, 1, 0\)"),
        ({"tasks": ("pets", "pets")}, r"tasks=\('pets', 'pets'\)"),
        ({"rates": (0.1,)}, "without sweep"),
        ({"lengths": (10,)}, "without sweep"),
        ({"sweep": True, "rates": (0.1, -1.0)}, r"rates=\(0\.1, -1\.0\)"),
        ({"sweep": True, "lengths": (0,)}, r"lengths=\(0,\)"),
        ({"test_images": 0}, "test_images=0"),
        ({"generated": 1}, "generated=1"),
    ],
)
def test_invalid_settings(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VtabConfig(**fields)
