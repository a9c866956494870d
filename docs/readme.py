"""Runs the commands that README.md shows and puts what they print below them: `make readme`.

A command is an indented line that begins with `$ vitrine`; below it, indented as well, stands what it printed. They are run one
after another in one empty folder, as a reader would, so that a later one finds what an earlier one made.
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
WIDTH = "110"  # columns, of tables that ask for it


@dataclass(frozen=True)
class Example:
    """A command, and the lines of the page that it and its output take."""

    command: str
    start: int
    stop: int
    shown: tuple[str, ...]
    """What stands below it, without the indent."""


def find_examples(lines: list[str]) -> Iterator[Example]:
    for start, line in enumerate(lines):
        if line.startswith(PROMPT):
            stop = start + 1
            while stop < len(lines) and is_output(lines, stop):
                stop += 1
            yield Example(
                line.strip().removeprefix("$ "), start, stop, tuple(each[len(INDENT) :] for each in lines[start + 1 : stop])
            )


def is_output(lines: list[str], place: int) -> bool:
    """An empty line belongs to it where it goes on behind."""
    following = next((line for line in lines[place:] if line), "")
    return following.startswith(INDENT) and not following.startswith(PROMPT)


def run(command: str, folder: Path, *more: str) -> list[str]:
    """What it prints on standard output, where it ends well; `more` are further words."""
    words = [sys.executable, "-m", *shlex.split(command), *more]
    environment = {**os.environ, "COLUMNS": WIDTH, "VITRINE_CACHE": str(folder / ".cache")}
    done = subprocess.run(words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=None, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"`{command}` ended with status {done.returncode}: mend it, or the page.")
    return [line.rstrip() for line in done.stdout.rstrip().splitlines()]


def main(folder: Path) -> None:
    lines = README.read_text(encoding="utf-8").splitlines()
    outputs = [(example, run(example.command, folder)) for example in find_examples(lines)]
    for example, output in reversed(outputs):
        lines[example.start + 1 : example.stop] = [f"{INDENT}{line}".rstrip() for line in output]
    README.write_text("\n".join([*lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) > 1:  # a folder in which they were run before, and need not train again
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as empty:
            main(Path(empty))
