"""Config checks name the field, its value and what it must be."""

import re
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from vitrine.core.config_checks import (
    require_at_least,
    require_counts,
    require_field_types,
    require_positive,
    require_rates,
)


@dataclass(frozen=True)
class Settings:
    count: int = 1
    rate: float = 0.5
    eps: float | None = None
    kind: Literal["a", "b"] = "a"
    flag: bool | None = None
    size: tuple[int, int] = (1, 1)


@pytest.mark.parametrize("changes", [{}, {"rate": 1}, {"eps": 1e-6}, {"flag": False}, {"kind": "b"}])
def test_valid_values_pass(changes: dict[str, Any]) -> None:
    settings = Settings(**changes)
    require_field_types(settings)
    require_at_least(settings, 1, "count")
    require_positive(settings, "rate", "eps")
    require_counts(settings, "size", "height and width")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"count": 1.0}, "count=1.0"),
        ({"count": True}, "count=True"),
        ({"count": None}, "count=None"),
        ({"rate": "0.5"}, "rate='0.5'"),
        ({"rate": float("nan")}, "rate=nan"),
        ({"rate": None}, "rate=None"),
        ({"eps": "1"}, "eps='1'"),
        ({"kind": "c"}, "kind='c' must be one of a, b"),
        ({"kind": []}, "kind=[] must be one of a, b"),
        ({"flag": "yes"}, "flag='yes'"),
    ],
)
def test_wrong_types_are_errors(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=re.escape(named)):
        require_field_types(Settings(**changes))


def test_numbers_out_of_range_are_errors() -> None:
    with pytest.raises(ValueError, match=r"count=0 .* 1"):
        require_at_least(Settings(count=0), 1, "count")
    with pytest.raises(ValueError, match=r"eps=0\.0"):
        require_positive(Settings(eps=0.0), "eps")
    for rate in (1.0, -0.1):
        with pytest.raises(ValueError, match=f"rate={rate}"):
            require_rates(Settings(rate=rate), "rate")
    for size in ((0, 1), (1.5, 1), (True, 1), 3):
        with pytest.raises(ValueError, match=r"size=.*height"):
            require_counts(Settings(size=size), "size", "height and width")


def test_whole_number_too_large_for_a_float_is_named() -> None:
    with pytest.raises(ValueError, match="rate"):
        require_field_types(Settings(rate=10**400))
