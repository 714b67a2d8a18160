"""What a stage does to one batch: scores, a decision, and what stays. Knows nothing of where batches come from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from nbllm.corpus.documents import SCHEMA
from nbllm.corpus.stage import GlobalStage, Outcome, Stage, scores_of

READ = "read"
"""The name of what stands before the first stage; it drops what is empty as it comes."""
Chain = Sequence[tuple[int, Stage]]
"""Local stages with their numbers, in order."""


@dataclass(frozen=True)
class Step:
    """What one stage did to one batch."""

    stage: int
    before: pa.RecordBatch
    scores: pa.RecordBatch
    reasons: pa.Array
    after: pa.RecordBatch


@dataclass(frozen=True)
class Done:
    """A batch that went through a chain."""

    batch: pa.RecordBatch
    """What stays of it."""
    steps: list[Step]
    """What each stage did, also those before the chain."""
    keys: pa.RecordBatch | None
    """What the global stage that follows wants of it; None where nothing stays, or none follows."""


class Runner(Protocol):
    """Applies a chain of local stages to batches; may use other processes, keeps the order.

    Batches come with the steps that were done on them before; the keys of the global stage that follows are made too.
    """

    def __call__(
        self, chain: Chain, following: GlobalStage | None, stream: Iterable[tuple[pa.RecordBatch, list[Step]]]
    ) -> Iterator[Done]: ...


def run_here(
    chain: Chain,
    following: GlobalStage | None,
    stream: Iterable[tuple[pa.RecordBatch, list[Step]]],
    *,
    keep: pa.Array | None = None,
) -> Iterator[Done]:
    """The runner of this process."""
    for batch, steps in stream:
        after, more = run_chain(chain, batch, keep)
        yield Done(after, [*steps, *more], following.keys(after) if following is not None and len(after) else None)


def run_chain(chain: Chain, batch: pa.RecordBatch, keep: pa.Array | None = None) -> tuple[pa.RecordBatch, list[Step]]:
    """One batch through local stages: what stays of it, and what each stage did."""
    steps = []
    for number, stage in chain:
        if not len(batch):
            break
        outcome = stage.measure(batch)
        step = apply_outcome(number, batch, outcome, stage.decide(outcome.scores), keep)
        steps.append(step)
        batch = step.after
    return batch, steps


def apply_outcome(
    number: int, batch: pa.RecordBatch, outcome: Outcome, reasons: pa.Array, keep: pa.Array | None = None
) -> Step:
    """What a stage's outcome and decision make of a batch; a text that an edit left without a character is `empty`.

    A document whose id is in `keep` stays whatever the reason, with its text as it was where an edit left none.
    """
    texts = batch["text"] if outcome.texts is None else outcome.texts
    blank = pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(texts)), 0)
    if keep is not None:
        wanted = pc.is_in(batch["id"], keep)
        reasons = pc.if_else(wanted, pa.scalar(None, pa.string()), reasons)
        if outcome.texts is not None:
            lost = pc.and_(wanted, blank)
            texts = pc.if_else(lost, batch["text"], texts)
            outcome = Outcome(outcome.scores, texts)
            blank = pc.and_(blank, pc.invert(lost))
    if pc.any(blank).as_py():
        reasons = pc.if_else(pc.and_(blank, pc.is_null(reasons)), pa.scalar("empty", pa.string()), reasons)
    after = batch
    if outcome.texts is not None:
        after = after.set_column(SCHEMA.get_field_index("text"), "text", texts)
    if reasons.null_count != len(reasons):
        after = after.filter(pc.is_null(reasons))
    return Step(number, batch, outcome.scores, reasons, after)


def allow_list(ids: Iterable[str]) -> pa.Array | None:
    """Ids as an array to look into; None for none."""
    found = sorted(set(ids))
    return pa.array(found, pa.string()) if found else None


class Read(Stage):
    """Measures nothing: `apply_outcome` drops what is empty."""

    NAME = READ
    SUMMARY = "drops what is empty as it comes"

    def measure(self, batch: pa.RecordBatch) -> Outcome:
        return Outcome(scores_of(len(batch)))
