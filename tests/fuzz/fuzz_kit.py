"""What the fuzz tests share: how many cases, and the bounds that one of them may not cross."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import HealthCheck, settings

CASES = 100
MANY = 2000
SECONDS = 60
"""Of one case, on a busy machine: more is a hang."""


def cases(count: int) -> settings:
    """So many cases: in the fast tier always the same ones, so that a failure isn't a matter of luck."""
    return settings(
        max_examples=count,
        deadline=None,
        derandomize=count == CASES,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@contextmanager
def bounded(seconds: int = SECONDS, gigabytes: float = 16.0) -> Iterator[None]:
    """A case that takes longer, or wants more memory, fails instead of holding everything up."""

    def late(*_: object) -> None:
        raise AssertionError(f"it hangs: more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (int(gigabytes * 2**30), limits[1]))
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, limits)


def one_line(error: Exception, *names: str) -> None:
    """Checks that an error is one line that can be shown, and that it names these."""
    said = str(error)
    assert said.strip()
    assert "\n" not in said
    assert len(said) < 2000
    said.encode("utf-8")
    for name in names:
        assert name in said
