"""Exclusive use of a file or folder by one process, by a lock of the operating system that ends with the process."""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from vitrine.core.console import warn_user

MAX_HOLDER_BYTES = 200
HELD: set[int] = set()  # descriptors of the locks of this process


@contextmanager
def exclusive_lock(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file `path` during the block; BlockingIOError names the process that holds it already.

    `what` says in messages what the lock protects. The file names its holder and is removed at the end. A killed process leaves
    it behind without the lock, so that the next process can take it.
    """
    close_in_children()
    descriptor = open_locked(path, what)
    if descriptor is None:
        yield
        return
    HELD.add(descriptor)
    try:
        yield
    finally:
        HELD.remove(descriptor)
        path.unlink(missing_ok=True)  # before the lock is released: a file that another process holds is never removed
        os.close(descriptor)


def open_locked(path: Path, what: str) -> int | None:
    """Open and lock a lock file and write who holds it; None, with a warning, where the file system has no locks."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise OSError(f"Cannot write {what} ({error.strerror}): choose another path.") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, MAX_HOLDER_BYTES).decode(errors="replace").strip() or "another process"
            os.close(descriptor)
            raise BlockingIOError(f"{what} is in use by {holder}: wait until it has ended, or choose another path.") from None
        except OSError as error:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            warn_user(f"{what} cannot be locked ({error.strerror}): make sure that no other process writes to it.")
            return None
        if is_open_at(descriptor, path):
            with suppress(OSError):  # a full disk
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
            return descriptor
        os.close(descriptor)  # its last holder has removed it from the folder meanwhile


def is_open_at(descriptor: int, path: Path) -> bool:
    """Return whether the open file is still the one at the path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


@cache
def close_in_children() -> None:
    """Let forked processes give up the locks of their parent, which would otherwise outlive it. Registered once."""

    def close_all() -> None:
        for descriptor in HELD:
            os.close(descriptor)
        HELD.clear()

    os.register_at_fork(after_in_child=close_all)
