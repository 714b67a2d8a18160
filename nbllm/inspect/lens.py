"""The logit lens: what a model would predict at every position if each layer were its last.

The states after each layer go through the model's own final norm and head (nostalgebraist 2020, "interpreting GPT: the
logit lens"). Early layers weren't trained to be read so: their rows say what already points towards the answer, not
what the model "thinks". Layer by layer and in pieces; logits of all layers are never kept. Knows models and
tokenizers; draws nothing.

Legend: R rows (what enters the first layer, then what leaves each), T tokens, K most probable tokens kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nbllm.errors import DataError, UsageError
from nbllm.inspect.lens_states import LayerStates
from nbllm.inspect.masked import encode_masked, is_masked
from nbllm.sample.prompt import encode_prompt
from nbllm.sample.reading import check_ids, evaluating
from nbllm.sample.trace import most_probable, ranks, token_texts
from nbllm.tokenizer import Tokenizer

TOP = 5
"""How many tokens are kept for each row and position."""
_LOGITS = 2**24
"""Logits at once: 64 MiB in float32, of which a few copies are needed."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LogitLens:
    """What each layer would predict at each position."""

    model: str
    """What was looked at: name, checkpoint, adapter."""
    tokens: tuple[str, ...]
    """The text's tokens, made visible (T)."""
    token_ids: tuple[int, ...]
    """Their ids."""
    rows: tuple[str, ...]
    """R names: `embedding`, then the numbers of the layers from 0."""
    predicts: str
    """`next` (the token after a position) or `this` (a masked model: the one at the position)."""
    top_ids: NDArray[np.int32]
    """int32 [R, T, K], the most probable first."""
    top_texts: NDArray[Any]
    """The same made visible, as strings."""
    top_probabilities: NDArray[np.float32]
    """float32 [R, T, K]."""
    final_probability: NDArray[np.float32]
    """float32 [R, T]: what a row gives the token that the whole model finds most probable."""
    final_rank: NDArray[np.int32]
    """int32 [R, T]: its rank there, from 1."""
    actual_probability: NDArray[np.float32]
    """float32 [R, T]: what a row gives the token that really comes; NaN at the last position, where none is known."""
    actual_rank: NDArray[np.int32]
    """int32 [R, T]: its rank, from 1; 0 where none is known."""

    @property
    def settles(self) -> NDArray[np.int32]:
        """int32 [T]: the first row from which on the most probable token stays the final one."""
        same = self.top_ids[:, :, 0] == self.top_ids[-1, :, 0]
        stays: NDArray[np.bool_] = np.logical_and.accumulate(same[::-1], axis=0)[::-1]
        return stays.argmax(axis=0).astype(np.int32)

    @property
    def summary(self) -> str:
        """One line: how many tokens and layers, where the prediction settles."""
        row = int(np.median(self.settles))
        return f"{len(self.tokens):,} tokens · {len(self.rows) - 1} layers · settles at layer {self.rows[row]} (median)"

    def __repr__(self) -> str:
        return f"LogitLens({self.model!r}, {self.summary})"


def logit_lens(
    model: Any, tokenizer: Tokenizer, text: str | Sequence[int], *, top: int = TOP, name: str = ""
) -> LogitLens:
    """Reads every layer's states as if the layer were the last.

    Args:
        model: a causal or masked language model of transformers, whole on one device.
        tokenizer: the model's.
        text: any text, or token ids.
        top: K, how many tokens to keep for each layer and position.
        name: what to call the model.

    Raises:
        UsageError: a text longer than the context, unknown tokens, or a model whose end can't be put after a layer.
        DataError: logits that aren't numbers.
    """
    if top < 1:
        raise UsageError("top is at least 1", received=top)
    masked = is_masked(model)
    ids = encode_prompt(tokenizer, encode_masked(tokenizer, text) if masked else text)
    check_ids(model, [ids])
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if longest is not None and len(ids) > longest:
        raise UsageError("The text is longer than the model's context", received=len(ids), next=f"At most {longest:,}")
    with evaluating(model):
        states = LayerStates(model, ids)
        final = states.logits_of_model.float()
        if not bool(final.isfinite().all()):
            raise DataError("The model's logits aren't finite numbers", next="Load it as fp32")
        best = most_probable(final, 1)[:, 0]
        known = torch.tensor(ids if masked else [*ids[1:], ids[0]], device=final.device)
        read = [_row(states, row, best, known, top) for row in range(len(states.states))]
    top_ids, top_chances, best_rank, best_chance, rank, chance = (np.stack(part) for part in zip(*read, strict=True))
    if not masked:
        rank[:, -1], chance[:, -1] = 0, np.nan
    texts = np.array(token_texts(tokenizer, top_ids.reshape(-1)).to_pylist(), dtype=object).reshape(top_ids.shape)
    return LogitLens(
        model=name or type(model).__name__,
        tokens=tuple(token_texts(tokenizer, np.array(ids, dtype=np.int32)).to_pylist()),
        token_ids=tuple(ids),
        rows=("embedding", *map(str, range(len(read) - 1))),
        predicts="this" if masked else "next",
        top_ids=top_ids,
        top_texts=texts,
        top_probabilities=top_chances,
        final_probability=best_chance,
        final_rank=best_rank,
        actual_probability=chance,
        actual_rank=rank,
    )


def _row(states: LayerStates, row: int, best: torch.Tensor, known: torch.Tensor, top: int) -> tuple[NDArray[Any], ...]:
    """One layer: ids and probabilities of its most probable tokens; rank and probability of the final and of the
    actual token."""
    size = max(1, _LOGITS // states.logits_of_model.shape[-1])
    pieces = []
    for begin in range(0, len(best), size):
        logits = states.logits(row, begin, begin + size).float()
        ids = most_probable(logits, top)
        chances = logits.softmax(-1)
        piece = [ids, chances.gather(1, ids)]
        for wanted in (best[begin : begin + size], known[begin : begin + size]):
            piece += [ranks(logits, wanted), chances.gather(1, wanted[:, None])[:, 0]]
        pieces.append(piece)
    found = [torch.cat(part).cpu().numpy() for part in zip(*pieces, strict=True)]
    return tuple(part.astype(np.float32 if at % 2 else np.int32) for at, part in enumerate(found))
