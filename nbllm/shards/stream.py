"""A part of the shards: one long stream of token ids in a memory-mapped file, cut into rows when it is read.

Legend: N tokens in the stream, T inputs a row, B rows a batch. Two ways to cut, both without losing a document:

* running text (no mask): row r holds inputs [r T, r T + T); documents run on into the next row, and what is left at
  the end is a shorter row;
* examples (with a mask): whole documents in their order, as many as fit into T inputs; one that is longer than a row
  is cut, and `Fit` names it.

With a masking, the same rows are read, and the targets are the hidden tokens in their own places.

A document never sees another: the first token of a document is nobody's target, and `position_ids` start again at 0
with each document (and each row), which is what transformers reads packed documents from.
Knows numpy; not tokenizers, not torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbllm.errors import DataError, UsageError
from nbllm.files import read_json
from nbllm.shards.masking import Masking

IGNORED = -100
"""The target of a position that isn't trained."""
Int64 = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class MicroBatch:
    """What one rank feeds its model at once; three int64 arrays of shape [B, T]."""

    input_ids: Int64
    """Token ids; a short row is filled up with the padding id."""
    targets: Int64
    """The next token's id, or with a masking the hidden one's; -100 where nothing is to be learned."""
    position_ids: Int64
    """Position inside the document, counted from the row's start where the document began before it; padding counts
    as a document of its own."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Fit:
    """How a stream is cut into rows of at most T inputs."""

    starts: Int64
    """For each row, the place of its first input in the stream."""
    stops: Int64
    """For each row, the place after its last input."""
    cut: tuple[int, ...] = ()
    """Examples that are longer than a row and were cut (indices of documents, in the order they were given)."""
    lost: tuple[int, ...] = ()
    """Those of them whose targets were all cut off."""

    def __len__(self) -> int:
        return len(self.starts)


class TokenStream:
    """One part of the shards, train or held-out.

    Args:
        folder: holds tokens.bin, boundaries.npy, meta.json and, for examples, mask.bin.

    Raises:
        DataError: files that don't fit together.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.meta: dict[str, Any] = read_json(self.folder / "meta.json")
        dtype = np.dtype(self.meta["dtype"])
        self.tokens: NDArray[Any] = _map(self.folder / "tokens.bin", dtype)
        """All ids, uint16 or uint32 [N], memory-mapped."""
        self.boundaries: Int64 = np.load(self.folder / "boundaries.npy", allow_pickle=False)
        """Start of each document in the stream, then N."""
        mask = self.folder / "mask.bin"
        self.mask: NDArray[np.uint8] | None = _map(mask, np.dtype(np.uint8)) if mask.is_file() else None
        """1 where a token is a target, or None where every token but a document's first is."""
        self.text_bytes: int = self.meta["text_bytes"]
        """UTF-8 bytes of the text that the targets spell: what bits a byte are counted over."""
        self.pad_id: int = self.meta["pad_id"]
        self._fits: dict[int, Fit] = {}
        wrong_end = len(self.boundaries) == 0 or self.boundaries[-1] != len(self.tokens)
        if wrong_end or (self.mask is not None and len(self.mask) != len(self.tokens)):
            raise DataError(
                f"The files in {self.folder} don't fit together", next="Remove that folder, then train again"
            )

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        return f"TokenStream({len(self):,} tokens, {self.documents:,} documents)"

    @property
    def documents(self) -> int:
        """Number of documents."""
        return len(self.boundaries) - 1

    def rows(self, seq_len: int) -> int:
        """Number of rows of `seq_len` inputs."""
        return len(self.fit(seq_len))

    def fit(self, seq_len: int) -> Fit:
        """How the stream is cut into rows of at most `seq_len` inputs; worked out once a length."""
        if not isinstance(seq_len, int) or isinstance(seq_len, bool) or seq_len < 1:
            raise UsageError("--seq-len is a whole number from 1 on", received=seq_len)
        if seq_len not in self._fits:
            self._fits[seq_len] = self._fit_text(seq_len) if self.mask is None else self._fit_examples(seq_len)
        return self._fits[seq_len]

    def _fit_text(self, seq_len: int) -> Fit:
        # the last token is an end of text, which predicts nothing, so it needn't be an input
        starts = np.arange(0, max(len(self) - 1, 0), seq_len, dtype=np.int64)
        return Fit(starts=starts, stops=np.minimum(starts + seq_len, len(self) - 1))

    def _fit_examples(self, seq_len: int) -> Fit:
        firsts, lasts = self.boundaries[:-1], self.boundaries[1:] - 1  # a document's last token predicts nothing
        starts: list[int] = []
        stops: list[int] = []
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
            end = min(last, first + seq_len)
            # the document before leaves its last token in the row, between the two
            if starts and stops[-1] + 1 == first and end - starts[-1] <= seq_len:
                stops[-1] = end
            else:
                starts.append(first)
                stops.append(end)
        cut = np.flatnonzero(lasts - firsts > seq_len)
        kept = self._targets_before[firsts[cut] + seq_len + 1] - self._targets_before[firsts[cut]]
        return Fit(
            starts=np.array(starts, dtype=np.int64),
            stops=np.array(stops, dtype=np.int64),
            cut=tuple(cut.tolist()),
            lost=tuple(cut[kept == 0].tolist()),
        )

    @cached_property
    def _targets_before(self) -> Int64:
        """For each place, how many targets stand before it; only for streams with a mask. int64 [N + 1]."""
        assert self.mask is not None
        return np.concatenate([[0], np.cumsum(self.mask, dtype=np.int64)])

    def target_counts(
        self, rows: Int64, seq_len: int, *, masking: Masking | None = None, epochs: Int64 | None = None
    ) -> Int64:
        """Number of targets in each of the given rows, without building them. int64 like `rows`.

        Args:
            rows, seq_len: which rows.
            masking, epochs: as for `batch`.
        """
        fit = self.fit(seq_len)
        starts, stops = fit.starts[rows], fit.stops[rows]
        if masking is not None:
            counts = [
                masking.chosen(self.tokens[start:stop].astype(np.int64), row=row, epoch=epoch).sum()
                for row, start, stop, epoch in zip(
                    rows.tolist(), starts.tolist(), stops.tolist(), _epochs(rows, epochs), strict=True
                )
            ]
            return np.array(counts, dtype=np.int64)
        if self.mask is not None:
            return self._targets_before[stops + 1] - self._targets_before[starts + 1]
        # inputs, less those whose next token begins a document
        begun = np.searchsorted(self.boundaries, stops, side="right")
        return (stops - starts) - (begun - np.searchsorted(self.boundaries, starts, side="right"))

    def batch(
        self,
        rows: Sequence[int] | Int64,
        seq_len: int,
        *,
        masking: Masking | None = None,
        epochs: Int64 | None = None,
    ) -> MicroBatch:
        """Some rows as arrays [B, T]; short rows are filled up with padding that is no target.

        Args:
            rows: their numbers.
            seq_len: T.
            masking: hides tokens and makes those the targets, in the place of the next tokens.
            epochs: the pass that each row is in, int64 like `rows`; None: the fixed masks of an evaluation.
        """
        rows = np.asarray(rows, dtype=np.int64)
        fit = self.fit(seq_len)
        batch = self.padding(len(rows), seq_len)
        passes = _epochs(rows, epochs)
        for i, (start, stop) in enumerate(zip(fit.starts[rows].tolist(), fit.stops[rows].tolist(), strict=True)):
            used = stop - start
            piece = self.tokens[start : stop + 1].astype(np.int64)
            targets = piece[1:].copy()
            first = int(np.searchsorted(self.boundaries, start, side="right"))
            begins = self.boundaries[first : int(np.searchsorted(self.boundaries, stop, side="right"))] - start
            targets[begins - 1] = IGNORED
            if self.mask is not None:
                targets[self.mask[start + 1 : stop + 1] == 0] = IGNORED
            positions = np.arange(used, dtype=np.int64)
            origin = np.zeros(used, dtype=np.int64)
            inside = begins[begins < used]
            origin[inside] = inside
            inputs = piece[:-1]
            if masking is not None:
                hidden, chosen = masking.hide(inputs, row=int(rows[i]), epoch=passes[i])
                inputs, targets = hidden, np.where(chosen, inputs, IGNORED)
            batch.input_ids[i, :used] = inputs
            batch.targets[i, :used] = targets
            batch.position_ids[i, :used] = positions - np.maximum.accumulate(origin)
            batch.position_ids[i, used:] = np.arange(seq_len - used)
        return batch

    def padding(self, count: int, seq_len: int) -> MicroBatch:
        """Rows of nothing but padding: no targets. [count, T]"""
        return MicroBatch(
            input_ids=np.full((count, seq_len), self.pad_id, dtype=np.int64),
            targets=np.full((count, seq_len), IGNORED, dtype=np.int64),
            position_ids=np.tile(np.arange(seq_len, dtype=np.int64), (count, 1)),
        )

    def batches(
        self,
        seq_len: int,
        batch_size: int,
        *,
        rank: int = 0,
        world_size: int = 1,
        max_rows: int | None = None,
        masking: Masking | None = None,
    ) -> Iterator[MicroBatch]:
        """Every row once, in order, for an evaluation; the ranks' batches together are the whole part.

        Every rank gets the same number of batches (a row of padding where it has none left).

        Args:
            seq_len: T.
            batch_size: rows a batch and rank.
            rank, world_size: which share.
            max_rows: take that many rows, evenly spread over the part, instead of all.
            masking: with the masks that it keeps for evaluations.
        """
        count = self.rows(seq_len)
        rows = np.arange(count, dtype=np.int64)
        if max_rows is not None and max_rows < count:
            rows = np.linspace(0, count - 1, max_rows).round().astype(np.int64)
        for start in range(0, len(rows), batch_size * world_size):
            mine = np.array_split(rows[start : start + batch_size * world_size], world_size)[rank]
            yield self.batch(mine, seq_len, masking=masking) if len(mine) else self.padding(1, seq_len)


def _epochs(rows: Int64, epochs: Int64 | None) -> list[int] | list[None]:
    return [None] * len(rows) if epochs is None else epochs.tolist()


def _map(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    if path.stat().st_size == 0:  # an empty file can't be mapped
        return np.empty(0, dtype=dtype)
    if path.stat().st_size % dtype.itemsize:
        raise DataError(f"{path} is cut short", next="Remove its folder, then train again")
    return np.memmap(path, dtype=dtype, mode="r")
