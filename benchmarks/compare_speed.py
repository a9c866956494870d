"""Compare the speed of two commits: forward pass, training step, training loop and loader, old time divided by new time.

    python benchmarks/compare_speed.py BASE [OTHER] [--rounds 20] [--data FOLDER] [--json FILE]

OTHER is a commit, or `.` (default) for the working tree. Each side runs in a process of its own and builds the contestants of
its own benchmarks/forward.py, train_step.py, fit.py and loader.py. One side computes while the other sleeps; they take turns in
every round, in changing order. Above 1, OTHER is faster. Both sides also get the contestants of this folder's own_step.py.
`--only WORD` measures those whose titles contain the word. About 15 minutes on two idle cores.
"""

import io
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from itertools import cycle
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
MIN_RATIO = 0.98
WARM_UP_CALLS, NUM_CALLS = 2, 3
SERVE = "--serve"  # first argument of the two processes that compute


def main(
    base: str, other: str = ".", /, rounds: int = 20, data: Path | None = None, json: Path | None = None, only: str = ""
) -> None:
    """Measure both commits; exit status 1 if a median ratio is below 0.98."""
    from rich.console import Console
    from rich.progress import track

    from measure import build_table, compute_figures
    from vitrine.core.files import write_json

    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        sides = {name: start_side(name, Path(folder) / str(index), data) for index, name in enumerate((base, other))}
        titles = [title for title in dict.fromkeys(ask(sides[base], "names").split("\t")) if only in title]
        for title in titles:
            for side in sides.values():
                ask(side, f"warm\t{title}")
            seconds = []
            for index in track(range(rounds), title, console=Console(stderr=True), transient=True):
                order = list(sides.items()) if index % 2 == 0 else list(reversed(sides.items()))
                times = {name: float(ask(side, f"time\t{title}")) for name, side in order}
                seconds.append({name: times[name] for name in sides})
            figures[title] = compute_figures(seconds, other)
            Console().print(build_table(title, figures[title], ratio=f"time over that of {other}"))
        for side in sides.values():
            side.communicate("stop\n")
    if json is not None:
        write_json(json, {"rounds": rounds, "settings": {name: [*map(asdict, row)] for name, row in figures.items()}})
    slower = [title for title, (old, _) in figures.items() if old.ratio < MIN_RATIO]
    print(f"Below {MIN_RATIO}: {', '.join(slower) or 'none'}.")
    sys.exit(bool(slower))


def start_side(commit: str, folder: Path, data: Path | None) -> "subprocess.Popen[str]":
    """Start the process of one commit with its own source and benchmarks."""
    root = REPOSITORY
    if commit != ".":
        root = folder
        archive = subprocess.run(["git", "archive", commit], cwd=REPOSITORY, check=True, capture_output=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(root, filter="data")
    return subprocess.Popen(
        # -P: this script's folder is not on the path, only the benchmarks of the side.
        [sys.executable, "-P", __file__, SERVE, *([] if data is None else [str(data.resolve())])],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root / "benchmarks")])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def ask(side: "subprocess.Popen[str]", question: str) -> str:
    """Send one line to a side and return its answer."""
    assert side.stdin is not None
    assert side.stdout is not None
    side.stdin.write(question + "\n")
    side.stdin.flush()
    answer = side.stdout.readline()
    if not answer:
        raise SystemExit(f"The process that was asked for {question!r} has ended: see its error above.")
    return answer.rstrip("\n")


def serve(data: Path | None) -> None:
    """Answer the questions of the comparing process until it says stop."""
    answers, sys.stdout = sys.stdout, sys.stderr
    with tempfile.TemporaryDirectory() as folder:
        contestants = dict(build_contestants(data, Path(folder)))
        for line in sys.stdin:
            word, _, title = line.rstrip("\n").partition("\t")
            if word == "stop":
                os._exit(0)  # the threads of `fit` wait for a step that will not come
            if word == "names":
                answer = "\t".join(contestants)
            else:
                answer = str(time_calls(contestants[title], WARM_UP_CALLS if word == "warm" else NUM_CALLS))
            print(answer, file=answers, flush=True)


def time_calls(step: Callable[[], object], num_calls: int) -> float:
    start = time.perf_counter()
    for _ in range(num_calls):
        step()
    return (time.perf_counter() - start) / num_calls


def build_contestants(data: Path | None, folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield title and step of each contestant of this side's benchmarks."""
    import torch

    import fit
    import forward
    import loader
    import train_step
    from peers import OURS

    sys.path.append(str(REPOSITORY / "benchmarks"))  # last: all but own_step.py is the side's own
    import own_step

    torch.set_num_threads(2)
    for module in (forward, train_step):
        for setting in module.SETTINGS:
            yield setting.name, module.build_steps(setting, [])[OURS]
    for setting in train_step.SETTINGS:
        yield f"{setting.name}: {own_step.WHOLE}", own_step.build_whole_step(setting)
        yield f"{setting.name}: {own_step.UPDATE}", own_step.build_update_step(setting)
    for batch_size in (32, 16):
        model, batches = fit.build_network(num_classes=1000), cycle(fit.build_batches(batch_size, num_classes=1000))
        train = partial(fit.run_fit, model, total_steps=10**9)
        yield f"fit, batch {batch_size}", own_step.step_through(train, batches)
    for setting in loader.build_settings(data, folder):
        yield f"loader: {setting.name}", one_threaded(loader.build_steps(setting, None)[OURS])


def one_threaded(step: Callable[[], object]) -> Callable[[], None]:
    """Return a step that computes with one thread, as the benchmark of the loader does."""
    import torch

    def call() -> None:
        torch.set_num_threads(1)
        for _ in range(4):
            step()
        torch.set_num_threads(2)

    return call


if __name__ == "__main__":
    if sys.argv[1:2] == [SERVE]:
        serve(Path(sys.argv[2]) if len(sys.argv) > 2 else None)
    else:
        import tyro

        tyro.cli(main, description=__doc__)
