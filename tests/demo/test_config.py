"""What the demo may be told, and what it refuses before anything is opened."""

from pathlib import Path
from typing import Any

import pytest

from vitrine.demo.config import DemoConfig


def test_the_digits_are_the_usual_data() -> None:
    assert DemoConfig(out=Path("demo")).is_built_in
    assert not DemoConfig(out=Path("demo"), data="photos").is_built_in


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("seed", -1, "seed=-1 must be at least 0"),
        ("steps", 0, "steps=0 must be at least 1"),
        ("pretrain_steps", 0, "pretrain_steps=0 must be at least 1"),
        ("num_drawn", 0, "num_drawn=0 must be at least 1"),
        ("subset", "ten", "subset='ten'"),
        ("data", "", "--data '' is no name"),
        ("model", "", "--model '' is no name"),
    ],
)
def test_what_cannot_be_is_refused(field: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DemoConfig(out=Path("demo"), **{field: value})
