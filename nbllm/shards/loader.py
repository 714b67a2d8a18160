"""Feeding a training: which rows are in which global batch, and this rank's share of them.

A global batch is the next `batch_size × grad_accum × world_size` rows of an endless list: one shuffle of all rows an
epoch, one after the other. So its content depends on seed and position only, not on how it is split, and a position is
one number: the rows taken so far. Knows token streams; not torch, and not other ranks (each works the same out alone).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nbllm.errors import DataError, UsageError
from nbllm.shards.masking import Masking
from nbllm.shards.stream import Int64, MicroBatch, TokenStream


@dataclass(frozen=True, kw_only=True, eq=False)
class GlobalBatch:
    """This rank's share of one optimizer step, with the counts of the whole step."""

    micro_batches: list[MicroBatch]
    """What to feed one after the other; every rank has as many."""
    target_count: int
    """Targets over all ranks and micro-batches: divide the summed loss by it."""
    tokens: int
    """Input tokens over all ranks and micro-batches, padding left out."""
    rows: Int64
    """The rows of the stream, over all ranks, in their order."""


class Loader:
    """An iterator over global batches whose position is part of a checkpoint.

    Args:
        stream: the part to train on.
        seq_len: inputs a row (T).
        batch_size: rows a rank and micro-step (B).
        grad_accum: micro-steps an optimizer step.
        rank, world_size: this data-parallel rank, and how many there are.
        seed: of the shuffles.
        epochs: passes over the stream until it ends (1.5 is one and a half), or None for no end.
        masking: hides tokens, drawn anew every epoch, and makes those the targets; None: the next tokens are.

    Raises:
        DataError: a stream shorter than one row, or without a single target.
        UsageError: numbers that make no sense.
    """

    def __init__(
        self,
        stream: TokenStream,
        *,
        seq_len: int,
        batch_size: int,
        grad_accum: int = 1,
        rank: int = 0,
        world_size: int = 1,
        seed: int = 0,
        epochs: float | None = None,
        masking: Masking | None = None,
    ) -> None:
        for option, value in (("--batch-size", batch_size), ("--grad-accum", grad_accum), ("world_size", world_size)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UsageError(f"{option} is a whole number from 1 on", received=value)
        if not 0 <= rank < world_size:
            raise UsageError(f"A rank is one of 0 to {world_size - 1}", received=rank)
        if epochs is not None and not (math.isfinite(epochs) and epochs > 0):
            raise UsageError("--epochs is a number above 0", received=epochs)
        _check_length(stream, seq_len)
        self.stream = stream
        self.seq_len = seq_len
        self.batch_size = batch_size
        self.grad_accum = grad_accum
        self.rank = rank
        self.world_size = world_size
        self.seed = seed
        self.masking = masking
        self.rows = stream.rows(seq_len)
        """Rows an epoch."""
        self.global_batch_size = batch_size * grad_accum * world_size
        """Rows a global batch."""
        self.total_rows: int | None = None if epochs is None else max(1, round(epochs * self.rows))
        """Rows until the end, or None."""
        self.rows_taken = 0
        """The position."""
        self._orders: dict[int, Int64] = {}

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps that one pass takes, a short last one included."""
        return math.ceil(self.rows / self.global_batch_size)

    @property
    def total_steps(self) -> int | None:
        """Optimizer steps until the end, a short last one included, or None where there is no end."""
        return None if self.total_rows is None else math.ceil(self.total_rows / self.global_batch_size)

    @property
    def epoch(self) -> float:
        """Passes over the stream so far."""
        return self.rows_taken / self.rows

    def __iter__(self) -> Iterator[GlobalBatch]:
        return self

    def __next__(self) -> GlobalBatch:
        return self.next_batch()

    def next_batch(self) -> GlobalBatch:
        """The next step's data; raises StopIteration after the last epoch."""
        stop = self.rows_taken + self.global_batch_size
        if self.total_rows is not None:
            stop = min(stop, self.total_rows)
        if stop <= self.rows_taken:
            raise StopIteration
        rows = self._rows(self.rows_taken, stop)
        epochs = np.arange(self.rows_taken, stop, dtype=np.int64) // self.rows
        fit = self.stream.fit(self.seq_len)
        places = self._micro_steps(np.arange(len(rows), dtype=np.int64))
        counts = self.stream.target_counts(rows, self.seq_len, masking=self.masking, epochs=epochs)
        batch = GlobalBatch(
            micro_batches=[self._micro_batch(rows[step], epochs[step]) for step in places],
            target_count=int(counts.sum()),
            tokens=int((fit.stops[rows] - fit.starts[rows]).sum()),
            rows=rows,
        )
        self.rows_taken = stop
        return batch

    def state_dict(self) -> dict[str, Any]:
        """The position as JSON values; it can be loaded under another batch size or number of ranks."""
        return {"rows_taken": self.rows_taken, **self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a position that `state_dict` gave; raises DataError where it belongs to other data."""
        wrong = {key: state.get(key) for key, value in self._identity().items() if state.get(key) != value}
        if wrong:
            raise DataError(
                f"This position belongs to other data: {wrong} instead of "
                f"{ {key: self._identity()[key] for key in wrong} }",
                next="Start a new run",
            )
        self.rows_taken = int(state["rows_taken"])

    def _identity(self) -> dict[str, Any]:
        return {"seed": self.seed, "seq_len": self.seq_len, "rows": self.rows, "stream_tokens": len(self.stream)}

    def _rows(self, start: int, stop: int) -> Int64:
        """Rows at places [start, stop) of the endless list of shuffles."""
        pieces = []
        first_epoch, last_epoch = start // self.rows, (stop - 1) // self.rows
        for epoch in range(first_epoch, last_epoch + 1):
            base = epoch * self.rows
            pieces.append(self._order(epoch)[max(start - base, 0) : stop - base])
        self._orders = {epoch: order for epoch, order in self._orders.items() if epoch >= last_epoch}
        return np.concatenate(pieces)

    def _order(self, epoch: int) -> Int64:
        if epoch not in self._orders:
            generator = np.random.Generator(np.random.PCG64([self.seed, epoch]))
            self._orders[epoch] = generator.permutation(self.rows).astype(np.int64, copy=False)
        return self._orders[epoch]

    def _micro_steps(self, rows: Int64) -> list[Int64]:
        """This rank's rows of each micro-step. A short last step is shared out evenly; every rank gets as many."""
        a_step = self.batch_size * self.world_size
        steps = [rows[start : start + a_step] for start in range(0, len(rows), a_step)]
        return [np.array_split(step_rows, self.world_size)[self.rank] for step_rows in steps]

    def _micro_batch(self, rows: Int64, epochs: Int64) -> MicroBatch:
        if not len(rows):  # nothing left for this rank, but the others wait for it
            return self.stream.padding(1, self.seq_len)
        return self.stream.batch(rows, self.seq_len, masking=self.masking, epochs=epochs)


def _check_length(stream: TokenStream, seq_len: int) -> None:
    fit = stream.fit(seq_len)
    if stream.mask is None:
        if len(stream) <= seq_len:
            raise DataError(
                f"The corpus has {len(stream):,} tokens, fewer than one sequence of {seq_len:,} and its next token",
                next="Lower --seq-len or add text",
            )
        return
    if not stream.target_counts(np.arange(len(fit), dtype=np.int64), seq_len).any():
        named = ", ".join(str(row) for row in fit.lost[:10]) + (", …" if len(fit.lost) > 10 else "")
        raise DataError(
            f"Every prompt fills the sequence of {seq_len:,} tokens, so that no answer is left to learn (rows {named})",
            next="Raise --seq-len or shorten the prompts",
        )
