"""Budget: what is left of the time, and where it went."""

import pytest

from vitrine.fitting.budget import REPORT_S, Budget, Part


class Clock:
    """A clock that tests set."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_time_is_left_for_the_report_and_what_is_reserved() -> None:
    clock = Clock()
    budget = Budget(60.0, start=100.0, clock=clock)
    assert budget.remaining_s() == pytest.approx(60 * 0.97 - REPORT_S)
    clock.now += 10
    assert budget.remaining_s(5) == pytest.approx(60 * 0.97 - REPORT_S - 15)
    assert budget.has_time_for(30, 5)
    assert not budget.has_time_for(45, 5)


def test_without_a_limit_everything_fits() -> None:
    budget = Budget(None)
    assert budget.has_time_for(1e9)


def test_parts_are_recorded_and_joined() -> None:
    clock = Clock()
    budget = Budget(None, start=100.0, clock=clock)
    for name, seconds in (("features", 2), ("heads", 1), ("heads", 3), ("features", 1)):
        with budget.part(name):
            clock.now += seconds
    assert budget.parts == [Part("features", 0, 2), Part("heads", 2, 6), Part("features", 6, 7)]
