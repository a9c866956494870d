"""Run the commands of README.md and insert their output below them: `make readme`.

A command is an indented line that begins with `$ vitrine`; the indented lines below it are its output. The commands are run one
after another in one empty folder, so that later ones find the files of earlier ones.
"""

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"
INDENT, PROMPT = "    ", "    $ vitrine "
COLUMNS = "110"  # width of the terminal that commands see


@dataclass(frozen=True)
class Example:
    """A command of the page, and the lines [start, stop) that it and its output take."""

    command: str
    start: int
    stop: int
    output: tuple[str, ...]
    """Output on the page, without the indent."""


def find_examples(lines: list[str]) -> Iterator[Example]:
    """Yield the commands of the page in their order."""
    for start, line in enumerate(lines):
        if line.startswith(PROMPT):
            stop = start + 1
            while stop < len(lines) and is_output(lines, stop):
                stop += 1
            output = tuple(each[len(INDENT) :] for each in lines[start + 1 : stop])
            yield Example(line.strip().removeprefix("$ "), start, stop, output)


def is_output(lines: list[str], index: int) -> bool:
    """Return whether a line belongs to the output of a command; an empty line does if more output follows."""
    following = next((line for line in lines[index:] if line), "")
    return following.startswith(INDENT) and not following.startswith(PROMPT)


def run(command: str, folder: Path, *options: str) -> list[str]:
    """Run a command in a folder, with further options, and return the lines of its standard output."""
    words = [sys.executable, "-m", *shlex.split(command), *options]
    environment = {**os.environ, "COLUMNS": COLUMNS, "VITRINE_CACHE": str(folder / ".cache")}
    done = subprocess.run(words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=None, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"`{command}` exited with status {done.returncode}: fix the command or the page.")
    return [line.rstrip() for line in done.stdout.rstrip().splitlines()]


def main(folder: Path) -> None:
    """Run all commands in a folder and write their output to the page."""
    lines = README.read_text(encoding="utf-8").splitlines()
    outputs = [(example, run(example.command, folder)) for example in find_examples(lines)]
    for example, output in reversed(outputs):
        lines[example.start + 1 : example.stop] = [f"{INDENT}{line}".rstrip() for line in output]
    README.write_text("\n".join([*lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) > 1:  # a folder of an earlier call, in which nothing needs to be trained again
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as empty:
            main(Path(empty))
