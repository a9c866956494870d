"""The strip of time: bars at their places, an axis that ends with the time there was, hostile names."""

import pytest

from tests.core.test_page_parts import HOSTILE, read_style
from tests.pages import parse
from vitrine.core.page_times import TimeStrip, choose_tick_step, format_clock, format_span, format_tick


def test_bars_lie_at_their_times() -> None:
    root = parse(TimeStrip([("Features", [(0.0, 30.0), (60.0, 75.0)]), ("Heads", [(30.0, 60.0)])], 300).render())
    bars = [[read_style(bar.attributes["style"]) for bar in row.find("i")] for row in root.find(kind="spans")]
    assert bars == [
        [{"--start": 0.0, "--width": 10.0}, {"--start": 20.0, "--width": 5.0}],
        [{"--start": 10.0, "--width": 10.0}],
    ]
    assert [cell.text for cell in root.find(kind="num")] == ["45 s", "30 s"]
    assert [tick.text for tick in root.one(kind="scale").find("span")] == ["0", "1 min", "2 min", "3 min", "4 min", "5 min"]


def test_the_axis_holds_a_part_beyond_the_limit() -> None:
    root = parse(TimeStrip([("late", [(0.0, 80.0)])], 60).render())
    assert read_style(root.one("i").attributes["style"])["--width"] == 100


def test_hostile_names_are_text() -> None:
    root = parse(TimeStrip([(HOSTILE, [(0.0, 1.0)])], 2).render())
    assert root.find("script") == []
    assert r"</p><script>alert('1')</script>" in root.text


@pytest.mark.parametrize(("last_s", "step"), [(0.5, 1), (60, 10), (300, 60), (3600, 600), (86_400 * 30, 86_400 * 30)])
def test_there_are_few_ticks(last_s: float, step: int) -> None:
    assert choose_tick_step(last_s) == step


def test_times_have_their_unit() -> None:
    assert [format_span(each) for each in (0.44, 5, 52.3, 185, 7200)] == ["0.4 s", "5 s", "52 s", "3:05 min", "2:00 h"]
    assert [format_tick(each) for each in (0, 30, 120, 7200)] == ["0", "30 s", "2 min", "2 h"]
    assert format_clock(65.9) == "1:05"
