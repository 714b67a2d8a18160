"""A panel's thread: it does the newest wish, and whoever does one can see that a newer one came.

A wish that another replaced before the thread looked is never done. Knows neither pages nor sessions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Wish = TypeVar("Wish")
_QUIET_S = 1.0


class Wishes(Generic[Wish]):
    """The newest wish, done one at a time.

    Args:
        name: of the panel.
        do: called with a wish, and with a function that says whether it is out of date; shows its own errors.
        rest: called once, a second after a wish, where no newer one has come.
    """

    def __init__(self, name: str, do: Callable[[Wish, Callable[[], bool]], None], *, rest: Callable[[], None]) -> None:
        self._do, self._rest = do, rest
        self._wish: Wish | None = None
        self._number = 0
        self._ended = False
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"nbllm-panel-{name}", daemon=True)

    def start(self) -> None:
        """Begins to listen."""
        self._thread.start()

    def want(self, wish: Wish | None) -> None:
        """Makes what is under way out of date, and does this next (None: nothing)."""
        with self._lock:
            self._number += 1
            self._wish = wish
        self._wake.set()

    def end(self) -> None:
        """Ends the thread, after what is under way."""
        self._ended = True
        self.want(None)

    def _work(self) -> None:
        restless = False
        while not self._ended:
            if not self._wake.wait(_QUIET_S if restless else None):
                restless = False
                self._rest()
                continue
            self._wake.clear()
            with self._lock:
                number, wish, self._wish = self._number, self._wish, None
            if wish is not None and not self._ended:
                self._do(wish, lambda number=number: self._number != number)  # type: ignore[misc]
                restless = True
