"""Locks that say which processes of a run live: flock on a file, gone the moment the holder is gone, however it went.

A pid can be a zombie or belong to somebody else by now; a lock can't. The lock belongs to the open file, so a process
that inherits it would keep it alive: children started by `subprocess` don't inherit it (PEP 446), and forked ones close
it at once. Knows nothing of what a run is, but the names of its lock files. Source: flock(2).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
import weakref
from pathlib import Path

SUPERVISOR_LOCK = "supervisor.lock"
_RETRY_S = 0.02

_held: weakref.WeakSet[Lock] = weakref.WeakSet()


def worker_lock(rank: int) -> str:
    """The file name of the lock that the worker of a rank holds."""
    return f"worker-{rank}.lock"


class Lock:
    """A lock that this process holds until `release` or its end.

    Args:
        descriptor: the open, locked file.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        os.set_inheritable(descriptor, False)
        _held.add(self)

    def release(self) -> None:
        """Gives the lock up; a second call does nothing."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def take(path: Path, *, wait_s: float = 1.0) -> Lock | None:
    """Takes the lock for itself alone, making the file if need be; None when another holds it for all of `wait_s`.

    The short wait lets a look of `is_held` pass, which shares the lock for a moment.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    deadline = time.monotonic() + wait_s
    while not _try(descriptor, fcntl.LOCK_EX):
        if time.monotonic() >= deadline:
            os.close(descriptor)
            return None
        time.sleep(_RETRY_S)
    return Lock(descriptor)


def is_held(path: Path) -> bool:
    """Whether some process, this one included, holds the lock."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _try(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def held_workers(folder: Path) -> list[int]:
    """Ranks whose workers live, in order."""
    ranks = []
    for path in folder.glob("worker-*.lock"):
        rank = path.stem.removeprefix("worker-")
        if rank.isdecimal() and is_held(path):
            ranks.append(int(rank))
    return sorted(ranks)


def _try(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    return True


def _forget() -> None:
    for lock in list(_held):
        with contextlib.suppress(OSError):
            lock.release()


os.register_at_fork(after_in_child=_forget)
