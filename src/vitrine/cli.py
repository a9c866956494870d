"""The `vitrine` command: a table of subcommands, each imported only when it is called."""

import difflib
import errno
import os
import select
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import TracebackType
from typing import Any, TextIO

import vitrine
from vitrine.core.arguments import parse_arguments
from vitrine.core.console import (
    COMMAND_OPTIONS,
    VitrineWarning,
    describe_os_error,
    escape_controls,
    print_error,
    print_lines,
    print_notice,
    print_warning,
)

# Command -> its function, and its line in `vitrine --help`.
COMMANDS: dict[str, tuple[str, str]] = {
    "cache": ("vitrine.commands.cache:cache", "show where caches are and how large; clear them"),
    "convert": ("vitrine.commands.convert:convert", "convert a checkpoint to another format and verify it"),
    "data check": ("vitrine.commands.data_check:data_check", "find bad files, duplicates, leaks and doubtful labels"),
    "data duplicates": ("vitrine.commands.data_duplicates:data_duplicates", "find the images of one dataset in another"),
    "data pack": ("vitrine.commands.data_pack:data_pack", "decode a dataset once into a memory-mapped file"),
    "demo": ("vitrine.commands.demo:demo", "run every step on built-in data or yours, with an HTML report"),
    "evaluate": ("vitrine.commands.evaluate:evaluate", "measure accuracy, loss and calibration of a classifier"),
    "features": ("vitrine.commands.features:features", "extract image features to .npz"),
    "few-shot": ("vitrine.commands.few_shot:few_shot", "measure few-shot accuracy as in the paper"),
    "finetune": ("vitrine.commands.finetune:finetune", "fine-tune a checkpoint on your images"),
    "fit": ("vitrine.commands.fit:fit", "fit the best classifier of your images in the minutes you have"),
    "inspect": ("vitrine.commands.inspection:inspect", "show attention, positions, filters and features of a model"),
    "models": ("vitrine.commands.models:models", "list models with parameters, tokens, GMACs and memory"),
    "predict": ("vitrine.commands.predict:predict", "predict the most likely classes of images"),
    "probe": ("vitrine.commands.probe:probe", "fit logistic regression, k-NN and class means to frozen features"),
    "study": ("vitrine.commands.study:study", "repeat an experiment of the paper, with a figure and verdicts"),
    "train": ("vitrine.commands.train:train", "train a model by a recipe; an interrupted run is resumed"),
    "vtab": ("vitrine.commands.vtab:vtab", "score a checkpoint on the 19 tasks of VTAB-1k"),
}

# Commands that parse their own arguments, because the defaults of their options depend on the first words (the recipe).
PARSE_THEIR_OWN = ("finetune", "train", "vtab")

USAGE = "usage: vitrine COMMAND [OPTIONS]        `vitrine COMMAND --help` lists the options of a command"


def main(arguments: list[str] | None = None) -> None:
    """Run one command; a mistake of the user is one line on standard error and exit status 2.

    If the reader of the output has gone, as in `vitrine models | head -1`, the command ends quietly, as by SIGPIPE.
    """
    open_missing_streams()
    if arguments is None:
        sys.excepthook = print_traceback
    before = COMMAND_OPTIONS.set(tuple)  # none are known before the command has parsed its arguments
    try:
        with readable_errors(), flushed_output(), one_line_warnings():
            run_command(sys.argv[1:] if arguments is None else arguments)
    except BrokenPipeError:
        discard(sys.stdout)
        discard(sys.stderr)
        sys.exit(128 + signal.SIGPIPE)
    finally:
        COMMAND_OPTIONS.reset(before)


