"""Terminal output: lines, tables, progress bars, errors and warnings, and the format of names and numbers in messages.

Everything that is printed passes `escape_controls`: names of files and classes, and texts of configs, come from anywhere.
"""

import errno
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import TypeVar

Item = TypeVar("Item")

DELAY_S = 0.4  # of bars for what is usually done at once

# Characters that act on a terminal, or that change or hide the text around them: C0 and C1 controls with ESC, line separators,
# bidirectional marks, zero-width and tag characters, and bytes of file names that are not UTF-8 (surrogates). Joiners
# (U+200C, U+200D) belong to emoji, Persian and Indian scripts: only beside Latin letters, digits and signs do they hide text.
JOINABLE = r"[^\x00-\u02ff\u2000-\u206f]"
CONTROLS = re.compile(
    r"[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    rf"\U000e0000-\U000e007f]|(?<!{JOINABLE})[\u200c\u200d]|[\u200c\u200d](?!{JOINABLE})"
)


COMMAND_OPTIONS: ContextVar[Callable[[], Iterable[str]] | None] = ContextVar("COMMAND_OPTIONS", default=None)
"""Lists the options of the command that is running; None in Python."""


class VitrineWarning(UserWarning):
    """A warning for the user, e.g. an assumption that was made; the command line prints it as one line."""


def warn_user(message: str) -> None:
    """Issue a VitrineWarning; execution continues, so never use it for an error."""
    warnings.warn(message, VitrineWarning, stacklevel=2)


def escape_controls(text: str) -> str:
    r"""Return the text with characters that act on a terminal or hide text as visible escapes: \x1b, \n, \u202e."""
    return CONTROLS.sub(lambda match: ascii(match[0])[1:-1], text)


def print_lines(*lines: str) -> None:
    """Print lines to standard output."""
    print("\n".join(map(escape_controls, lines)))


def print_notice(text: str) -> None:
    """Print one line to standard error at once."""
    print(escape_controls(text), file=sys.stderr, flush=True)


def print_error(error: Exception | str) -> None:
    """Print an error as one line on standard error."""
    print_notice(f"vitrine: {error}")


def print_warning(message: str) -> None:
    """Print a warning as one line on standard error."""
    print_notice(f"Warning: {message}")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table to standard output, the first column left-aligned and the others right-aligned.

    Cells are printed as they are, without rich's markup, except for `escape_controls`.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(escape_controls(column), justify="left" if index == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(escape_controls, row))
    # In a pipe or a narrow window a long line is better than a number cut short.
    console = Console(highlight=False, markup=False, emoji=False)
    table_width = console.measure(table, options=console.options.update(width=1000)).maximum
    console.width = max(console.width, table_width)
    with console.capture() as captured:  # rich itself would turn a closed pipe into exit status 1
        console.print(table)
    print(captured.get(), end="")


def progress_bar(
    items: Iterable[Item], total: int | None, title: str, is_shown: bool = True, is_delayed: bool = False
) -> Iterator[Item]:
    """Iterate over items with a progress bar on standard error, if that is a terminal; without a total, with a count.

    With `is_delayed` it appears after a moment, so that what usually takes milliseconds does not flicker.
    """
    # rich treats FORCE_COLOR, set on build servers, as a terminal. Of several processes, one draws.
    if not (is_shown and sys.stderr.isatty() and os.environ.get("RANK", "0") == "0"):
        yield from items
        return

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

    items, num_done, start_s = iter(items), 0, time.monotonic()
    while time.monotonic() < start_s + (DELAY_S if is_delayed else 0.0):
        try:
            item = next(items)
        except StopIteration:
            return
        yield item
        num_done += 1
    title_column = TextColumn("{task.description}", markup=False)
    columns = (SpinnerColumn(), title_column, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(escape_controls(title), total=total, completed=num_done)
        yield from progress.track(items, total=total, task_id=task)


def name_setting(name: str, value: object = None) -> str:
    """Return how the user gives a setting: as an option of the running command (--model.gelu erf), or in Python (gelu='erf').

    A command without this option is referred to `vitrine convert`, which takes all that a checkpoint may need.
    """
    list_options = COMMAND_OPTIONS.get()
    if list_options is None:
        return name if value is None else f"{name}={value!r}"
    option, known = f"--{name.replace('_', '-')}", list(list_options())
    grouped = [each for each in known if each.endswith(f".{option.removeprefix('--')}")]
    shown = option if option in known else grouped[0] if grouped else option
    where = "" if shown in known or not known else " of `vitrine convert`"
    return f"{shown}{'' if value is None else f' {value}'}{where}"


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
    shown = ", ".join(map(escape_controls, names[:limit]))
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


# Error of the system -> what to do about it.
ADVICE = {
    errno.ENOENT: "check the path",
    errno.EACCES: "change its permissions, or use another path",
    errno.EPERM: "change its permissions, or use another path",
    errno.EISDIR: "give a file, not a folder",
    errno.ENOTDIR: "a part of this path is a file: check the path",
    errno.ENAMETOOLONG: "use a shorter name",
    errno.ENOSPC: "free some space on the disk, or use another path",
    errno.EDQUOT: "free some space on the disk, or use another path",
    errno.EROFS: "use another path",
    errno.EMFILE: "allow more open files (ulimit -n), or use fewer workers",
    errno.ENFILE: "close other programs, or use fewer workers",
    errno.EIO: "check the disk or the network it is on",
}


def describe_os_error(error: OSError) -> str:
    """Return an error of the system as a sentence with its file, without its number; other OSErrors are sentences already."""
    if error.errno is None or error.strerror is None:
        return str(error)
    name = error.filename if isinstance(error.filename, str) else ""
    found = ": ".join(part for part in (name, summarise_error(error)) if part)
    return f"{found}; {ADVICE.get(error.errno, 'try again, or check the disk and its permissions')}."


def summarise_error(error: BaseException) -> str:
    """Return the first sentence of an error, to be quoted in a message of ours; of a system's error, what happened."""
    if isinstance(error, OSError) and error.errno is not None and error.strerror is not None:
        return error.strerror
    line = next(iter(str(error).strip().splitlines()), "")
    return (line.split(". ")[0].rstrip(". ") or type(error).__name__)[:200]
