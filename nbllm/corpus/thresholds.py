"""What a stage would drop with other thresholds, decided from the scores that a cleaning stored; no text is measured.

Only the stage itself is decided again: later stages would see other documents, and recomputing them is a new cleaning.
Of the stages that compare documents `dedup minhash` decides again from the pairs that it verified.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nbllm.corpus.examples import Examples
from nbllm.corpus.stage import Stage
from nbllm.corpus.stages import parse_stages
from nbllm.errors import NbllmError, UsageError, did_you_mean


@dataclass(frozen=True, kw_only=True)
class WouldDrop:
    """A stage's decisions with other thresholds."""

    line: str
    """The stage with these thresholds, to be typed into a cell."""
    came_in: int
    """Documents that reached the stage."""
    documents: int
    """It would drop so many …"""
    bytes: int
    """… of so many bytes, of the texts as they are kept now."""
    documents_before: int
    bytes_before: int
    reasons: Mapping[str, int]
    """Documents by reason, the most frequent first."""
    now_dropped: Examples
    """Some of those that were kept and would go."""
    now_kept: Examples
    """Some of those that were dropped and would stay."""

    def __repr__(self) -> str:
        why = "; ".join(f"{reason} {count:,}" for reason, count in self.reasons.items())
        return (
            f"{self.line}: would drop {self.documents:,} of {self.came_in:,} documents ({self.bytes:,} bytes) instead "
            f"of {self.documents_before:,} ({self.bytes_before:,} bytes)" + (f": {why}" if why else "")
        )


def moved(line: str, thresholds: Mapping[str, Any]) -> Stage:
    """A stage with other thresholds.

    Args:
        line: the stage as the corpus's manifest keeps it.
        thresholds: values by the names of its arguments.

    Raises:
        UsageError: the stage has no such threshold.
    """
    try:
        (stage,) = parse_stages([line])
    except NbllmError:
        raise UsageError(f"{line.split()[0]} has no threshold to move") from None
    if not stage.HANDLES:
        raise UsageError(f"{stage.NAME} has no threshold that can move over stored scores", next="Clean again")
    for name in thresholds:
        if name not in stage.thresholds():
            raise UsageError(
                f"{stage.NAME} has no threshold {name!r}",
                next=did_you_mean(name, stage.thresholds()) or f"It has {', '.join(stage.thresholds())}",
            )
    return dataclasses.replace(stage, **thresholds)


def decide_again(
    stage: Stage, scores: pa.Table, keep: NDArray[np.bool_] | None = None
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], dict[str, int]]:
    """Which documents a stage dropped, which it would drop, and how many for each reason.

    Args:
        stage: with its new thresholds.
        scores: as stored, with `row` and `reason`.
        keep: marks documents that no threshold drops.
    """
    columns = [name for name in scores.column_names if name not in ("row", "reason")]
    # one large batch: a decision is a few kernels, whose calls cost more than their work on small ones
    parts = [stage.decide(batch) for batch in scores.select(columns).combine_chunks().to_batches()]
    before = pc.is_valid(scores["reason"]).to_numpy(zero_copy_only=False)
    # a text that an edit left empty is dropped by no threshold
    empty = pc.fill_null(pc.equal(scores["reason"], "empty"), False)
    found = pa.chunked_array(parts, pa.string())
    found = pc.if_else(pc.and_(empty, pc.is_null(found)), "empty", found)
    if keep is not None:
        found = pc.if_else(keep, pa.scalar(None, pa.string()), found)
    after = pc.is_valid(found).to_numpy(zero_copy_only=False)
    counted = sorted(pc.value_counts(found.drop_null()).to_pylist(), key=lambda one: (-one["counts"], one["values"]))
    return before, after, {one["values"]: one["counts"] for one in counted}
