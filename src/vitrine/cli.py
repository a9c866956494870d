"""The `vitrine` command: a table of subcommands, each imported only when it is called."""

import difflib
import io
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from functools import partial, wraps
from importlib import import_module
from itertools import groupby
from types import ModuleType
from typing import Any

import vitrine
from vitrine.core.console import print_error
from vitrine.core.notices import Notice

# Name -> where its function lives, and one line for `vitrine --help`.
COMMANDS: dict[str, tuple[str, str]] = {
    "convert": ("vitrine.commands.convert:convert", "a checkpoint from any known format to any other, verified"),
    "data pack": ("vitrine.commands.data_pack:data_pack", "decode a data set once, into one memory-mapped file"),
    "models": ("vitrine.commands.models:models", "parameters, tokens, GMACs and memory of every model"),
}

USAGE = "usage: vitrine COMMAND [OPTIONS]        `vitrine COMMAND --help` lists a command's options"


def main(arguments: list[str] | None = None) -> None:
    """Run one command; a user's mistake costs one sentence on standard error and exit status 2."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] in ("-h", "--help"):
        print(describe_commands())
        sys.exit(0 if arguments else 2)
    if arguments[0] == "--version":
        print(f"vitrine {vitrine.__version__}")
        sys.exit(0)
    try:
        with notices_in_a_line():
            run_command(*split_command(arguments))
    except (ValueError, OSError) as error:
        print_error(error)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


@contextmanager
def notices_in_a_line() -> Iterator[None]:
    """What the library says aloud, without the place in its code; other warnings as Python shows them."""
    show = warnings.showwarning

    def show_in_a_line(message: Warning | str, category: type[Warning], *place: Any, **options: Any) -> None:
        if issubclass(category, Notice):
            print_error(str(message))
        else:
            show(message, category, *place, **options)

    with warnings.catch_warnings():
        warnings.simplefilter("always", Notice)
        warnings.showwarning = show_in_a_line
        yield


def split_command(arguments: list[str]) -> tuple[str, list[str]]:
    """The command's name, of one word or two, and what is meant for it."""
    groups = {name.split()[0] for name in COMMANDS if " " in name}
    num_words = 2 if arguments[0] in groups else 1
    return " ".join(arguments[:num_words]), arguments[num_words:]


def run_command(name: str, arguments: list[str]) -> None:
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=3) or list(COMMANDS)
        raise ValueError(f"Unknown command {name!r}. Nearest: {', '.join(near)}. All commands: `vitrine --help`.")
    module, function = COMMANDS[name][0].split(":")
    call = parse_arguments(name, getattr(import_module(module), function), arguments)
    call()


def parse_arguments(name: str, command: Callable[..., None], arguments: list[str]) -> Callable[[], None]:
    """The command with its arguments, ready to be called."""

    @wraps(command)
    def bind(*values: Any, **options: Any) -> Callable[[], None]:
        return partial(command, *values, **options)

    complaint = io.StringIO()
    try:
        with redirect_stderr(complaint):
            return load_tyro().cli(bind, prog=f"vitrine {name}", args=arguments)
    except SystemExit as stop:
        if stop.code in (None, 0):
            raise
        raise ValueError(f"{unbox(complaint.getvalue())} All options: `vitrine {name} --help`.") from None


def unbox(complaint: str) -> str:
    """The sentence in the box that tyro draws: what stands below its title, up to the next rule."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", complaint)  # colours, where it found a terminal
    lines = [line.strip("│| ") for line in plain.splitlines()[1:]]
    sections = [" ".join(text) for is_rule, text in groupby(lines, lambda line: set(line) <= set("─-╰╯")) if not is_rule]
    sentence = sections[0] if sections else plain.strip()
    return sentence if sentence.endswith(".") else f"{sentence}."


def load_tyro() -> ModuleType:
    """tyro, imported once a command's name is known, so that `vitrine --help` does not wait for it."""
    import tyro

    if sys.modules.get("torch", tyro) is None:
        # Where torch is blocked, tyro takes the None in its place for a loaded torch; its rules are made at first use.
        del sys.modules["torch"]
        tyro.cli(int, args=["0"])
        sys.modules["torch"] = None  # pyright: ignore[reportArgumentType]  (how Python itself marks a blocked import)
    return tyro


def describe_commands() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {line}" for name, (_, line) in COMMANDS.items()]
    return "\n".join(["Vitrine: the Vision Transformer paper as a tool.", "", USAGE, "", *lines])
