"""Runs in child processes, several at a time. Each has one thread, so that results do not depend on how many there are.

A child is a fork of a server that has imported everything. It writes its output to FOLDER.log beside the run's folder, handles
SIGTERM as every run does (it finishes the step and saves), and ends with its parent.
"""

import multiprocessing
import os
import signal
import traceback
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch

from vitrine.core.console import describe_os_error
from vitrine.core.files import make_folder
from vitrine.core.processes import follow_parent
from vitrine.run.callbacks import StopRequest, stop_on_signals
from vitrine.studies.runner import (
    Read,
    Report,
    RunOutcome,
    RunTable,
    StartMissing,
    StudyRun,
    is_done,
    make_run,
    require_start,
)

SERVER = multiprocessing.get_context("forkserver")
THREAD_LIMIT = "OMP_NUM_THREADS"  # read when torch is imported, which the server does
# What a run imports on its way: torch._dynamo for the optimizer, matplotlib for its report.
PRELOADED = ("vitrine.studies.children", "torch._dynamo", "matplotlib.backends.backend_svg", "matplotlib.backends.backend_agg")
POLL_S = 0.1  # between two looks at whether a signal has come


class RunFailed(Exception):
    """Raised for a run whose child process failed; the message is the sentence of its error."""


@dataclass
class Child:
    """A child process with its run, and the connection that it answers on."""

    run: StudyRun
    process: ForkServerProcess
    log: Path
    """File of its output."""
    is_told: bool = False
    """Whether it was told to stop and save."""

    def stop(self) -> None:
        """Tell the child once to finish its step, save and end."""
        if not self.is_told:
            self.process.terminate()
            self.is_told = True


def run_in_children(runs: Sequence[StudyRun], out: Path, jobs: int, read: Read, report: Report) -> RunTable:
    """Make the runs in child processes, `jobs` at a time, and measure each. A failure is recorded and does not stop the rest.

    After a signal to this process, or to a child, all children are told to stop and save, and no other run is begun.
    """
    make_folder(out)
    out = out.absolute()  # recipes name models below it: the same path whoever reads them
    outcomes: dict[str, RunOutcome] = {}
    with (
        stop_on_signals() as stop,
        one_thread_each(),
        closing(follow_children(deque(runs), out, jobs, read, stop)) as finished,
    ):
        for outcome in finished:
            outcomes[outcome.run.folder] = outcome
            stop.signal = stop.signal or outcome.interrupted_by
            report(outcome)
    return RunTable([outcomes[run.folder] for run in runs if run.folder in outcomes], stop.signal)


def follow_children(
    waiting: deque[StudyRun], out: Path, jobs: int, read: Read, stop: StopRequest
) -> Generator[RunOutcome, None, None]:
    """Start children while there are runs and places, and yield what becomes of them."""
    children: dict[Connection, Child] = {}
    failed: list[str] = []
    try:
        while children or (waiting and not stop.is_requested):
            while len(children) < jobs and not stop.is_requested:
                run = take_next(waiting, {child.run.folder for child in children.values()})
                if run is None:
                    break
                outcome = read_finished(run, out, read, failed)
                if outcome is None:
                    children |= start_child(run, out, read)
                    continue
                failed += [run.folder] if outcome.error is not None else []
                yield outcome
            if stop.is_requested:
                for child in children.values():
                    child.stop()
            for connection in wait(list(children), POLL_S):
                assert isinstance(connection, Connection)
                outcome = hear_child(children.pop(connection), connection)
                if outcome is not None:
                    failed += [outcome.run.folder] if outcome.error is not None else []
                    yield outcome
    finally:
        for child in children.values():  # after an error of ours, or a second Ctrl-C
            child.process.kill()
            child.process.join()


def take_next(waiting: deque[StudyRun], going_on: set[str]) -> StudyRun | None:
    """Take the first run that need not wait for the run that it starts from; None if all must."""
    unfinished = going_on | {run.folder for run in waiting}
    run = next((run for run in waiting if run.start not in unfinished), None)
    assert run is not None or going_on or not waiting, "runs wait for each other"
    if run is not None:
        waiting.remove(run)
    return run


def read_finished(run: StudyRun, out: Path, read: Read, failed: Sequence[str]) -> RunOutcome | None:
    """Return the outcome of a run that needs no child; None if it does. A folder of another recipe is a failure."""
    try:
        require_start(run, failed)
        return make_run(run, out, read) if is_done(run, out) else None
    except (StartMissing, ValueError) as error:
        return RunOutcome(run, None, error=error)


def start_child(run: StudyRun, out: Path, read: Read) -> dict[Connection, Child]:
    """Start the child process of a run; return it by the connection on which it will answer."""
    connection, answer = SERVER.Pipe(duplex=False)
    assert isinstance(connection, Connection)  # and not a named pipe, which only Windows has
    SERVER.set_forkserver_preload([*PRELOADED])
    sent = replace(run, dataset=None, checkpoint=None)  # which may hold what cannot be sent
    log = out / f"{run.folder}.log"
    arguments = (sent, out, read, log, answer)
    process = SERVER.Process(target=begin, args=(Path.cwd(), dict(os.environ), *arguments), name=run.folder)
    process.start()
    answer.close()  # or the connection would not end with the child
    return {connection: Child(run, process, log)}


def hear_child(child: Child, connection: Connection) -> RunOutcome | None:
    """Return what became of a child that has answered or ended; None if it ended before its run began, as it was told."""
    try:
        answer = connection.recv()
    except (EOFError, OSError):  # it was killed, perhaps while it answered
        answer = None
    connection.close()
    child.process.join()
    if isinstance(answer, tuple):
        return RunOutcome(child.run, *answer)
    if answer is None and child.is_told:
        return None
    return RunOutcome(child.run, None, error=RunFailed(describe_end(child) if answer is None else answer))


def describe_end(child: Child) -> str:
    """Return why a process ended without an answer."""
    code = child.process.exitcode
    if code is not None and code < 0:
        cause = ", perhaps because memory ran out" if code == -signal.SIGKILL else ""
        return f"Its process was ended by {signal.Signals(-code).name}{cause}: the same command continues the run."
    return f"Its process ended with status {code}: see {child.log}; the same command continues the run."


def begin(folder: Path, environment: dict[str, str], *arguments: Any) -> None:
    """In a child process: take over the parent's present folder and environment. The server has those of its start."""
    os.chdir(folder)
    os.environ.update(environment)
    run_in_child(*arguments)


def run_in_child(run: StudyRun, out: Path, read: Read, log: Path, answer: Connection) -> None:
    """In a child process: make a run with one thread, and answer with summary and reading, or the sentence of its error."""
    follow_parent()
    torch.set_num_threads(1)
    write_output_to(log)
    try:
        outcome = make_run(run, out, read)
        answer.send((outcome.summary, outcome.reading))
    except OSError as error:
        answer.send(describe_os_error(error))
    except ValueError as error:
        answer.send(str(error))
    except Exception as error:  # a mistake of ours, which must not be lost
        traceback.print_exc()
        answer.send(f"{type(error).__name__}: {error}; see {log}.")


def write_output_to(path: Path) -> None:
    """Append all output of this process to a file: progress of several runs at once cannot be read in a terminal."""
    make_folder(path.parent)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Limit the threads of libraries in processes that are started in this block: they read it when they are imported."""
    before = os.environ.get(THREAD_LIMIT)
    os.environ[THREAD_LIMIT] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[THREAD_LIMIT]
        else:
            os.environ[THREAD_LIMIT] = before
