"""Figures as people read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrine.commands.figures import format_estimate, format_share
from vitrine.evaluate.uncertainty import Estimate


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.8821, "88.21 %"), (0.0, "0.00 %"), (1.0, "100.00 %"), (1 / 3, "33.33 %"), (0.99999, "100.00 %"), (None, "")],
)
def test_a_share_is_per_cent(share: float | None, text: str) -> None:
    assert format_share(share) == text


def test_a_figure_with_a_unit_is_a_hundred_times_as_much() -> None:
    assert format_estimate(Estimate(0.8821, 0.8, 1.0), "%") == ("88.21 %", "80.00 .. 100.00 %")
    assert format_estimate(Estimate(-0.015, -0.02, 0.001), "points") == ("-1.50 points", "-2.00 .. 0.10 points")


def test_a_figure_without_a_unit_is_as_it_is() -> None:
    assert format_estimate(Estimate(2.41196, 1.0, 3.00006)) == ("2.4120", "1.0000 .. 3.0001")


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_what_is_written_can_be_read_again(value: float, low: float, high: float) -> None:
    written, interval = format_estimate(Estimate(value, low, high), "%")
    assert float(written.removesuffix(" %")) == pytest.approx(100 * value, abs=0.005001)
    assert written == format_share(value)
    ends = interval.removesuffix(" %").split(" .. ")
    assert list(map(float, ends)) == pytest.approx([100 * low, 100 * high], abs=0.005001)
