"""Load damaged files in watched processes, and report what is wrong with each outcome."""

import multiprocessing
import resource
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Literal

import torch

from vitrine.formats.checkpoint import Checkpoint
from vitrine.formats.load import load_checkpoint

Check = Callable[[str], str | None]
"""Maps the label of an attempt to what is wrong with its outcome."""

Strictness = Literal["exact", "warned", "parameters"]
"""What of a loaded checkpoint must equal the original: everything, everything unless there was a warning, its parameters."""

PATIENCE_S = 600  # no limit on speed: an attempt takes milliseconds
MEMORY_BYTES = 3 * 2**30  # for each process, so that none can take all of the machine's
MAX_GROWTH_BYTES = 2**28  # peak growth allowed for files of a few megabytes

# The server imports once and has no threads, so forking it is quick and safe.
PROCESSES = multiprocessing.get_context("forkserver")
PRELOADED = ["vitrine.formats.load", "vitrine.formats.save", "pytest"]


def require_clean(check: Check, labels: Sequence[str]) -> None:
    complaints = [f"{label}: {outcome}" for label, outcome in watch(check, labels).items() if outcome is not None]
    shown = "\n".join(complaints[:40])
    assert not complaints, f"{len(complaints)} of {len(labels)} attempts:\n{shown}"


def watch(check: Check, labels: Sequence[str]) -> dict[str, str | None]:
    """Return the outcome of each attempt. One that hangs or crashes ends its process; a new process continues."""
    PROCESSES.set_forkserver_preload(PRELOADED)
    outcomes: dict[str, str | None] = {}
    while len(outcomes) < len(labels):
        waiting = labels[len(outcomes) :]
        receiver, sender = PROCESSES.Pipe(duplex=False)
        process = PROCESSES.Process(target=run_checks, args=(check, waiting, sender), daemon=True)
        process.start()
        sender.close()
        outcomes.update(zip(waiting, receive_outcomes(receiver, process), strict=False))
        receiver.close()
        process.kill()
        process.join()
    return outcomes


def receive_outcomes(receiver: Connection, process: BaseProcess) -> Iterator[str | None]:
    """Yield outcomes up to the first attempt that hangs or crashes, and that one."""
    while receiver.poll(PATIENCE_S):
        try:
            yield receiver.recv()
        except EOFError:
            process.join()
            yield f"the process died, exit code {process.exitcode}"
            return
    yield f"nothing in {PATIENCE_S} s"


def run_checks(check: Check, labels: Sequence[str], sender: Connection) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    for label in labels:
        height = measure_height()
        outcome = check(label)
        growth = measure_height() - height
        if outcome is None and growth > MAX_GROWTH_BYTES:
            outcome = f"it took {growth / 1e6:.0f} MB of memory"
        sender.send(outcome)


def measure_height() -> int:
    """Return the peak resident memory. Linux counts in kilobytes, macOS in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def judge(path: Path, original: Checkpoint | None, strictness: Strictness = "exact") -> str | None:
    """Return what is wrong with loading `path`; without an original there must be an error."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loaded = load_checkpoint(path)
    except (ValueError, OSError) as error:
        return judge_text(str(error), path)
    except BaseException as error:  # a panic in Rust is not an Exception
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} from {place.filename}:{place.lineno}: {str(error)[:300]!r}"
    is_exact = strictness == "exact" or (strictness == "warned" and not any("edited" in str(each.message) for each in caught))
    return judge_loaded(loaded, original, is_exact) if original else "it loaded"


def judge_text(text: str, path: Path) -> str | None:
    if len(text.splitlines()) != 1:
        return f"its error is not one line: {text[:300]!r}"
    beside = path if path.is_dir() else path.parent
    if str(path) not in text and not any(file.suffix and file.name in text for file in beside.iterdir()):
        return f"its error names no file: {text[:300]!r}"
    return None


def judge_loaded(loaded: Checkpoint, original: Checkpoint, is_exact: bool) -> str | None:
    state, expected = loaded.model.state_dict(), original.model.state_dict()
    if state.keys() != expected.keys() or not all(is_same(state[name], expected[name]) for name in expected):
        return "it loaded with other parameters"
    pairs = {
        "configuration": (loaded.model.config, original.model.config),
        "preprocessing": (loaded.preprocessing, original.preprocessing),
        "class names": (loaded.class_names, original.class_names),
    }
    return next((f"it loaded with another {name}: {a}" for name, (a, b) in pairs.items() if is_exact and a != b), None)


def is_same(tensor: torch.Tensor, expected: torch.Tensor) -> bool:
    """Bit for bit, so that NaN equals itself and 0 is not -0."""
    return tensor.shape == expected.shape and torch.equal(tensor.view(torch.int32), expected.view(torch.int32))
