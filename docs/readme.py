"""Run the commands of README.md and insert their output below them: `make readme`. With --check, compare it instead.

A command is an indented line that begins with `$ vitrine`; the indented lines below it are its output. The commands are run one
after another in one empty folder, so that later ones find the files of earlier ones. What is inserted is also written to
docs/results/data/readme-outputs.json, with which the tests compare the page.
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"
RECORD = Path(__file__).parent / "results" / "data" / "readme-outputs.json"
INDENT, PROMPT = "    ", "    $ vitrine "
COLUMNS = "110"  # width of the terminal that commands see
# One thread, and instructions that most x86 CPUs have: with the cores and instructions at hand, training would round
# differently on different machines (docs/reliability.md).
ROUNDING = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2", "OMP_NUM_THREADS": "1"}


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
    environment = {**os.environ, **ROUNDING, "COLUMNS": COLUMNS, "VITRINE_CACHE": str(folder / ".cache")}
    done = subprocess.run(words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=None, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"`{command}` exited with status {done.returncode}: fix the command or the page.")
    return [line.rstrip() for line in done.stdout.rstrip().splitlines()]


# How far a figure with a fraction may lie from the page's on another machine, whose rounding differs (docs/reliability.md): by
# table and column, by row, or by column. None: not compared. All other figures, counts and words must be equal.
POINTS = 9.0  # of accuracies on hundreds of images: one and a half times the range measured (docs/results/training.md)
CLASS_POINTS = 30.0  # of accuracies on 35 images of a class, and of the probability of one image
TOLERANCES: dict[str, float | None] = {
    **dict.fromkeys(["class: top-1", "class: 95 % interval", "image: 1."], CLASS_POINTS),
    **dict.fromkeys(["accuracy", "95 % interval", "test top-1", "test top-5", "top-1", "top-5", "calibration error"], POINTS),
    **dict.fromkeys(["time", "seconds", "device-hours", "most often mistaken for", "image: 2.", "image: 3."], None),
    **dict.fromkeys(["mean of heads, px", "smallest", "largest"], 1.5),
    "loss": 0.2,
    "max logit": 1.5,
}
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")
CELL = re.compile(r"\S+(?: \S+)*")  # the cells of a line are two spaces apart


def read_cells(lines: Iterable[str]) -> dict[tuple[str, str, str], str]:
    """Return the cells of an output by table, row and column, so that rows may change places; a sentence is a row by itself.

    A table is named by its first heading and a row by its first cell. A cell ends where the heading of its column ends.
    """
    table, columns, found = "", {}, {}
    for line in lines:
        cells = list(CELL.finditer(line))
        if len(cells) > 1 and columns:
            found |= {(table, cells[0][0], columns.get(cell.end(), "")): cell[0] for cell in cells[1:]}
            continue
        table, columns = (cells[0][0], {cell.end(): cell[0] for cell in cells[1:]}) if cells else ("", {})
        found["", " ".join(line.split()), ""] = ""
    return found


def compare_outputs(recorded: Iterable[str], printed: Iterable[str]) -> list[str]:
    """Return what differs between two outputs of a command by more than the tolerances."""
    before, after = read_cells(recorded), read_cells(printed)
    differences = []
    for key in dict.fromkeys([*before, *after]):
        old, new, tolerance = before.get(key, "nothing"), after.get(key, "nothing"), choose_tolerance(*key)
        if tolerance is not None and not is_close(old, new, tolerance):
            differences.append(
                f"{', '.join(filter(None, key[1:]))}: {old or 'this line'} recorded, {new or 'this line'} printed"
            )
    return differences


def choose_tolerance(table: str, row: str, column: str) -> float | None:
    known = (TOLERANCES[name] for name in (f"{table}: {column}", row, column) if name in TOLERANCES)
    return next(known, 0.0)


def is_close(old: str, new: str, tolerance: float) -> bool:
    """Return whether two cells have the same words, and figures that differ by the tolerance at most."""
    pairs = zip(NUMBER.findall(old), NUMBER.findall(new), strict=False)
    close = all(first == second or is_near(first, second, tolerance) for first, second in pairs)
    return close and NUMBER.sub("#", old) == NUMBER.sub("#", new)


def is_near(old: str, new: str, tolerance: float) -> bool:
    return "." in old and "." in new and abs(float(old) - float(new)) <= tolerance


def insert(lines: list[str], outputs: dict[str, list[str]]) -> None:
    """Write the outputs to the page, and to the file that the tests compare the page with."""
    for example in reversed(list(find_examples(lines))):
        lines[example.start + 1 : example.stop] = [f"{INDENT}{line}".rstrip() for line in outputs[example.command]]
    README.write_text("\n".join([*lines, ""]), encoding="utf-8")
    RECORD.write_text(json.dumps(outputs, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main(folder: Path, check: bool) -> None:
    """Run all commands in a folder; insert their output, or exit with what differs from the page."""
    lines = README.read_text(encoding="utf-8").splitlines()
    examples = list(find_examples(lines))
    outputs = {example.command: run(example.command, folder) for example in examples}
    if not check:
        insert(lines, outputs)
        return
    differences = [
        f"`{example.command}`: {difference}"
        for example in examples
        for difference in compare_outputs(example.output, outputs[example.command])
    ]
    if differences:
        raise SystemExit("\n".join(differences))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="folder of an earlier call, in which nothing is trained again")
    parser.add_argument("--check", action="store_true", help="compare the output with the page, within TOLERANCES")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as empty:
        main(words.folder or Path(empty), words.check)
