"""A stage's stored scores, held ready so that a threshold can be dragged: histograms, counts, overlap, neighbours.

Everything is decided from scores; no text is measured. Texts are looked up only for the few that are shown. As in
`thresholds.py` only the stage itself is decided again: later stages are recomputed by a new cleaning.

Legend: D documents that reached the stage, R rules, B bins.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nbllm.corpus.stage import Handle, Stage
from nbllm.corpus.thresholds import decide_again, moved

BINS = 48
_SKEWED = 30
"""Where the largest value is so many times the middle one, bins grow with the value."""


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """How a score is distributed, for one handle."""

    handle: Handle
    limit: float | None
    """Where the threshold stands; None: there is none."""
    edges: NDArray[np.float64]
    """[B + 1]: rising; what lies outside is counted in the first and last bin."""
    documents: NDArray[np.int64]
    """[B]: documents in each bin."""
    whole: bool
    """The score counts things: a threshold is a whole number."""


@dataclass(frozen=True, kw_only=True)
class Count:
    """What a stage drops with some thresholds, without examples."""

    came_in: int
    documents: int
    bytes: int
    documents_before: int
    bytes_before: int
    reasons: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """Which rules of a stage hit the same documents, whatever rule came first."""

    reasons: tuple[str, ...]
    documents: NDArray[np.int64]
    """[R, R]: documents that both rules would drop; on the diagonal those of one rule."""
    alone: NDArray[np.int64]
    """[R]: documents that only this rule would drop."""


class Moving:
    """The scores of one stage of a corpus.

    Args:
        line: the stage as the corpus's manifest keeps it.
        scores: as stored, with `row` and `reason`.
        sizes: bytes of each document by its `row`.
        keep: marks documents that no threshold drops.
        tables: the stage's further tables.
    """

    def __init__(
        self,
        line: str,
        scores: pa.Table,
        sizes: NDArray[np.int64],
        keep: NDArray[np.bool_] | None = None,
        tables: Mapping[str, pa.Table] | None = None,
    ) -> None:
        self._tables = tables or {}
        self._keep = keep
        self._line = line
        self._scores = scores.combine_chunks()
        self.rows: NDArray[np.int64] = self._scores["row"].to_numpy()
        self._sizes = sizes[self.rows]
        self.stage: Stage = moved(line, {})

    @cached_property
    def histograms(self) -> list[Histogram]:
        """One for each handle of the stage."""
        return [self._histogram(handle) for handle in self.stage.HANDLES]

    def values(self, score: str) -> NDArray[np.float64]:
        """[D]: a score, NaN where there is none."""
        return self.stage.measured(score, self._scores, self._tables)

    def count(self, thresholds: Mapping[str, Any]) -> Count:
        """What the stage would drop with other thresholds; raises UsageError for one that it doesn't have."""
        stage = moved(self._line, thresholds)
        before, after, reasons = decide_again(stage, stage.scores_again(self._scores, self._tables), self._keep)
        return Count(
            came_in=len(before),
            documents=int(np.count_nonzero(after)),
            bytes=int(self._sizes[after].sum()),
            documents_before=int(np.count_nonzero(before)),
            bytes_before=int(self._sizes[before].sum()),
            reasons=reasons,
        )

    def overlap(self, thresholds: Mapping[str, Any]) -> Overlap:
        """Which rules hit together, with these thresholds."""
        stage = moved(self._line, thresholds)
        size = len(self.rows)
        masks, names = [], []
        for batch in stage.scores_again(self._scores, self._tables).to_batches():
            found = stage.rules(batch)
            names = [reason for _, reason in found]
            masks.append(np.array([_bools(mask) for mask, _ in found], np.float32).reshape(len(found), len(batch)))
        hits = np.concatenate(masks, axis=1) if masks else np.zeros((0, size), np.float32)
        together = np.rint(hits @ hits.T).astype(np.int64)
        single = hits.sum(axis=0) == 1
        return Overlap(reasons=tuple(names), documents=together, alone=hits[:, single].sum(axis=1).astype(np.int64))

    def beside(self, handle: Handle, limit: float, count: int) -> tuple[list[int], list[int]]:
        """Rows of the documents closest to a threshold: those that its rule drops, and those that it keeps."""
        values = self.values(handle.score)
        # as the rule compares: least drops below, most above
        distance = (limit - values) if handle.least else (values - limit)
        found = []
        for side in (np.flatnonzero(distance > 0), np.flatnonzero(distance <= 0)):
            order = np.argsort(np.abs(distance[side]), kind="stable")[:count] if len(side) <= 4 * count else _closest(
                np.abs(distance[side]), count
            )  # fmt: skip
            found.append(self.rows[side[order]].tolist())
        return found[0], found[1]

    def _histogram(self, handle: Handle) -> Histogram:
        column = self._scores[handle.score]
        whole = pa.types.is_integer(column.type)
        values = self.values(handle.score)
        values = values[np.isfinite(values)]
        limit = self.stage.limit(handle.argument)
        edges = _edges(values, None if limit is None else float(limit), whole)
        clipped = np.clip(values, edges[0], np.nextafter(edges[-1], -math.inf))
        return Histogram(
            handle=handle,
            limit=None if limit is None else float(limit),
            edges=edges,
            documents=np.histogram(clipped, edges)[0].astype(np.int64),
            whole=whole,
        )


def _closest(distance: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    near = np.argpartition(distance, count)[:count]
    return np.asarray(near[np.lexsort((near, distance[near]))], np.int64)


def _edges(values: NDArray[np.float64], limit: float | None, whole: bool) -> NDArray[np.float64]:
    """Bins over the middle 99 % of the values and the threshold; they grow with the value where values are skewed."""
    if not len(values):
        values = np.array([0.0, 1.0])
    low, middle, high = np.quantile(values, [0.0, 0.5, 0.99]).tolist()
    largest = float(values.max())
    if high <= low:
        high = largest
    if limit is not None and limit <= max(4 * high, 1.0):
        # a threshold far beyond every value would squeeze them into one bin
        low, high = min(low, limit), max(high, limit * 1.1)
    if high <= low:
        high = low + 1.0
    if low >= 0 and high > _SKEWED * max(middle, 1.0):
        edges = np.geomspace(low + 1, high + 1, BINS + 1) - 1
    else:
        edges = np.linspace(low, high, BINS + 1)
    if whole:
        edges = np.unique(np.floor(edges))
        edges = np.append(edges, edges[-1] + 1)
    return np.asarray(edges, np.float64)


def _bools(mask: Any) -> NDArray[np.bool_]:
    if isinstance(mask, (pa.Array, pa.ChunkedArray)):
        return np.asarray(mask.fill_null(False).to_numpy(zero_copy_only=False), bool)
    return np.asarray(mask, bool)
