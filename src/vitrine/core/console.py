"""Terminal output: tables, progress bars, errors and warnings, and the format of names and numbers in messages."""

import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")


class VitrineWarning(UserWarning):
    """A warning for the user, e.g. an assumption that was made; the command line prints it as one line."""


def warn_user(message: str) -> None:
    """Issue a VitrineWarning; execution continues, so never use it for an error."""
    warnings.warn(message, VitrineWarning, stacklevel=2)


def print_error(error: Exception | str) -> None:
    """Print an error as one line on standard error."""
    print(f"vitrine: {error}", file=sys.stderr)


def print_warning(message: str) -> None:
    """Print a warning as one line on standard error."""
    print(f"Warning: {message}", file=sys.stderr)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table to standard output, the first column left-aligned and the others right-aligned.

    Cells are printed verbatim, without rich's markup. Bytes of a file name that are not UTF-8 become backslash escapes.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(cell.encode("utf-8", "backslashreplace").decode() for cell in row))
    # In a pipe or a narrow window a long line is better than a number cut short.
    console = Console(highlight=False, markup=False, emoji=False)
    table_width = console.measure(table, options=console.options.update(width=1000)).maximum
    console.width = max(console.width, table_width)
    console.print(table)


def progress_bar(items: Iterable[Item], total: int, title: str, is_shown: bool = True) -> Iterator[Item]:
    """Iterate over items with a progress bar on standard error, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    is_hidden = not (is_shown and sys.stderr.isatty())  # rich treats FORCE_COLOR, set on build servers, as a terminal
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=is_hidden) as progress:
        yield from progress.track(items, total=total, description=title)


def parse_image_size(text: str, option: str) -> tuple[int, int]:
    """Return (height, width) from the value of an option such as --image-size: `224` or `224x320`."""
    sides = text.split("x")
    if len(sides) > 2 or not all(side.isdecimal() for side in sides):
        raise ValueError(f"{option} {text} must be one number, e.g. 224, or height x width, e.g. 224x320.")
    return int(sides[0]), int(sides[-1])


def format_number(number: float) -> str:
    """Format with four significant digits and thousands separators: 0.4337, 17.56, 111,800."""
    return f"{number:,.0f}" if number >= 1000 else f"{number:.4g}"


def format_bytes(num_bytes: float) -> str:
    """Format a size in bytes with three digits and a decimal unit: 346 MB, 7.38 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 999.5:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} TB"


def join_names(names: Sequence[str], limit: int = 8) -> str:
    """List the first names on one line for a message, with the number of the remaining ones."""
    shown = ", ".join(name if name.isprintable() else repr(name) for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def summarise_error(error: BaseException) -> str:
    """Return the first sentence of an error, to be quoted in a message of ours."""
    line = next(iter(str(error).strip().splitlines()), "")
    return (line.split(". ")[0].rstrip(". ") or type(error).__name__)[:200]
