"""The record of a sampling: for each step the alternatives, and what each filter did to their probabilities.

Arrays while it runs, moved off the device every so often; Arrow tables afterwards, so that nothing of the device is
kept. Knows logits, not how they came about.

Legend: B rows, V tokens of the vocabulary, K alternatives kept, F filters, N tokens recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from nbllm.errors import UsageError
from nbllm.sample.coloured import Coloured, tokens_of
from nbllm.tokenizer import Tokenizer

ALTERNATIVES = 10
"""K: how many of the most probable tokens are kept a step."""
_STEPS_ON_DEVICE = 64
"""So many steps stay on the device before they are moved to the host together."""
_HEAD = 6
"""Numbers of a step besides its alternatives: token, rank, probability, entropy, final, final entropy."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Trace:
    """What could have been said at each step of a generation, and how probable it was; a notebook shows its tokens
    coloured."""

    steps: pa.Table
    """One row a token: `sample`, `step`, `token`, `text`, `rank` (1: the model's most probable), `probability` (the
    model's own), `final` (after all filters, what it was drawn with), `entropy` and `final_entropy` (nats)."""
    alternatives: pa.Table
    """One row an alternative, the most probable first: `sample`, `step`, `token`, `text`, `chosen`, `model` (its
    probability before filters), then its probability after each filter that was on, then `final`."""
    filters: tuple[str, ...]
    """Names of the filters that were on, in their order: columns of `alternatives`."""

    def at(self, step: int, sample: int = 0) -> list[dict[str, object]]:
        """The alternatives of one step, as rows of `alternatives`."""
        import pyarrow.compute as pc

        table = self.alternatives
        found = table.filter(pc.and_(pc.equal(table["sample"], sample), pc.equal(table["step"], step)))
        if not found.num_rows:
            raise UsageError(f"The trace has no step {step} of sample {sample}")
        rows: list[dict[str, object]] = found.to_pylist()
        return rows

    def coloured(self, colour: str = "probability") -> Coloured:
        """The samples with their tokens coloured by the model's own `probability`, by `rank` or by `entropy`."""
        found = tokens_of(self.steps, self.alternatives, "model")
        lengths = np.bincount(self.steps["sample"].to_numpy(), minlength=1)
        ends = np.cumsum(lengths).tolist()
        count = self.steps.num_rows
        several = f" in {len(ends)} samples" if len(ends) > 1 else ""
        filters = " → ".join(name.replace("_", " ") for name in self.filters)
        heading = f"{count:,} token{'' if count == 1 else 's'}{several}, before " + (filters or "any filter")
        texts = tuple(found[begin:end] for begin, end in zip([0, *ends], ends, strict=False))
        return Coloured(texts=texts, colour=colour, heading=heading)

    def __str__(self) -> str:
        return str(self.coloured())

    def __repr__(self) -> str:
        return f"Trace({self.steps.num_rows:,} tokens, filters {', '.join(self.filters) or 'off'})"

    def _repr_html_(self) -> str:
        return self.coloured()._repr_html_()


@dataclass(frozen=True, kw_only=True)
class Step:
    """One token of one sample with what could have stood in its place, while the sampling goes on."""

    step: int
    """The token's place in its sample, from 0."""
    token: int
    """Its id."""
    text: str
    """The token made visible: ␣ for a space, <F0> for a byte that is no character by itself."""
    probability: float
    """The model's own, before filters."""
    final: float
    """After all filters: what it was drawn with."""
    rank: int
    """1: the model's most probable; among equals the lowest id comes first."""
    entropy: float
    """Of the model's distribution, nats."""
    final_entropy: float
    """Of the distribution after all filters, nats."""
    alternatives: list[dict[str, Any]]
    """As rows of `Trace.alternatives`: `token`, `text`, `chosen`, `model`, one number a filter, `final`."""


