"""Whether `vitrine fit` keeps its time and survives kills: `python benchmarks/fit_time.py MODEL DATA ...`.

Time: fits of 1 to 3 minutes on an idle machine, then as many beside a process that keeps one core busy, each with an empty
cache. One keeps its time if it ends within the minutes, 5 % of them and 5 seconds, Python's start included.

Kills: fits that are killed (SIGKILL) at a random moment after the first model was written. The model must load and have the
classes of the data; then the same command with `--minutes 0` must end well. Some are killed before the first model: nothing
may be left that is not loadable. `--json FILE` saves the results. 30 fits take fifty minutes, 30 kills half an hour.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.conf import Positional

from vitrine.core.console import print_table
from vitrine.core.files import write_json
from vitrine.data.open_data import find_data
from vitrine.formats.load import load_checkpoint

MINUTES = (1.0, 1.0, 1.5, 2.0, 3.0)
BUSY = "while True: pass"


def main(
    model: Annotated[Positional[str], tyro.conf.arg(metavar="MODEL")],
    data: Annotated[Positional[tuple[Path, ...]], tyro.conf.arg(metavar="DATA ...")],
    idle: int = 15,
    beside: int = 15,
    kills: int = 30,
    minutes: tuple[float, ...] = MINUTES,
    wait: float = 60.0,
    seed: int = 0,
    json: Path | None = None,
) -> None:
    """Run fits and kills; print and save the results; exit with status 1 if one failed.

    Kills come up to `wait` seconds after the first model.
    """
    timed: list[dict[str, Any]] = []
    for number, is_beside in (*enumerate([False] * idle), *enumerate([True] * beside)):
        folder, given = data[number % len(data)], minutes[number % len(minutes)]
        with tempfile.TemporaryDirectory() as temporary, keep_busy(is_beside):
            start = time.perf_counter()
            process = start_fit(model, folder, given, Path(temporary))
            status = process.wait()
            seconds = time.perf_counter() - start
        is_kept = status == 0 and seconds <= 60 * given * 1.05 + 5
        result = {"data": folder.name, "minutes": given, "is_beside": is_beside, "seconds": seconds, "is_kept": is_kept}
        timed.append(result)
        print(timed[-1], flush=True)
    killed = [kill_fit(model, data[number % len(data)], wait, random.Random(seed + number)) for number in range(kills)]
    rows = [
        ("fits that kept their time", f"{sum(each['is_kept'] for each in timed)} of {len(timed)}"),
        ("kills survived", f"{sum(each['is_survived'] for each in killed)} of {kills}"),
        ("of these, after the first model", f"{sum(each['had_model'] for each in killed)}"),
    ]
    print_table(("", ""), rows)
    if json is not None:
        write_json(json, {"timed": timed, "killed": killed})
    if not all(each["is_kept"] for each in timed) or not all(each["is_survived"] for each in killed):
        sys.exit(1)


def start_fit(model: str, data: Path, minutes: float, folder: Path) -> "subprocess.Popen[bytes]":
    """Start a fit in an empty cache."""
    words = [sys.executable, "-m", "vitrine", "fit", str(data), "--model", model, "--minutes", str(minutes)]
    environment = {**os.environ, "VITRINE_CACHE": str(folder / "cache")}
    words += ["--out", str(folder / "out")]
    return subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@contextmanager
def keep_busy(is_wanted: bool) -> Iterator[None]:
    """Keep one core busy during the block."""
    process = subprocess.Popen([sys.executable, "-c", BUSY]) if is_wanted else None
    try:
        yield
    finally:
        if process is not None:
            process.kill()
            process.wait()


def kill_fit(model: str, data: Path, wait: float, draws: random.Random) -> dict[str, Any]:
    """Kill a fit of three minutes at a random moment, up to `wait` seconds after its first model, and continue it."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        process = start_fit(model, data, 3.0, folder)
        if draws.random() < 0.8:  # the others are killed before the first model
            while not (folder / "out" / "model" / "config.json").is_file() and process.poll() is None:
                time.sleep(0.02)
            time.sleep(draws.uniform(0, wait))
        else:
            time.sleep(draws.uniform(1, 15))
        process.send_signal(signal.SIGKILL)
        process.wait()
        had_model = (folder / "out" / "model").exists()
        expected = find_data(data).open_train().class_names
        is_survived = not had_model or load_checkpoint(folder / "out" / "model").class_names == expected
        again = start_fit(model, data, 0.0, folder)
        is_survived = again.wait() == 0 and is_survived
        is_survived = is_survived and load_checkpoint(folder / "out" / "model").class_names == expected
    result = {"data": data.name, "had_model": had_model, "is_survived": is_survived}
    print(result, flush=True)
    return result


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
