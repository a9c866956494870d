"""Worker processes: they end with their parent, and their state can be reported."""

import multiprocessing
import os
import signal
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from threading import Thread

# States in /proc/PID/stat (man 5 proc) that explain why a process does not answer.
STATES = {"T": "stopped", "t": "stopped", "D": "waiting for the disk", "Z": "ended"}


def exit_with_parent() -> None:
    """In a worker process: end at once when the parent ends, even if it is killed and cannot say so."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    Thread(target=watch, daemon=True, name="exit with parent").start()


def follow_parent() -> None:
    """In a worker process of a pool: leave Ctrl-C to the parent, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    exit_with_parent()


def describe_children() -> str:
    """Return the worker processes of this process with the state of each, as far as the system tells."""
    return ", ".join(f"{pid} ({describe_state(pid)})" for pid in list_children())


def continue_children() -> None:
    """Let worker processes that were stopped (SIGSTOP) go on: stopped ones can neither answer nor end."""
    for pid in list_children():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def list_children() -> list[int]:
    return sorted(child.pid for child in multiprocessing.active_children() if child.pid is not None)


def describe_state(pid: int) -> str:
    """Return why a process may not answer; `running` if nothing speaks against it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):  # not Linux, or just ended
        return "state unknown"
    return STATES.get(state, "running")
