"""Checks name the field, what it was and what it must be."""

from dataclasses import dataclass
from typing import Literal

import pytest

from vitrine.core.checks import require_at_least, require_choices, require_positive, require_rates


@dataclass(frozen=True)
class Settings:
    count: object = 1
    rate: float = 0.5
    eps: float | None = None
    kind: Literal["a", "b"] = "a"


def test_what_is_right_passes() -> None:
    settings = Settings()
    require_at_least(settings, 1, "count")
    require_rates(settings, "rate")
    require_positive(settings, "rate", "eps")
    require_choices(settings)


@pytest.mark.parametrize("count", [0, 1.0, True, "1", None])
def test_counts_are_whole_numbers(count: object) -> None:
    with pytest.raises(ValueError, match=f"count={count!r} must be a whole number of at least 1."):
        require_at_least(Settings(count=count), 1, "count")


def test_rates_positives_and_choices() -> None:
    with pytest.raises(ValueError, match=r"rate=1\.0 must be at least 0 and below 1\."):
        require_rates(Settings(rate=1.0), "rate")
    with pytest.raises(ValueError, match=r"eps=nan must be above 0\."):
        require_positive(Settings(eps=float("nan")), "eps")
    with pytest.raises(ValueError, match=r"kind='c' must be one of a, b\."):
        require_choices(Settings(kind="c"))
