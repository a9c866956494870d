"""Progress of a run on standard error: a bar on a terminal, a line now and then elsewhere."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from vitrine.core.console import escape_controls, format_number, print_notice

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_DRAWS = 0.25  # of the bar, where steps are faster

Item = TypeVar("Item")


class Progress:
    """Progress of a run from `start_step` to `total_steps`, shown while the `with` block lasts.

    The bar is drawn at updates only and has no thread, whose locks the loader's processes could inherit while held.
    """

    def __init__(
        self,
        total_steps: int,
        start_step: int,
        title: str,
        metric_names: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`metric_names` are shown behind the loss, e.g. accuracy."""
        self.total_steps, self.start_step, self.step = total_steps, start_step, start_step
        self.title, self.metric_names, self.clock = title, metric_names, clock
        self.figures, self.is_pending, self.start_s, self.next_line_s, self.next_draw_s = "", False, 0.0, 0.0, 0.0
        self.activity = ""
        """What is done between steps, shown below the bar in place of the metrics."""
        self.live: Live | None = None

    def __enter__(self) -> Self:
        self.start_s = self.next_line_s = self.clock()
        self.live = open_live()
        if self.live is None:
            self.print_message(self.title)
        else:
            self.live.update(self.draw())
            self.live.start(refresh=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """Leave the bar, or a last line, at the step where the run ended."""
        if self.live is not None:
            self.live.stop()
        elif self.is_pending:
            self.print_line()

    def update(self, step: int, record: Mapping[str, float]) -> None:
        """Show the metrics of a step; on a terminal at once, elsewhere as a line if the last is some seconds old."""
        self.step = step
        self.figures = self.format_metrics(record)
        self.is_pending = True
        if self.live is not None:
            self.live.update(self.draw(), refresh=True)
        elif step >= self.total_steps or self.clock() >= self.next_line_s:
            self.print_line()

    def show_step(self, step: int) -> None:
        """Move the bar to a step whose metrics are not read, unless it was drawn a moment ago; nothing in a log."""
        self.step = step
        self.redraw()

    def track(self, items: Iterable[Item], total: int, title: str) -> Iterator[Item]:
        """Iterate over items between two steps, e.g. of an evaluation, with their count below the bar; nothing in a log."""
        self.next_draw_s = 0.0  # the first item is shown at once
        try:
            for number, item in enumerate(items):
                self.activity = f"{title} {number}/{total}"
                self.redraw()
                yield item
        finally:
            self.activity = ""
            self.next_draw_s = 0.0
            self.redraw()

    def redraw(self) -> None:
        """Draw the bar on a terminal, if the last time is long enough ago."""
        if self.live is not None and self.live.is_started and self.clock() >= self.next_draw_s:
            self.live.update(self.draw(), refresh=True)
            self.next_draw_s = self.clock() + SECONDS_BETWEEN_DRAWS

    def format_metrics(self, record: Mapping[str, float]) -> str:
        """Return the metrics in a line: loss, metrics of the objective, learning rate, speed and data wait."""
        parts = {
            "loss": lambda loss: f"loss {format_number(loss)}",
            **{name: partial("{} {:.3f}".format, name) for name in self.metric_names},
            "rate": lambda lr: f"lr {lr:.3g}",
            "images_per_s": lambda speed: f"{speed:,.0f} images/s" if speed >= 10 else f"{speed:.2g} images/s",
            "waited": lambda fraction: f"data wait {100 * fraction:.0f} %",
        }
        return "  ".join(show(record[name]) for name, show in parts.items() if name in record)

    def print_message(self, text: str) -> None:
        """Print a line that stays, above the bar if there is one."""
        if self.live is not None:
            self.live.console.out(escape_controls(text), highlight=False)
        else:
            print_notice(text)

    def print_line(self) -> None:
        """Print step, metrics and time as one line."""
        parts = (f"step {self.step}/{self.total_steps}", self.figures, self.describe_time())
        self.print_message("  ".join(part for part in parts if part))
        self.next_line_s = self.clock() + SECONDS_BETWEEN_LINES
        self.is_pending = False

    def draw(self) -> "RenderableType":
        """Draw two lines, which fit into 80 columns."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        bar = ProgressBar(total=self.total_steps, completed=self.step)
        grid = Table.grid(padding=(0, 2), expand=True)
        grid.add_column(max_width=30)  # shrinks in a narrow terminal; the two columns on the right do not
        grid.add_column(ratio=1)
        grid.add_column(no_wrap=True)
        grid.add_column(no_wrap=True)
        title = Text(escape_controls(self.title), no_wrap=True, overflow="ellipsis")
        grid.add_row(title, bar, f"{self.step}/{self.total_steps}", self.describe_time())
        return Group(grid, Text(escape_controls(self.activity or self.figures)))

    def describe_time(self) -> str:
        """Return the remaining time, estimated from the steps of this attempt, or the total time at the end."""
        elapsed_s = self.clock() - self.start_s
        if self.step >= self.total_steps:
            return f"took {format_duration(elapsed_s)}"
        num_done = self.step - self.start_step
        return f"{format_duration(elapsed_s / num_done * (self.total_steps - self.step))} left" if num_done else ""


def open_live() -> "Live | None":
    """Return a live display on standard error; None if that is not an interactive terminal."""
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    if not (sys.stderr.isatty() and console.is_interactive):  # with FORCE_COLOR rich takes any file for one
        return None
    # Lines printed to standard output go above the bar too, unless standard output is a file.
    return Live(console=console, auto_refresh=False, redirect_stdout=sys.stdout.isatty())


def format_duration(seconds: float) -> str:
    """Format a duration in one or two units: 45 s, 12 min, 3 h 20 min, 4 days 7 h."""
    if round(seconds) < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    hours = round(minutes / 60)
    return f"{hours // 24} days {hours % 24} h"
