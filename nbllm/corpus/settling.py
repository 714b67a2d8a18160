"""What a global stage finds over all documents, kept on disk, and the batches that go on after it.

A stage settles once: its scores, the split keys of groups and further tables are written, then the documents go on
batch by batch, from whichever batch is asked for. Knows nothing of the local stages around it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nbllm.corpus.documents import SCHEMA
from nbllm.corpus.stage import GlobalStage, Outcome, scores_of
from nbllm.corpus.steps import Step, apply_outcome
from nbllm.corpus.streams import Streams

SPLIT_KEY, COPIES = "·split_key", "·copies"
"""Columns beside the scores of a settled stage; no score is named so."""


def settle(stage: GlobalStage, streams: Streams, spill: str, keys: str, target: str, tables: str) -> None:
    """Settles a stage over a spilled table and its keys.

    Args:
        stage: the global stage.
        streams: where everything lies.
        spill: the table of documents that reached the stage.
        keys: what the stage's `keys` gave for them.
        target: the table that is written: a row a document.
        tables: what the names of further tables begin with.
    """
    batches = streams.read(spill)
    if not batches:
        return
    settled = stage.settle(pa.Table.from_batches(streams.read(keys)), SpilledTexts(batches))
    for name, table in settled.tables.items():
        streams.write_table(f"{tables}.{name}", table)
    found = settled.scores
    smallest = _smallest_keys(batches, settled.groups)
    if smallest is not None:
        found = found.append_column(SPLIT_KEY, pa.array(smallest))
    if settled.copies is not None:
        found = found.append_column(COPIES, pa.array(settled.copies))
    streams.write_table(target, found)


def settled_batches(
    number: int, stage: GlobalStage, streams: Streams, spill: str, target: str, keep: pa.Array | None, start: int
) -> Iterator[tuple[pa.RecordBatch, list[Step]]]:
    """The documents after a settled stage, each batch with the step that the stage is; those that a stage repeats
    come once more in a later pass over all, so that copies don't lie side by side.

    Args:
        number: of the stage.
        stage: the global stage.
        streams, spill, target: as `settle` took them.
        keep: ids of documents that no stage drops.
        start: how many batches to leave out.
    """
    batches = streams.read(spill)
    if not batches:
        return
    table = pa.Table.from_batches(streams.read(target))
    ends = np.cumsum([len(batch) for batch in batches])
    names = [name for name in table.column_names if name not in (SPLIT_KEY, COPIES)]
    most = 1
    if COPIES in table.column_names:
        most = max(1, max(chunk.to_numpy().max(initial=0) for chunk in table[COPIES].chunks))
    for place in range(start, most * len(batches)):
        turn, index = divmod(place, len(batches))
        batch = batches[index]
        part = _rows(table.slice(int(ends[index]) - len(batch), len(batch)))
        if turn:
            yield _again(number, batch.filter(pa.array(part[COPIES].to_numpy() > turn)))
            continue
        if SPLIT_KEY in part.schema.names:
            batch = batch.set_column(SCHEMA.get_field_index("split_key"), "split_key", part[SPLIT_KEY])
        scores = scores_of(len(batch), **{name: part[name] for name in names})
        outcome = Outcome(scores, stage.edit(batch, scores))
        step = apply_outcome(number, batch, outcome, stage.decide(scores), keep)
        yield step.after, [step]


class SpilledTexts:
    """Texts of a spilled table by position."""

    def __init__(self, batches: Sequence[pa.RecordBatch]) -> None:
        self._columns = [batch["text"] for batch in batches]
        self._ends = np.cumsum([len(column) for column in self._columns])

    def __call__(self, positions: Sequence[int]) -> list[str]:
        found = []
        for position in positions:
            index = int(np.searchsorted(self._ends, position, side="right"))
            start = int(self._ends[index - 1]) if index else 0
            found.append(self._columns[index][position - start].as_py())
        return found


def _again(number: int, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, list[Step]]:
    """A batch of copies: nothing came in, and this goes out."""
    none = batch.slice(0, 0)
    return batch, [Step(number, none, scores_of(0), pa.nulls(0, pa.string()), batch)]


def _rows(table: pa.Table) -> pa.RecordBatch:
    """A slice of a table as one batch."""
    return pa.record_batch([_one(column) for column in table.columns], names=table.column_names)


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _smallest_keys(batches: Sequence[pa.RecordBatch], groups: pa.Array | None) -> NDArray[np.float64] | None:
    """Every document's split key, lowered to the smallest of its group, so that a group isn't torn apart."""
    if groups is None or groups.null_count == len(groups):
        return None
    keys: Any = np.concatenate([batch["split_key"].to_numpy() for batch in batches])
    grouped = groups.is_valid().to_numpy(zero_copy_only=False)
    numbers = groups.filter(groups.is_valid()).to_numpy()
    smallest = np.full(int(numbers.max()) + 1, np.inf)
    np.minimum.at(smallest, numbers, keys[grouped])
    keys[grouped] = smallest[numbers]
    return np.asarray(keys, np.float64)
