"""How far a cleaning is, in calm lines: documents of a step, how fast, and about how long that step still takes."""

from __future__ import annotations

import time
from collections.abc import Callable

_FIRST_S = 5.0
_EVERY_S = 10.0


class CalmProgress:
    """A `progress` for `clean` that says a line now and then; a short cleaning says none.

    Args:
        say: shows a line.
        clock: seconds that only grow.
    """

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._clock = clock
        self._step: str | None = None
        self._begun = clock()
        self._next = self._begun + _FIRST_S

    def __call__(self, step: str, done: int, total: int | None) -> None:
        now = self._clock()
        if step != self._step:
            self._step, self._begun = step, now
        if now < self._next:
            return
        self._next = now + _EVERY_S
        seconds = now - self._begun
        speed = done / seconds if seconds > 0 else 0.0
        text = f"{step}: {done:,} " + (f"of {max(total, done):,} documents" if total else "documents")
        if speed:
            text += f", {speed:,.0f}/s"
            if total:
                text += f", about {_time(max(0, total - done) / speed)} left of this step"
        self._say(text)


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
