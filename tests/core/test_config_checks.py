"""Checks name the field, what it was and what it must be."""

import re
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from vitrine.core.config_checks import require_at_least, require_field_types, require_positive, require_rates


@dataclass(frozen=True)
class Settings:
    count: int = 1
    rate: float = 0.5
    eps: float | None = None
    kind: Literal["a", "b"] = "a"
    flag: bool | None = None
    size: tuple[int, int] = (1, 1)


@pytest.mark.parametrize("changes", [{}, {"rate": 1}, {"eps": 1e-6}, {"flag": False}, {"kind": "b"}])
def test_what_is_right_passes(changes: dict[str, Any]) -> None:
    settings = Settings(**changes)
    require_field_types(settings)
    require_at_least(settings, 1, "count")
    require_positive(settings, "rate", "eps")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": 1.0}, "count=1.0 must be a whole number."),
        ({"count": True}, "count=True must be a whole number."),
        ({"count": None}, "count=None must be a whole number."),
        ({"rate": "0.5"}, "rate='0.5' must be a number."),
        ({"rate": float("nan")}, "rate=nan must be a number."),
        ({"rate": None}, "rate=None must be a number."),
        ({"eps": "1"}, "eps='1' must be a number."),
        ({"kind": "c"}, "kind='c' must be one of a, b."),
        ({"kind": []}, "kind=[] must be one of a, b."),
        ({"flag": "yes"}, "flag='yes' must be True or False."),
    ],
)
def test_wrong_types_cost_a_sentence(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        require_field_types(Settings(**changes))


def test_numbers_out_of_range_cost_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"count=0 must be at least 1\."):
        require_at_least(Settings(count=0), 1, "count")
    with pytest.raises(ValueError, match=r"eps=0\.0 must be above 0\."):
        require_positive(Settings(eps=0.0), "eps")
    with pytest.raises(ValueError, match=r"rate=1\.0 must be at least 0 and below 1\."):
        require_rates(Settings(rate=1.0), "rate")
