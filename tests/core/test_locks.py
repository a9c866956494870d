"""Locks between processes, which end with their holder."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vitrine.core.console import VitrineWarning
from vitrine.core.locks import exclusive_lock

HOLD = """
import os, sys
from pathlib import Path
from vitrine.core.locks import exclusive_lock
with exclusive_lock(Path(sys.argv[1]), "the run"):
    is_child = sys.argv[2:] == ["fork"] and os.fork() == 0
    os.write(1, b"child\\n" if is_child else b"held\\n")
    sys.stdin.read()
    if is_child:
        os._exit(0)
"""


@contextmanager
def held(path: Path, *words: str) -> "Iterator[subprocess.Popen[str]]":
    """Run a process that holds the lock during the block."""
    command = [sys.executable, "-c", HOLD, str(path), *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert sorted(process.stdout.readline() for _ in range(1 + len(words))) == ["child\n"] * len(words) + ["held\n"]
        yield process


def test_the_second_process_is_told_who_holds_the_lock(tmp_path: Path) -> None:
    with held(tmp_path / "lock") as process:
        holder = rf"the run .*process {process.pid}"
        with pytest.raises(BlockingIOError, match=holder), exclusive_lock(tmp_path / "lock", "the run"):
            pass
    with exclusive_lock(tmp_path / "lock", "the run"):
        assert str(os.getpid()) in (tmp_path / "lock").read_text()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [(), ("fork",)], ids=["alone", "with a child that lives on"])
def test_a_killed_process_gives_up_its_lock(words: tuple[str, ...], tmp_path: Path) -> None:
    with held(tmp_path / "lock", *words) as process:
        process.kill()
        assert process.wait() == -signal.SIGKILL
        assert (tmp_path / "lock").exists()
        with exclusive_lock(tmp_path / "lock", "the run"):
            pass
    assert list(tmp_path.iterdir()) == []


def test_a_lock_holds_within_a_process_too(tmp_path: Path) -> None:
    with (
        exclusive_lock(tmp_path / "lock", "the run"),
        pytest.raises(BlockingIOError, match=str(os.getpid())),
        exclusive_lock(tmp_path / "lock", "the run"),
    ):
        pass


def test_a_file_that_its_holder_has_just_removed_is_not_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file was opened before it was removed, and is locked after: another process would lock its successor."""
    flock, calls = fcntl.flock, []

    def flock_late(descriptor: int, operation: int) -> None:
        calls.append(descriptor)
        if len(calls) == 1:
            (tmp_path / "lock").unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock_late)
    with exclusive_lock(tmp_path / "lock", "the run"):
        assert len(calls) == 2
        with pytest.raises(BlockingIOError, match="the run"), exclusive_lock(tmp_path / "lock", "the run"):
            pass


def test_a_file_system_without_locks_costs_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.warns(VitrineWarning, match="cannot be locked"), exclusive_lock(tmp_path / "lock", "the run"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="the run"), exclusive_lock(tmp_path / "missing" / "lock", "the run"):
        pass
