"""Tables, progress bars, warnings, names and numbers in messages.

What people see in the terminal, and type there: tables, sizes in units, errors and notices in a sentence.
Foreign words in our sentences: names from a file, errors of a library, on one line and of readable length.
What the library says aloud and goes on: an assumption, a change that was asked for. Never for an error.
"""

import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """The first column is text at the left, the others are figures at the right.

    Cells are shown as they are, brackets and colons too; bytes of a file's name that are no UTF-8 as backslashes.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(cell.encode("utf-8", "backslashreplace").decode() for cell in row))
    # Never narrower than the table: in a pipe or a small window a long line serves better than a figure cut short.
    console = Console(highlight=False, markup=False, emoji=False)
    needed = console.measure(table, options=console.options.update(width=1000)).maximum
    console.width = max(console.width, needed)
    console.print(table)


def progress_bar(items: Iterable[Item], total: int, title: str, is_shown: bool = True) -> Iterator[Item]:
    """The items, with a progress bar on standard error while someone runs through them, where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    is_hidden = not (is_shown and sys.stderr.isatty())  # rich would take a request for colours for a terminal
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=is_hidden) as progress:
        yield from progress.track(items, total=total, description=title)


def print_error(error: Exception | str) -> None:
    print(f"vitrine: {error}", file=sys.stderr)


def parse_image_size(text: str, option: str) -> tuple[int, int]:
    """Height and width from one number or two."""
    sides = text.split("x")
    if len(sides) > 2 or not all(side.isdecimal() for side in sides):
        raise ValueError(f"{option} {text} must be one number, as 224, or two, height and width, as 224x320.")
    return int(sides[0]), int(sides[-1])


def format_figure(figure: float) -> str:
    """Four digits, and all that stand before the point: 0.4337, 17.56, 111,800."""
    return f"{figure:,.0f}" if figure >= 1000 else f"{figure:.4g}"


def format_bytes(num_bytes: float) -> str:
    """Three digits and a decimal unit: 346 MB, 7.38 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 999.5:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} TB"


def join_names(names: Sequence[str], limit: int = 8) -> str:
    shown = ", ".join(name if name.isprintable() else repr(name) for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def summarise(error: BaseException) -> str:
    """The first sentence of an error."""
    line = next(iter(str(error).strip().splitlines()), "")
    return (line.split(". ")[0].rstrip(". ") or type(error).__name__)[:200]


class VitrineWarning(UserWarning):
    """Shown by the command line as one line, without the place in the code."""


def warn_user(message: str) -> None:
    warnings.warn(message, VitrineWarning, stacklevel=2)