def run_command(arguments: list[str]) -> None:
    """Run the command that the words name, or show the help."""
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    if not arguments or arguments[0] in ("-h", "--help", "--help-all"):
        width = max(map(len, COMMANDS))
        lines = [f"  {name:<{width}}  {line}" for name, (_, line) in COMMANDS.items()]
        print_lines("Vitrine: the Vision Transformer paper as a tool.", "", USAGE, "", *lines)
        sys.exit(0 if arguments else 2)
    if arguments[0] == "--version":
        print_lines(f"vitrine {vitrine.__version__}")
        sys.exit(0)
    name, rest = split_command(arguments)
    command = load_command(name)
    if rest == ["help"] and not os.path.exists("help"):  # not a model or a dataset of this name
        rest = ["--help"]
    if name in PARSE_THEIR_OWN:
        command(rest)
    else:
        parse_arguments(name, command, rest)()


@contextmanager
def readable_errors() -> Iterator[None]:
    """Print errors of the user, the system and memory as one sentence and exit; others are mistakes of ours and pass."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        if error.errno == errno.EPIPE and any(map(is_closed_pipe, (sys.stdout, sys.stderr))):
            raise
        print_error(describe_os_error(error))
        sys.exit(2)
    except ValueError as error:
        print_error(error)
        sys.exit(2)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        print_error("There is not enough memory for this: use a smaller model, batch or image size, or fewer workers.")
        sys.exit(2)


def print_traceback(kind: type[BaseException], error: BaseException, place: TracebackType | None) -> None:
    """Print a traceback as Python does, with the characters of names in it escaped."""
    for line in "".join(traceback.format_exception(kind, error, place)).splitlines():
        print_notice(line)


def is_out_of_memory(error: Exception) -> bool:
    """Return whether Python, NumPy or torch could not allocate memory, without importing torch."""
    return isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__ or "DefaultCPUAllocator" in str(error)


@contextmanager
def flushed_output() -> Iterator[None]:
    """Write all output before the program ends, because an error while Python exits could no longer be explained."""
    try:
        yield
    finally:
        try:
            sys.stdout.flush()
        except OSError:
            discard(sys.stdout)
            raise


def open_missing_streams() -> None:
    """Replace standard streams that the caller closed by /dev/null: the next opened file would take the place of one."""
    if sys.stdin is None or sys.stdout is None or sys.stderr is None:
        while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(descriptor)
        sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
        sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def is_closed_pipe(stream: TextIO) -> bool:
    """Return whether nobody reads what is written to this stream."""
    try:
        poll = select.poll()
        poll.register(stream.fileno(), 0)  # errors and hang-ups are always reported
    except (OSError, ValueError):  # replaced by an object without a file
        return False
    return bool(poll.poll(0))


def discard(stream: TextIO) -> None:
    """Send what is still to be written to a stream to /dev/null."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    os.dup2(descriptor, stream.fileno())
    os.close(descriptor)


@contextmanager
def one_line_warnings() -> Iterator[None]:
    """Print each VitrineWarning once, as one line without its place in the code; other warnings appear as usual."""
    show, seen = warnings.showwarning, set[str]()

    def show_warning(message: Warning | str, category: type[Warning], *location: Any, **options: Any) -> None:
        """Print a warning as one line, once per text."""
        if not issubclass(category, VitrineWarning):
            show(escape_controls(str(message)), category, *location, **options)
        elif os.environ.get("RANK", "0") == "0" and str(message) not in seen:  # of several processes, one prints
            seen.add(str(message))
            print_warning(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always", VitrineWarning)
        warnings.showwarning = show_warning
        yield


def split_command(arguments: list[str]) -> tuple[str, list[str]]:
    """Split the words into the name of the command, of one word or two, and its arguments."""
    num_words = 2 if any(name.startswith(f"{arguments[0]} ") for name in COMMANDS) else 1
    return " ".join(arguments[:num_words]), arguments[num_words:]


def load_command(name: str) -> Callable[..., None]:
    """Import the function of a command."""
    if name not in COMMANDS:
        nearest = difflib.get_close_matches(name, COMMANDS, n=3) or list(COMMANDS)
        raise ValueError(f"Unknown command {name!r}. Nearest: {', '.join(nearest)}. All commands: `vitrine --help`.")
    module, function_name = COMMANDS[name][0].split(":")
    return getattr(import_module(module), function_name)
