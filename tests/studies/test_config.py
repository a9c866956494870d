"""Settings of a study are checked before anything is opened."""

from typing import Any

import pytest

from vitrine.studies.config import StudyConfig


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"scale": "large"}, "tiny, small, paper"),
        ({"jobs": 0}, "jobs"),
        ({"seeds": (1, 1)}, "distinct"),
        ({"seeds": (-1,)}, "seeds"),
        ({"seeds": 3}, "seeds"),
        ({"data": ""}, "data"),
    ],
)
def test_mistakes_are_named(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        StudyConfig(**changes)
