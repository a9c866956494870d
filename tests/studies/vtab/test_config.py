"""What VTAB is asked for: a mistake is found before anything is opened."""

from typing import Any

import pytest

from vitrine.studies.vtab.config import VtabConfig


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"seeds": (0, 1, 0)}, r"seeds=\(0, 1, 0\) has one of them twice"),
        ({"tasks": ("pets", "pets")}, r"tasks=.* has one of them twice"),
        ({"rates": (0.1,)}, "rates and lengths are to choose from, which is done by --sweep"),
        ({"lengths": (10,)}, "done by --sweep"),
        ({"sweep": True, "rates": (0.1, -1.0)}, r"rates=\(0\.1, -1\.0\) must be above 0"),
        ({"sweep": True, "lengths": (0,)}, r"lengths=\(0,\) must be a tuple of whole numbers of at least 1"),
        ({"test_images": 0}, "test_images=0 must be at least 1"),
        ({"generated": 1}, "generated=1 must be True or False"),
    ],
)
def test_mistakes(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        VtabConfig(**fields)
