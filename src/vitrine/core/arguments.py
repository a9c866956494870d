"""From words on the command line to values, by tyro; what cannot be read is a sentence."""

import io
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stderr
from functools import partial, wraps
from itertools import groupby
from types import ModuleType
from typing import Any, TypeVar

Options = TypeVar("Options")


def parse_arguments(name: str, command: Callable[..., None], arguments: list[str]) -> Callable[[], None]:
    """The command with its arguments, ready to be called."""

    @wraps(command)
    def bind(*values: Any, **options: Any) -> Callable[[], None]:
        return partial(command, *values, **options)

    return read(name, bind, arguments)


def parse_options(name: str, kind: type[Options], arguments: list[str], defaults: Options) -> Options:
    """A dataclass whose fields are options, those that were not given as in `defaults`."""
    return read(name, kind, arguments, default=defaults)


def parse_known_options(kind: type[Options], arguments: list[str], defaults: Options) -> Options | None:
    """The same of words among which there are others; None where one of its own cannot be read."""
    try:
        with redirect_stderr(io.StringIO()):
            tyro = load_tyro()
            return tyro.cli(kind, args=arguments, default=defaults, return_unknown_args=True, add_help=False)[0]
    except SystemExit:
        return None


def read(name: str, kind: Callable[..., Any], arguments: list[str], **more: Any) -> Any:
    complaint = io.StringIO()
    try:
        with redirect_stderr(complaint):
            return load_tyro().cli(kind, prog=f"vitrine {name}", args=arguments, **more)
    except SystemExit as stop:
        if stop.code in (None, 0):
            raise
        sentence = re.sub(r"^Error parsing recipe[\w.]*: (?=\w+=)", "", unbox(complaint.getvalue()))  # then it is ours already
        for word in arguments:  # a long one is broken where the box ends
            sentence = re.sub(" ?".join(map(re.escape, word)), lambda _, word=word: word, sentence)
        raise ValueError(f"{sentence} All options: `vitrine {name} --help`.") from None


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