class Recorder:
    """Takes what each step knows: `last` tells the newest step, `trace` makes the tables of one prompt's samples.

    Args:
        alternatives: K.
    """

    def __init__(self, alternatives: int = ALTERNATIVES) -> None:
        self._alternatives = alternatives
        self._filters: tuple[str, ...] = ()
        self._counts: dict[int, int] = {}  # steps of each row so far
        self._places: list[tuple[int, int]] = []  # row and step of every line below, in order
        self._newest: range = range(0)  # the last step's lines
        self._pending: list[Tensor] = []  # lines on the device, int32 [B, 6 + K + (F + 1) * K] a step
        self._lines: list[NDArray[np.int32]] = []  # lines on the host, older than those

    def add(self, rows: Sequence[int], logits: Tensor, after: dict[str, Tensor], chosen: Tensor) -> None:
        """Records one step.

        Args:
            rows: which row each of the batch is.
            logits: the model's, [B, V].
            after: logits after each filter, [B, V] each.
            chosen: the tokens, int64 [B].
        """
        self._filters = tuple(after)
        self._newest = range(len(self._places), len(self._places) + len(rows))
        for row in rows:
            self._places.append((row, self._counts.get(row, 0)))
            self._counts[row] = self._counts.get(row, 0) + 1
        taken = chosen[:, None]
        top = most_probable(logits, self._alternatives)
        rank = ranks(logits, chosen)[:, None]
        numbers, probabilities = [], []
        for place, stage in enumerate([logits, *after.values()]):  # one [B, V] at a time
            softmax = stage.softmax(-1)
            probabilities.append(softmax.gather(1, top))
            if place in (0, len(after)):
                numbers += [softmax.gather(1, taken), torch.special.entr(softmax).sum(-1, keepdim=True)]
        if not after:
            numbers += numbers
        floats = torch.cat([*numbers, *probabilities], 1).float()
        # everything as 32 bits in one tensor, so that it leaves the device in one transfer
        self._pending.append(torch.cat([taken.int(), rank.int(), top.int(), floats.view(torch.int32)], 1))
        if len(self._pending) >= _STEPS_ON_DEVICE:
            self._to_host()

    def last(self, tokenizer: Tokenizer, places: Sequence[int] | None = None) -> list[Step]:
        """The newest step, on the host after one transfer.

        Args:
            tokenizer: for the tokens' texts.
            places: places in the batch as the step was recorded; all by default.

        Returns:
            One `Step` a place, in their order; none before the first step.
        """
        self._to_host()
        shown = self._newest if places is None else [self._newest[place] for place in places]
        if not shown:
            return []
        newest = self._lines[-1][len(self._lines[-1]) - len(self._newest) :]
        lines = _Lines(newest[[line - self._newest.start for line in shown]], len(self._filters) + 1)
        steps = []
        for place, line in enumerate(shown):
            tops = lines.tops[place].tolist()
            columns: dict[str, list[Any]] = {"token": tops, "text": [_text(tokenizer, id) for id in tops]}
            columns |= {"chosen": [id == lines.tokens[place] for id in tops]}
            columns |= {name: lines.stages[place, i].tolist() for i, name in enumerate(("model", *self._filters))}
            columns |= {"final": lines.stages[place, -1].tolist()}
            token = int(lines.tokens[place])
            probability, entropy, final, final_entropy = lines.numbers[place].tolist()
            steps.append(
                Step(
                    step=self._places[line][1],
                    token=token,
                    text=_text(tokenizer, token),
                    probability=probability,
                    final=final,
                    rank=int(lines.ranks[place]),
                    entropy=entropy,
                    final_entropy=final_entropy,
                    alternatives=[dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)],
                )
            )
        return steps

    def trace(self, tokenizer: Tokenizer, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> Trace:
        """The tables of some rows.

        Args:
            tokenizer: for the tokens' texts.
            rows: the samples of one prompt, in order.
            tokens: what each of them said; steps beyond it (of an interrupted step, say) are left out.
        """
        self._to_host()
        samples = {row: sample for sample, row in enumerate(rows)}
        said = [len(tokens[sample]) for sample in range(len(rows))]
        found = sorted(
            (samples[row], step, line)
            for line, (row, step) in enumerate(self._places)
            if row in samples and step < said[samples[row]]
        )
        where = np.array(found, dtype=np.int32).reshape(-1, 3)
        count = len(self._filters) + 1
        width = _HEAD + (count + 1) * self._alternatives
        content = np.concatenate(self._lines) if self._lines else np.zeros((0, width), dtype=np.int32)
        lines = _Lines(content[where[:, 2]], count)
        return Trace(
            steps=_steps_table(tokenizer, where, lines),
            alternatives=_alternatives_table(tokenizer, where, lines, ("model", *self._filters)),
            filters=self._filters,
        )

    def _to_host(self) -> None:
        if self._pending:
            self._lines.append(torch.cat(self._pending).cpu().numpy())
            self._pending = []


class _Lines:
    """Recorded lines, taken apart.

    Args:
        lines: int32 [N, 6 + K + S * K]: token, rank, alternatives, then the bits of the floats.
        stages: S, the model's distribution and one after each filter.
    """

    def __init__(self, lines: NDArray[np.int32], stages: int) -> None:
        kept = (lines.shape[1] - _HEAD) // (stages + 1)
        floats = np.ascontiguousarray(lines[:, 2 + kept :]).view(np.float32)
        self.tokens = lines[:, 0]
        """int32 [N]"""
        self.ranks = lines[:, 1]
        """int32 [N]"""
        self.tops = lines[:, 2 : 2 + kept]
        """int32 [N, K]"""
        self.numbers = floats[:, : _HEAD - 2]
        """float32 [N, 4]: probability, entropy, final, final entropy."""
        self.stages = floats[:, _HEAD - 2 :].reshape(len(lines), stages, kept)
        """float32 [N, S, K]: the alternatives' probabilities."""


def most_probable(logits: Tensor, count: int) -> Tensor:
    """The ids of the highest logits, int64 [B, K]; among equals the lowest id first, as a greedy choice has it."""
    found = logits.topk(min(count, logits.shape[-1]), dim=-1).indices.sort(-1).values
    return found.gather(1, logits.gather(1, found).argsort(dim=-1, descending=True, stable=True))


def ranks(logits: Tensor, chosen: Tensor) -> Tensor:
    """How many tokens come before these, plus one; among equals the lowest id comes first.

    Args:
        logits: [B, V].
        chosen: int64 [B].

    Returns:
        int64 [B].
    """
    taken = chosen[:, None]
    of_chosen = logits.gather(1, taken)
    ids = torch.arange(logits.shape[-1], device=logits.device)
    return 1 + ((logits > of_chosen) | ((logits == of_chosen) & (ids < taken))).sum(-1)


def _steps_table(tokenizer: Tokenizer, where: NDArray[np.int32], lines: _Lines) -> pa.Table:
    columns: dict[str, Any] = {"sample": where[:, 0], "step": where[:, 1], "token": lines.tokens}
    columns |= {"text": token_texts(tokenizer, lines.tokens), "rank": lines.ranks}
    names = {"probability": 0, "final": 2, "entropy": 1, "final_entropy": 3}
    columns |= {name: lines.numbers[:, i] for name, i in names.items()}
    return pa.table(columns)


def _alternatives_table(
    tokenizer: Tokenizer, where: NDArray[np.int32], lines: _Lines, stages: tuple[str, ...]
) -> pa.Table:
    kept = lines.tops.shape[1]
    ids = lines.tops.reshape(-1)
    columns: dict[str, Any] = {"sample": where[:, 0].repeat(kept), "step": where[:, 1].repeat(kept)}
    columns |= {"token": ids, "text": token_texts(tokenizer, ids), "chosen": ids == lines.tokens.repeat(kept)}
    columns |= {name: lines.stages[:, i].reshape(-1) for i, name in enumerate(stages)}
    columns |= {"final": lines.stages[:, -1].reshape(-1)}
    return pa.table(columns)


def token_texts(tokenizer: Tokenizer, ids: NDArray[np.int32]) -> pa.Array:
    """Each token made visible."""
    known = {id: _text(tokenizer, id) for id in set(ids.tolist())}
    return pa.array([known[id] for id in ids.tolist()], type=pa.string())


def _text(tokenizer: Tokenizer, id: int) -> str:
    """A token made visible; empty where the model's vocabulary is larger than the tokenizer's."""
    return tokenizer.token_text(id) if id < tokenizer.vocab_size else ""
