"""Components of pages: headline, facts, tables, bars with intervals, commands. Each renders itself as HTML.

All text passes `escape`: names of files and classes come from anywhere. Fractions are in 0..1; intervals are always of 95 %.
"""

import html
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from vitrine.core.console import escape_controls

NUM_CLASSES_SHOWN, MAX_CLASSES_FOLDED = 8, 200
MIN_IMAGES_FOR_PERCENT = 50
THIN_SPACE = "\u202f"


def escape(text: str) -> str:
    """Return text for HTML, with characters that act on text or hide it as visible escapes."""
    return html.escape(escape_controls(text))


def format_short_percent(fraction: float, digits: int = 1) -> str:
    """Format a fraction as a percentage, e.g. 89.2 % with a narrow space that does not break."""
    return f"{100 * fraction:.{digits}f}{THIN_SPACE}%"


def link_file(path: Path, page: Path) -> str:
    """Return the URL of a file in a page: relative to its folder, or a file URI if that is on another drive."""
    try:
        relative = os.path.relpath(path, page.parent)
    except ValueError:
        return path.absolute().as_uri()
    return quote(os.fsencode(Path(relative).as_posix()))


class Part(Protocol):
    """A component of a page."""

    def render(self) -> str:
        """Return the component as HTML."""
        ...


@dataclass(frozen=True)
class Interval:
    """A value with its 95 % interval on an axis from `start` to `end`; without an interval, the value alone."""

    value: float
    low: float | None = None
    high: float | None = None
    start: float = 0.0
    end: float = 1.0
    baseline: float | None = None
    """Position of a tick, e.g. the accuracy of guessing."""

    def axis_percent(self, value: float) -> str:
        """Return a position on the axis in percent."""
        return f"{100 * (value - self.start) / (self.end - self.start):.2f}"

    @property
    def words(self) -> str:
        """Return the interval as text, e.g. 86.0 to 91.7; empty if there is none."""
        return "" if self.low is None or self.high is None else f"{100 * self.low:.1f} to {100 * self.high:.1f}"

    def render(self) -> str:
        """Return the line and dot."""
        low, high = (self.value if end is None else end for end in (self.low, self.high))
        label = f"{100 * self.value:.1f} percent" + (f", 95 percent interval {self.words}" if self.words else "")
        places = f"--lo:{self.axis_percent(low)};--mid:{self.axis_percent(self.value)};--hi:{self.axis_percent(high)}"
        tick = "" if self.baseline is None else f'<i style="--at:{self.axis_percent(self.baseline)}"></i>'
        return f'<div class="interval" role="img" aria-label="{label}" style="{places}">{tick}</div>'


@dataclass(frozen=True)
class Headline:
    """The main number of a page in large digits, what it counts, and its interval on an axis from 0 to 100 %."""

    value: str
    unit: str
    count: str
    interval: Interval | None = None
    baseline_label: str = ""

    def render(self) -> str:
        """Return number, count and interval."""
        value = f'<div class="value">{escape(self.value)}<small>{escape(self.unit)}</small></div>'
        text = f'<div>{value}<p class="small quiet count">{escape(self.count)}</p></div>'
        if self.interval is None:
            return f'<div class="headline">{text}</div>'
        at = self.interval.axis_percent(self.interval.value)
        marks = f'<span class="here" style="--x:{at}">{self.interval.words}</span>'
        if self.interval.baseline is not None:
            place = self.interval.axis_percent(self.interval.baseline)
            marks += f'<span style="--x:{place}">{escape(self.baseline_label)}</span>'
        span = f'<div class="span">{self.interval.render()}<div class="scale" aria-hidden="true">{marks}</div></div>'
        return f'<div class="headline">{text}{span}</div>'


@dataclass(frozen=True)
class Facts:
    """A row of terms and values, at most six."""

    items: Sequence[tuple[str, str]]

    def render(self) -> str:
        """Return a description list."""
        items = "".join(f"<div><dt>{escape(term)}</dt><dd>{escape(value)}</dd></div>" for term, value in self.items)
        return f'<dl class="facts">{items}</dl>'


