"""How far a cleaning is, in calm lines: documents of a step, how fast, and about how long that step and all the others
still take."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

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
        self._expected: dict[str, float] = {}
        self._over: dict[str, float] = {}

    def expect(self, seconds: Sequence[tuple[str, float]]) -> None:
        """Takes an estimate of each step, in order, so that the time left of all steps can be told."""
        self._expected = dict(seconds)

    def __call__(self, step: str, done: int, total: int | None) -> None:
        now = self._clock()
        if step != self._step:
            if self._step is not None:
                self._over[self._step] = now - self._begun
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
                left = max(0, total - done) / speed
                text += f", about {time_text(left)} left of this step"
                later = self._later(step, seconds + left)
                if later:
                    text += f", {time_text(left + later)} of all"
        self._say(text)

    def _later(self, step: str, seconds: float) -> float:
        """Of the steps after this one: what was expected, by as much more or less as the steps so far took."""
        if step not in self._expected:
            return 0.0
        steps = list(self._expected)
        after = sum(self._expected[name] for name in steps[steps.index(step) + 1 :])
        took = seconds + sum(self._over.get(name, 0.0) for name in self._expected)
        expected = self._expected[step] + sum(self._expected[name] for name in self._over if name in self._expected)
        return after * min(10.0, max(0.1, took / expected)) if expected > 0 else after


def time_text(seconds: float) -> str:
    """A time as one reads it at a glance: `40 s`, `12 min`, `1.6 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
