"""The `vitrine` command: a table of subcommands, each imported only when it is called."""

import difflib
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import vitrine
from vitrine.core.arguments import parse_arguments
from vitrine.core.console import VitrineWarning, print_error

# Name -> where its function lives, and one line for `vitrine --help`.
COMMANDS: dict[str, tuple[str, str]] = {
    "convert": ("vitrine.commands.convert:convert", "a checkpoint from any known format to any other, verified"),
    "data check": ("vitrine.commands.data_check:data_check", "bad files, copies, leaks and doubtful labels in a data set"),
    "data duplicates": ("vitrine.commands.data_duplicates:data_duplicates", "the images of one data set that are in another"),
    "data pack": ("vitrine.commands.data_pack:data_pack", "decode a data set once, into one memory-mapped file"),
    "demo": ("vitrine.commands.demo:demo", "the whole story on built-in data or on yours, with a report to look at"),
    "evaluate": ("vitrine.commands.evaluate:evaluate", "top-1, top-5, loss and calibration, and where a classifier errs"),
    "features": ("vitrine.commands.features:features", "what a frozen model makes of images, as .npz"),
    "few-shot": ("vitrine.commands.few_shot:few_shot", "a linear classifier from a few images of each class, as in the paper"),
    "finetune": ("vitrine.commands.finetune:finetune", "a checkpoint to your own images, in one line"),
    "inspect": (
        "vitrine.commands.inspection:inspect",
        "the attention, positions, filters and features of a model, on a page",
    ),
    "models": ("vitrine.commands.models:models", "parameters, tokens, GMACs and memory of every model"),
    "predict": ("vitrine.commands.predict:predict", "the most likely classes of your images"),
    "probe": ("vitrine.commands.probe:probe", "logistic regression, neighbours and class means on frozen features"),
    "train": ("vitrine.commands.train:train", "a recipe: pre-train from scratch; resumes by itself"),
    "vtab": ("vitrine.commands.vtab:vtab", "a checkpoint on the 19 tasks of VTAB-1k: score, groups, figure"),
}

# Their options have the defaults of a recipe that the first words name, so these come before the others are read.
READ_THEIR_OWN = ("finetune", "train", "vtab")

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
    """What the library says aloud, once and without the place in its code; other warnings as Python shows them."""
    show, told = warnings.showwarning, set[str]()

    def show_in_a_line(message: Warning | str, category: type[Warning], *place: Any, **options: Any) -> None:
        if issubclass(category, VitrineWarning):
            # Of several processes, one speaks; and of several runs of a checkpoint, the first says what all would.
            if os.environ.get("RANK", "0") == "0" and str(message) not in told:
                print_error(str(message))
            told.add(str(message))
        else:
            show(message, category, *place, **options)

    with warnings.catch_warnings():
        warnings.simplefilter("always", VitrineWarning)
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
    module, name_of_function = COMMANDS[name][0].split(":")
    function = getattr(import_module(module), name_of_function)
    if name in READ_THEIR_OWN:
        function(arguments)
    else:
        parse_arguments(name, function, arguments)()


def describe_commands() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {line}" for name, (_, line) in COMMANDS.items()]
    return "\n".join(["Vitrine: the Vision Transformer paper as a tool.", "", USAGE, "", *lines])
