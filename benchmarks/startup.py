"""Start-up time of the command line: `python benchmarks/startup.py`.

`vitrine --help` should take less than half a second; `python -c pass` shows the time of the interpreter itself.
`--json FILE` saves the results.
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path

import tyro
from rich.console import Console
from rich.table import Table

from vitrine.core.files import write_json

VITRINE = [sys.executable, "-m", "vitrine"]
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "vitrine --help": [*VITRINE, "--help"],
    "vitrine models --help": [*VITRINE, "models", "--help"],
    "vitrine models ViT-G/14": [*VITRINE, "models", "ViT-G/14"],
    "vitrine models": [*VITRINE, "models"],
}


def main(rounds: int = 11, json: Path | None = None) -> None:
    """Run the commands alternately; print and save the median times."""
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(rounds):
        for name, command in COMMANDS.items():
            start = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            seconds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    table = Table("command", "median s")
    for name, median in medians.items():
        table.add_row(name, f"{median:.2f}")
    Console().print(table)
    if json is not None:
        write_json(json, medians)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
