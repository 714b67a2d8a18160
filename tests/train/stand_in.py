"""Helpers for tests of runs whose worker is a stand-in."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from nbllm.train import locks
from nbllm.train.run import Run

FAKE = Path(__file__).with_name("fake_worker.py")


def fake(*options: object) -> list[str]:
    """The command of a stand-in worker."""
    return [sys.executable, str(FAKE), *map(str, options)]


def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Waits for a condition; fails when it doesn't come true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it didn't happen in time"
        time.sleep(0.02)


def kill(*processes: object) -> None:
    """SIGKILL to processes named by a run's state."""
    for one in processes:
        if one is not None and one.process() is not None:
            one.process().kill()


def held(run: Run) -> bool:
    """Whether the supervisor of a run lives."""
    return locks.is_held(run.folder / locks.SUPERVISOR_LOCK)