@dataclass(frozen=True)
class Link:
    """Text that leads to a file; without a URL, the text alone."""

    text: str
    url: str | None

    def render(self) -> str:
        """Return a link."""
        return escape(self.text) if self.url is None else f'<a href="{escape(self.url)}">{escape(self.text)}</a>'


@dataclass(frozen=True)
class Table:
    """A table that scrolls sideways where it is too wide; the first column and `text_columns` left, numbers right."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str | Link]]
    text_columns: Sequence[int] = (0,)

    def render(self) -> str:
        """Return the table, focusable so that it can be scrolled by keyboard."""
        styles = ["" if index in self.text_columns else ' class="num"' for index in range(len(self.columns))]
        head = "".join(f'<th scope="col"{style}>{escape(name)}</th>' for name, style in zip(self.columns, styles, strict=True))
        body = ""
        for row in self.rows:
            cells = [cell.render() if isinstance(cell, Link) else escape(cell) for cell in row]
            body += f"<tr>{''.join(f'<td{style}>{cell}</td>' for cell, style in zip(cells, styles, strict=True))}</tr>"
        return f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


@dataclass(frozen=True)
class Rung:
    """A row of a ladder: a step, its accuracy, and what it is."""

    time: str
    name: str
    detail: str
    interval: Interval
    is_kept: bool = False
    outcome: str = ""
    """What became of the step, e.g. replaced."""

    def render(self) -> str:
        """Return the row."""
        name = f'<span class="name">{escape(self.name)}<small class="quiet">{escape(self.detail)}</small></span>'
        value = f'<span class="value">{format_short_percent(self.interval.value)}</span>'
        kept = ' class="kept"' if self.is_kept else ""
        outcome = f'<span class="outcome">{escape(self.outcome)}</span>' if self.outcome else ""
        return f'<li{kept}><span class="time">{escape(self.time)}</span>{name}{value}{self.interval.render()}{outcome}</li>'


def render_ticks(ticks: Sequence[tuple[float, str]]) -> str:
    """Return the labels of an axis, each at its place in percent."""
    return "".join(f'<span style="--x:{place:.4g}">{escape(text)}</span>' for place, text in ticks)


SCALE = render_ticks(((0, "0"), (50, "50"), (100, f"100{THIN_SPACE}%")))
AXIS_STEPS = (1, 2, 5, 10, 20, 25)  # points between the ticks of an axis
MAX_AXIS_PARTS = 5


@dataclass(frozen=True)
class Ladder:
    """Steps in order with their intervals on one axis: from 0 to 100 %, or zoomed so that all of them just fit."""

    rungs: Sequence[Rung]
    is_zoomed: bool = False

    def render(self) -> str:
        """Return a list and its axis."""
        low, high, step = self.choose_axis() if self.is_zoomed else (0, 100, 25)
        labels = range(low, high + 1, step if self.is_zoomed else 50)
        ticks = [(100 * (at - low) / (high - low), f"{at}{THIN_SPACE}%" if at == high else f"{at}") for at in labels]
        axis = f'<li class="axis" aria-hidden="true"><div class="scale">{render_ticks(ticks)}</div></li>'
        kind = "ladder outcomes" if any(rung.outcome for rung in self.rungs) else "ladder"
        placed = (replace(each, interval=replace(each.interval, start=low / 100, end=high / 100)) for each in self.rungs)
        grid = f' style="--grid:{100 * step / (high - low):.4g}%"' if self.is_zoomed else ""
        return f'<ol class="{kind}"{grid}>{"".join(rung.render() for rung in placed)}{axis}</ol>'

    def choose_axis(self) -> tuple[int, int, int]:
        """Return start, end and distance of the ticks in percent, such that the axis holds all intervals."""
        intervals = [rung.interval for rung in self.rungs]
        ends = [end for each in intervals for end in (each.value, each.low, each.high) if end is not None]
        low, high = (100 * end for end in (min(ends, default=0.0), max(ends, default=1.0)))
        for step in AXIS_STEPS:
            start, end = max(0, step * math.floor(low / step)), min(100, step * math.ceil(high / step))
            start = max(0, start - step) if start == end else start
            end = start + step if start == end else end
            if end - start <= MAX_AXIS_PARTS * step and (end - start) % step == 0:
                return start, end, step
        return 0, 100, 25


@dataclass(frozen=True)
class ClassBar:
    """Accuracy of one class."""

    name: str
    num_hits: int
    num_images: int
    interval: Interval
    note: str = ""
    is_count: bool = True
    """Whether the value is the fraction `num_hits` of `num_images`."""

    def render(self) -> str:
        """Return the cells: name, interval, and "4 / 12" or, for many images, a percentage."""
        is_short = self.is_count and self.num_images < MIN_IMAGES_FOR_PERCENT
        value = f"{self.num_hits} / {self.num_images}" if is_short else format_short_percent(self.interval.value)
        cells = f'<span class="name">{escape(self.name)}</span>{self.interval.render()}<span class="num">{value}</span>'
        return f'{cells}<span class="taken">{escape(self.note)}</span>'


@dataclass(frozen=True)
class ClassBars:
    """Accuracy of each class, the lowest first: the first eight, the rest folded away."""

    bars: Sequence[ClassBar]

    def render(self) -> str:
        """Return the bars on one axis, and the rest in <details>."""
        first, rest = self.bars[:NUM_CLASSES_SHOWN], self.bars[NUM_CLASSES_SHOWN:]
        folded = ""
        if rest:
            listed = rest[:MAX_CLASSES_FOLDED]
            start = "" if len(listed) == len(rest) else f"The next {len(listed)} of "
            summary = f"{start}{len(rest):,} more classes"
            folded = f"<details><summary>{summary}</summary>{render_bars(listed)}</details>"
        return f"<figure>{render_bars(first)}{folded}</figure>"


def render_bars(bars: Sequence[ClassBar]) -> str:
    """Return bars with an axis below them."""
    axis = f'<div class="scale" aria-hidden="true">{SCALE}</div>'
    return f'<div class="classes">{"".join(bar.render() for bar in bars)}{axis}</div>'


@dataclass(frozen=True)
class Row:
    """Parts about one thing, e.g. an image, below its name."""

    title: str
    parts: Sequence[Part]

    def render(self) -> str:
        """Return the parts one below the other."""
        return f'<div class="row"><h3>{escape(self.title)}</h3>{render_parts(self.parts)}</div>'


@dataclass(frozen=True)
class Subheading:
    """A heading inside a section."""

    text: str

    def render(self) -> str:
        """Return the heading."""
        return f"<h3>{escape(self.text)}</h3>"


@dataclass(frozen=True)
class Paragraph:
    """A paragraph; small ones are remarks below a figure or a heading."""

    text: str
    is_small: bool = False

    def render(self) -> str:
        """Return the paragraph."""
        style = ' class="small quiet"' if self.is_small else ""
        return f"<p{style}>{escape(self.text)}</p>"


@dataclass(frozen=True)
class Note:
    """One sentence of caution."""

    text: str

    def render(self) -> str:
        """Return the note."""
        return f'<p class="note">{escape(self.text)}</p>'


@dataclass(frozen=True)
class Unavailable:
    """Why something was not measured, in a dashed frame."""

    text: str

    def render(self) -> str:
        """Return the reason."""
        return f'<p class="unavailable">{escape(self.text)}</p>'


@dataclass(frozen=True)
class Details:
    """Parts that are folded away."""

    summary: str
    parts: Sequence[Part]

    def render(self) -> str:
        """Return <details>."""
        return f"<details><summary>{escape(self.summary)}</summary>{render_parts(self.parts)}</details>"


@dataclass(frozen=True)
class Commands:
    """Complete command lines, each with a button that copies it."""

    lines: Sequence[str]

    def render(self) -> str:
        """Return a block for each command."""
        button = '<button type="button" data-copy>Copy</button>'
        return "".join(f'<div class="command"><pre>{escape(line)}</pre>{button}</div>' for line in self.lines)


def render_parts(parts: Sequence[Part]) -> str:
    """Return several parts one below the other."""
    return "".join(part.render() for part in parts)
