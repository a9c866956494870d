"""Worker processes that lose their parent, or do not answer."""

import os
import select
import signal
import subprocess
import sys
import time

from vitrine.core.processes import describe_children, describe_state, exit_with_parent

PATIENCE_S = 600  # until what hangs is given up; no limit on speed

# The parent starts workers that compute without end and hold the write end of a pipe: its reader sees when all are gone.
FAMILY = """
import multiprocessing, os, sys, time
from vitrine.core.processes import exit_with_parent

def work(started):
    exit_with_parent()
    started.put(os.getpid())
    while True:
        pass

if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    started = context.Queue()
    workers = [context.Process(target=work, args=(started,), daemon=True) for _ in range(3)]
    for worker in workers:
        worker.start()
    for _ in workers:
        started.get()
    print("started", flush=True)
    time.sleep(3600)
"""


def test_workers_end_when_their_parent_is_killed() -> None:
    reader, writer = os.pipe()
    with subprocess.Popen([sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, text=True, pass_fds=[writer]) as process:
        os.close(writer)
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.kill()
    ready, _, _ = select.select([reader], [], [], PATIENCE_S)
    os.close(reader)
    assert ready


def test_a_process_that_is_nobody_s_worker_goes_on() -> None:
    exit_with_parent()


def test_states_of_processes() -> None:
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        assert describe_state(process.pid) in ("running", "waiting for the disk", "state unknown")
        if sys.platform == "linux":
            os.kill(process.pid, signal.SIGSTOP)
            while describe_state(process.pid) != "stopped":
                time.sleep(0.002)
        process.kill()
    assert describe_state(process.pid) == "state unknown"
    assert str(process.pid) not in describe_children()
