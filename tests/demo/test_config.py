"""Settings of the demo are checked before anything is opened."""

from pathlib import Path
from typing import Any

import pytest

from vitrine.demo.config import DemoConfig


def test_digits_are_the_default_data() -> None:
    assert DemoConfig(out=Path("demo")).is_built_in
    assert not DemoConfig(out=Path("demo"), data="photos").is_built_in


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("seed", -1, "seed=-1"),
        ("steps", 0, "steps=0"),
        ("pretrain_steps", 0, "pretrain_steps=0"),
        ("num_drawn", 0, "num_drawn=0"),
        ("jobs", 0, "jobs=0"),
        ("subset", "ten", "subset='ten'"),
        ("data", "", "--data"),
        ("model", "", "--model"),
    ],
)
def test_invalid_settings(field: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DemoConfig(out=Path("demo"), **{field: value})
