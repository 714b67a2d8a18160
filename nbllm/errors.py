"""The errors nbllm raises on purpose: one line that says what was wrong, what was received and what to type next.

Knows nothing of Jupyter: `_render_traceback_` is a plain method that IPython happens to ask for, so that an error of
this kind shows as one line in a notebook while it still fails the cell.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from nbllm.plain import plain


class NbllmError(Exception):
    """A mistake that its reader can mend.

    Args:
        what: what was wrong, as a sentence without a full stop.
        received: the value received, shown by `repr` (cut at 200 characters); leave it out where `what` names it.
        next: what to type next, as a sentence without a full stop.
    """

    def __init__(self, what: str, *, received: object = None, next: str | None = None) -> None:
        self.what = what
        self.received = received
        self.next = next
        super().__init__(self._line())

    def _line(self) -> str:
        line = self.what
        if self.received is not None:
            shown = repr(self.received)
            line += f" (received {shown if len(shown) <= 200 else shown[:199] + '…'})"
        if self.next:
            line += f". {self.next}"
        line = plain(" ".join(line.split()))
        return line if line.endswith(("?", "…")) else line.rstrip(".") + "."

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


class UsageError(NbllmError):
    """A line or a call that asks for something that doesn't exist or doesn't fit together."""


class NotFoundError(NbllmError):
    """An artefact, a file or a variable that isn't there."""


class DataError(NbllmError):
    """Text, a file or a corpus that can't be used as it is."""


class StoreError(NbllmError):
    """The store refuses: a name in use by a different content, a lock held by somebody else, a damaged artefact."""


class RunError(NbllmError):
    """A training run that couldn't start, failed or died."""


class Interrupted(KeyboardInterrupt):
    """An interrupt by the user that shows as one line; it is still a KeyboardInterrupt, so that the cell fails.

    Args:
        what: what was kept or goes on, and what to type next.
        result: what there was when it came.
    """

    def __init__(self, what: str, result: object = None) -> None:
        self.result = result
        super().__init__(what)

    def _render_traceback_(self) -> list[str]:
        return [f"Interrupted: {self}"]


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """The hint for a mistyped name: the nearest known one, else the list of all, as a sentence.

    Args:
        name: what was typed.
        known: the names that exist.

    Returns:
        A sentence for `NbllmError(next=…)`, or None where nothing is known.
    """
    names = sorted(set(known))
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if near:
        return f"Did you mean {near[0]}?"
    if not names:
        return None
    return "Known: " + ", ".join(names[:30]) + (", …" if len(names) > 30 else "")
