"""A strip of time: when each part of a job ran, on an axis that ends with the time there was."""

from collections.abc import Sequence
from dataclasses import dataclass

from vitrine.core.page_parts import escape, render_ticks

TICK_STEPS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400, 28_800, 86_400)
MAX_PARTS = 6


@dataclass(frozen=True)
class TimeStrip:
    """Rows of a name and the spans in which it ran, in seconds since the start."""

    rows: Sequence[tuple[str, Sequence[tuple[float, float]]]]
    end_s: float

    def render(self) -> str:
        """Return a row for each name with its spans and their sum, and the axis."""
        last_s = max([self.end_s, *(end for _, spans in self.rows for _, end in spans)])
        step_s = choose_tick_step(last_s)
        cells = "".join(self.render_row(name, spans, last_s) for name, spans in self.rows)
        ticks = [(100 * at / last_s, format_tick(at)) for at in range(0, int(last_s) + 1, step_s)]
        axis = f'<div class="scale" aria-hidden="true">{render_ticks(ticks)}</div>'
        return f'<div class="gantt" style="--grid:{100 * step_s / last_s:.4g}%">{cells}{axis}</div>'

    def render_row(self, name: str, spans: Sequence[tuple[float, float]], last_s: float) -> str:
        """Return name, bars and the sum of their times."""
        bars = "".join(
            f'<i style="--start:{100 * start / last_s:.2f};--width:{100 * (end - start) / last_s:.2f}"></i>'
            for start, end in spans
        )
        total = format_span(sum(end - start for start, end in spans))
        words = ", ".join(f"{start:.0f} s to {end:.0f} s" for start, end in spans)
        label = escape(f"{name}: {words}")
        bar = f'<div class="spans" role="img" aria-label="{label}">{bars}</div>'
        return f'<span class="name">{escape(name)}</span>{bar}<span class="num">{total}</span>'


def choose_tick_step(last_s: float) -> int:
    """Return the seconds between ticks, of which there are at most seven."""
    return next((step for step in TICK_STEPS_S if last_s / step <= MAX_PARTS), max(TICK_STEPS_S[-1], int(last_s)))


def format_tick(seconds: int) -> str:
    """Format a whole time in its largest unit, e.g. 30 s, 2 min or 1 h."""
    if seconds == 0:
        return "0"
    unit, name = next((unit, name) for unit, name in ((3600, "h"), (60, "min"), (1, "s")) if seconds % unit == 0)
    return f"{seconds // unit} {name}"


def format_span(seconds: float) -> str:
    """Format a time, e.g. 0.4 s, 52 s, 3:05 min or 2:00 h."""
    if seconds < 9.95 and seconds != int(seconds):
        return f"{seconds:.1f} s"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{format_clock(seconds)} min" if seconds < 6000 else f"{minutes // 60}:{minutes % 60:02d} h"


def format_clock(seconds: float) -> str:
    """Format seconds as minutes and seconds, e.g. 1:05."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
