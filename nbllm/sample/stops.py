"""Ending before a stop text, wherever the borders of tokens or pieces fall.

Knows text only. What might be the beginning of a stop text is held back until it is certain.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopTexts:
    """Lets text through up to the first stop text that is complete; what comes out never holds a part of it.

    Which stop text ends a text doesn't depend on how it is cut into pieces: it is the one that is complete first, the
    longest where several end together.

    Args:
        stops: texts that aren't empty; none lets everything through at once.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None
        """The stop text that was met."""

    def push(self, piece: str) -> str:
        """The text that is certain now; nothing any more once a stop text was met."""
        if self.found is not None:
            return ""
        text = self._held + piece
        matches = [(text.find(stop) + len(stop), -len(stop), stop) for stop in self._stops if stop in text]
        if matches:
            end, _, self.found = min(matches)
            self._held = ""
            return text[: end - len(self.found)]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was held back, once no more text comes."""
        rest, self._held = self._held, ""
        return rest


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`, and not all of it."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)
