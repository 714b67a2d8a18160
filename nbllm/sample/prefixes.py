"""Keys and values of texts that were run, kept for the next call that begins alike.

Keyed by the weights (their identity and version, and the adapter) and the ids themselves, never by a name. Logits at
the end of a prompt are kept too, so that sampling it again computes nothing of it twice. Bounded by bytes.

Legend: V tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from nbllm.sample.slots import Slots

MOST_BYTES = 2**29
"""512 MiB: 23,000 tokens of a model of 135 million parameters in bfloat16."""


@dataclass(eq=False)
class _Entry:
    weights: Hashable
    ids: NDArray[np.int64]
    slots: Slots
    logits: dict[int, Tensor] = field(default_factory=dict)
    """After so many ids, those of the next token, float32 [1, V]."""

    @property
    def size_bytes(self) -> int:
        return self.slots.size_bytes + sum(logits.nbytes for logits in self.logits.values())


class Prefixes:
    """The texts of one model, the last used last.

    Args:
        most_bytes: keep no more than this.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._entries: list[_Entry] = []

    @property
    def size_bytes(self) -> int:
        """Memory they take."""
        return sum(entry.size_bytes for entry in self._entries)

    @property
    def tokens(self) -> int:
        """Ids they hold together."""
        return sum(len(entry.ids) for entry in self._entries)

    def take(self, weights: Hashable, ids: Sequence[int]) -> tuple[Slots | None, Tensor | None]:
        """A copy of the longest beginning that is there, and the next token's logits where it is the whole text.

        At least the last id is left to be run, unless its logits are there.
        """
        wanted = np.asarray(ids, dtype=np.int64)
        best, most = None, 0
        for entry in self._entries:
            if entry.weights != weights:
                continue
            common = _common(entry.ids, wanted)
            if common == len(wanted) and common in entry.logits:
                self._use(entry)
                return entry.slots.prefix(common), entry.logits[common]
            if min(common, len(wanted) - 1) > most:
                best, most = entry, min(common, len(wanted) - 1)
        if best is None:
            return None, None
        self._use(best)
        return best.slots.prefix(most), None

    def put(self, weights: Hashable, ids: Sequence[int], slots: Slots, logits: dict[int, Tensor]) -> None:
        """Keeps the first row's text. The buffers are shared with whoever goes on after these ids.

        Args:
            weights: of which weights.
            ids: those that are in `slots`.
            slots: with one row.
            logits: float32 [1, V] after so many ids.
        """
        entry = _Entry(weights=weights, ids=np.asarray(ids, dtype=np.int64), slots=slots.shared(), logits=dict(logits))
        kept = []
        for other in self._entries:
            if other.weights == weights and _common(other.ids, entry.ids) == len(other.ids):
                entry.logits = other.logits | entry.logits  # it is a beginning of the new one
            else:
                kept.append(other)
        self._entries = [*kept, entry]
        while self._entries and self.size_bytes > self._most_bytes:
            self._entries.pop(0)

    def clear(self) -> None:
        """Forgets everything."""
        self._entries.clear()

    def _use(self, entry: _Entry) -> None:
        self._entries.remove(entry)
        self._entries.append(entry)


def _common(one: NDArray[np.int64], other: NDArray[np.int64]) -> int:
    """Length of their common beginning."""
    size = min(len(one), len(other))
    different = np.flatnonzero(one[:size] != other[:size])
    return int(different[0]) if len(different) else size
