"""The record of a sampling: for each step the alternatives, and what each filter did to their probabilities.

Arrays while it runs, on the device; Arrow tables afterwards, so that nothing of the device is kept. Knows logits, not
how they came about.

Legend: B rows, V tokens of the vocabulary, K alternatives kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from nbllm.errors import UsageError
from nbllm.tokenizer import Tokenizer

ALTERNATIVES = 10
"""K: how many of the most probable tokens are kept a step."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """What could have been said at each step of a generation, and how probable it was."""

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


@dataclass(frozen=True, kw_only=True)
class _Step:
    rows: list[int]
    numbers: Tensor
    """float32 [B, 5]: rank, probability, final, entropy, final entropy."""
    tokens: Tensor
    """int64 [B, K]: the alternatives."""
    probabilities: Tensor
    """float32 [B, F + 1, K]: the model's, then after each of F filters."""


class Recorder:
    """Takes what each step knows; `trace` makes the tables of one prompt's samples."""

    def __init__(self, alternatives: int = ALTERNATIVES) -> None:
        self._alternatives = alternatives
        self._steps: list[_Step] = []
        self._filters: tuple[str, ...] = ()

    def add(self, rows: Sequence[int], logits: Tensor, after: dict[str, Tensor], chosen: Tensor) -> None:
        """Records one step.

        Args:
            rows: which row each of the batch is.
            logits: the model's, [B, V].
            after: logits after each filter, [B, V] each.
            chosen: the tokens, int64 [B].
        """
        self._filters = tuple(after)
        stages = [logits.softmax(-1), *(changed.softmax(-1) for changed in after.values())]
        model, final = stages[0], stages[-1]
        top = logits.topk(min(self._alternatives, logits.shape[-1]), dim=-1).indices
        of_chosen = logits.gather(1, chosen[:, None])
        ids = torch.arange(logits.shape[-1], device=logits.device)
        ahead = (logits > of_chosen) | ((logits == of_chosen) & (ids < chosen[:, None]))
        numbers = [
            1 + ahead.sum(-1).float(),
            *(stage.gather(1, chosen[:, None])[:, 0] for stage in (model, final)),
            *(torch.special.entr(stage).sum(-1) for stage in (model, final)),
        ]
        self._steps.append(
            _Step(
                rows=list(rows),
                numbers=torch.stack(numbers, 1),
                tokens=top,
                probabilities=torch.stack([stage.gather(1, top) for stage in stages], 1),
            )
        )

    def trace(self, tokenizer: Tokenizer, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> Trace:
        """The tables of some rows.

        Args:
            tokenizer: for the tokens' texts.
            rows: the samples of one prompt, in order.
            tokens: what each of them said; steps beyond it (of an interrupted step, say) are left out.
        """
        numbers, tops, probabilities, samples, steps = [], [], [], [], []
        counted = dict.fromkeys(rows, 0)
        for step in self._steps:
            for place, row in enumerate(step.rows):
                if row not in counted or counted[row] >= len(tokens[rows.index(row)]):
                    continue
                samples.append(rows.index(row))
                steps.append(counted[row])
                counted[row] += 1
                numbers.append(step.numbers[place])
                tops.append(step.tokens[place])
                probabilities.append(step.probabilities[place])
        order = sorted(range(len(samples)), key=lambda i: (samples[i], steps[i]))
        whose, when = np.array(samples, dtype=np.int32)[order], np.array(steps, dtype=np.int32)[order]
        said = np.array([tokens[s][i] for s, i in zip(whose, when, strict=True)], dtype=np.int32)
        count = len(self._filters) + 1
        return Trace(
            steps=_steps_table(tokenizer, whose, when, said, _stack(numbers, order, (5,))),
            alternatives=_alternatives_table(
                tokenizer,
                whose,
                when,
                said,
                _stack(tops, order, (0,)).astype(np.int32),
                _stack(probabilities, order, (count, 0)),
                ("model", *self._filters),
            ),
            filters=self._filters,
        )


def _stack(tensors: list[Tensor], order: list[int], empty: tuple[int, ...]) -> NDArray[np.float32]:
    if not tensors:
        return np.zeros((0, *empty), dtype=np.float32)
    stacked: NDArray[np.float32] = torch.stack(tensors).cpu().numpy()[order]
    return stacked


def _steps_table(
    tokenizer: Tokenizer,
    sample: NDArray[np.int32],
    step: NDArray[np.int32],
    said: NDArray[np.int32],
    numbers: NDArray[np.float32],
) -> pa.Table:
    columns = {"sample": sample, "step": step, "token": said, "text": _texts(tokenizer, said)}
    names = ("probability", "final", "entropy", "final_entropy")
    columns |= {"rank": numbers[:, 0].astype(np.int32)}
    columns |= {name: np.ascontiguousarray(numbers[:, i]) for i, name in enumerate(names, 1)}
    return pa.table(columns)


def _alternatives_table(
    tokenizer: Tokenizer,
    sample: NDArray[np.int32],
    step: NDArray[np.int32],
    said: NDArray[np.int32],
    tops: NDArray[np.int32],
    probabilities: NDArray[np.float32],
    stages: tuple[str, ...],
) -> pa.Table:
    kept = tops.shape[1]
    ids = tops.reshape(-1)
    columns = {
        "sample": sample.repeat(kept),
        "step": step.repeat(kept),
        "token": ids,
        "text": _texts(tokenizer, ids),
        "chosen": ids == said.repeat(kept),
    }
    columns |= {name: probabilities[:, i].reshape(-1) for i, name in enumerate(stages)}
    columns |= {"final": probabilities[:, -1].reshape(-1)}
    return pa.table(columns)


def _texts(tokenizer: Tokenizer, ids: NDArray[np.int32]) -> pa.Array:
    """Each token made visible; empty where the model's vocabulary is larger than the tokenizer's."""
    known = {id: tokenizer.token_text(id) if id < tokenizer.vocab_size else "" for id in set(ids.tolist())}
    return pa.array([known[id] for id in ids.tolist()], type=pa.string())
