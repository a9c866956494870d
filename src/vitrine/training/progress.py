"""What people see while a run trains: a bar where standard error is a terminal, a line now and then elsewhere."""

import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from vitrine.core.console import format_figure

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

SECONDS_BETWEEN_LINES = 10.0

# What of a record is shown, in this order, and how.
FIGURES: dict[str, Callable[[float], str]] = {
    "loss": lambda loss: f"loss {format_figure(loss)}",
    "accuracy": lambda accuracy: f"accuracy {accuracy:.3f}",
    "explained": lambda share: f"explained {share:.3f}",
    "rate": lambda rate: f"rate {rate:.3g}",
    "images_per_s": lambda speed: f"{speed:,.0f} images/s" if speed >= 10 else f"{speed:.2g} images/s",
    "waited": lambda share: f"waiting {100 * share:.0f} %",
}


class Progress:
    """A run from `start_step` to `total_steps`, on standard error, while the `with` block lasts.

    The bar is drawn at updates only and has no thread, which the loader's processes could inherit with its locks held.
    """

    def __init__(self, total_steps: int, start_step: int, title: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.total_steps = total_steps
        self.start_step = start_step
        self.title = title
        self.clock = clock
        self.step = start_step
        self.figures = ""
        self.live: Live | None = None
        self.next_line_s = 0.0
        self.is_pending = False

    def __enter__(self) -> Self:
        self.start_s = self.next_line_s = self.clock()
        self.live = open_live()
        if self.live is None:
            self.say(self.title)
        else:
            self.live.update(self.draw())
            self.live.start(refresh=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """Leaves the bar, or the last line, where the run ended, be it early."""
        if self.live is not None:
            self.live.stop()
        elif self.is_pending:
            self.print_line()

    def update(self, step: int, record: Mapping[str, float]) -> None:
        self.step = step
        self.figures = "  ".join(show(record[name]) for name, show in FIGURES.items() if name in record)
        self.is_pending = True
        if self.live is not None:
            self.live.update(self.draw(), refresh=True)
        elif step >= self.total_steps or self.clock() >= self.next_line_s:
            self.print_line()

    def say(self, text: str) -> None:
        """A line that stays, above the bar if there is one."""
        if self.live is not None:
            self.live.console.out(text, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def print_line(self) -> None:
        parts = (f"step {self.step}/{self.total_steps}", self.figures, self.describe_time())
        self.say("  ".join(part for part in parts if part))
        self.next_line_s = self.clock() + SECONDS_BETWEEN_LINES
        self.is_pending = False

    def draw(self) -> "RenderableType":
        """Two lines, so that all of it is seen in a window of 80 columns."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        bar = ProgressBar(total=self.total_steps, completed=self.step)
        grid = Table.grid(padding=(0, 2), expand=True)
        grid.add_column(max_width=30)  # gives way, since the two at the right do not
        grid.add_column(ratio=1)
        grid.add_column(no_wrap=True)
        grid.add_column(no_wrap=True)
        grid.add_row(
            Text(self.title, no_wrap=True, overflow="ellipsis"), bar, f"{self.step}/{self.total_steps}", self.describe_time()
        )
        return Group(grid, Text(self.figures))

    def describe_time(self) -> str:
        """What is left, at the pace of the steps since the start; a resumed run did not take those before."""
        elapsed_s = self.clock() - self.start_s
        if self.step >= self.total_steps:
            return f"took {format_duration(elapsed_s)}"
        num_done = self.step - self.start_step
        return f"{format_duration(elapsed_s / num_done * (self.total_steps - self.step))} left" if num_done else ""


def open_live() -> "Live | None":
    """A place on the terminal that can be drawn again; None where there is no such terminal."""
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    if not (sys.stderr.isatty() and console.is_interactive):  # rich would take a request for colours for a terminal
        return None
    # Others' lines on standard output go above the bar too, unless they are on their way to a file.
    return Live(console=console, auto_refresh=False, redirect_stdout=sys.stdout.isatty())


def format_duration(seconds: float) -> str:
    """In the one or two units that matter: 45 s, 12 min, 3 h 20 min, 4 days 7 h."""
    if round(seconds) < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    hours = round(minutes / 60)
    return f"{hours // 24} days {hours % 24} h"
