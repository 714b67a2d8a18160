"""What a model thinks of a text that is there: for each token its probability, its rank and what was expected instead.

A text that is longer than the context is read in windows that overlap by half. Only so many logits are computed at once
that they stay small whatever the vocabulary: a window is read in pieces, with keys and values kept between them. Knows
models and tokenizers; not where texts come from.

Legend: T tokens of a piece, V tokens of the vocabulary, K alternatives kept, N tokens that are predicted.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from nbllm.errors import DataError, UsageError
from nbllm.sample.coloured import Coloured, tokens_of
from nbllm.sample.forward import can_select
from nbllm.sample.reading import (
    Window,
    beginning,
    check_finite,
    check_ids,
    ending,
    evaluating,
    perplexity,
    window_length,
    windows,
)
from nbllm.sample.trace import ALTERNATIVES, most_probable, ranks, token_texts
from nbllm.tokenizer import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_LOGITS = 2**24
"""Logits at once: 64 MiB in float32, of which a few copies are needed."""
_CACHE_NAMES = ("cache", "past_key_values")  # transformers renamed the argument in its version 5


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Score:
    """A text's tokens with what the model thought of each; a notebook shows them coloured by probability."""

    text: str
    """What was scored."""
    tokens: pa.Table
    """One row a token: `position`, `token`, `text` (made visible), `start` and `end` (the characters that it holds a
    part of), `probability`, `logprob` (natural), `rank` (1: the most probable) and `entropy` (nats). The numbers are
    missing for a first token that nothing predicts."""
    alternatives: pa.Table
    """One row an alternative, the most probable first: `position`, `token`, `text`, `chosen`, `probability`."""
    loss: float
    """Mean cross-entropy of the tokens that were predicted, nats a token."""
    predicted: int
    """How many those are."""
    text_bytes: int
    """The UTF-8 bytes that they stand for."""

    @property
    def perplexity(self) -> float:
        """e to the loss; infinite where that is too large for a number."""
        return perplexity(self.loss)

    @property
    def bits_per_byte(self) -> float:
        """The sum of the losses in bits, over the text's UTF-8 bytes: comparable between tokenizers."""
        bits = self.loss * self.predicted / math.log(2)
        return bits / self.text_bytes if self.text_bytes else math.inf

    @property
    def summary(self) -> str:
        """One line: how many tokens, loss, perplexity, bits a byte."""
        count = len(self.tokens)
        return (
            f"{count:,} token{'' if count == 1 else 's'} · loss {self.loss:.3f} nats a token · "
            f"perplexity {self.perplexity:,.2f} · {self.bits_per_byte:.3f} bits a byte"
        )

    def at(self, position: int) -> list[dict[str, object]]:
        """The alternatives of one token, as rows of `alternatives`; none for a first token that nothing predicts."""
        import pyarrow.compute as pc

        if not 0 <= position < len(self.tokens):
            raise UsageError(f"The text's tokens run from 0 to {len(self.tokens) - 1}", received=position)
        table = self.alternatives
        rows: list[dict[str, object]] = table.filter(pc.equal(table["position"], position)).to_pylist()
        return rows

    def coloured(self, colour: str = "probability") -> Coloured:
        """The text with its tokens coloured by `probability`, `rank` or `entropy`."""
        found = tokens_of(self.tokens, self.alternatives, "probability")
        return Coloured(texts=(found,), colour=colour, heading=self.summary)

    def __str__(self) -> str:
        return str(self.coloured())

    def __repr__(self) -> str:
        shown = self.text if len(self.text) <= 80 else self.text[:79] + "…"
        return f"Score({shown!r}, {self.summary})"

    def _repr_html_(self) -> str:
        return self.coloured()._repr_html_()


def score(
    model: PreTrainedModel,
    tokenizer: Tokenizer,
    text: str,
    *,
    end: bool = False,
    context: int | None = None,
    alternatives: int = ALTERNATIVES,
    progress: Callable[[int, int], None] | None = None,
) -> Score:
    """How well a model expects each token of a text.

    The first token is predicted from the beginning-of-text token (else the end-of-text token); where the tokenizer has
    neither, it is given.

    Args:
        model: a causal language model of transformers.
        tokenizer: the model's.
        text: any text; special tokens typed in it are text.
        end: score the end-of-text token after the text too, as `nbllm.evaluate` does.
        context: the most tokens read at once; the model's own by default, but at most 2,048.
        alternatives: K, how many of the most probable tokens are kept for each.
        progress: called with tokens done and tokens in all.

    Raises:
        DataError: no token to predict, half a surrogate pair in the text, or logits that aren't numbers.
        UsageError: a context that the model doesn't have, or a tokenizer with more tokens than the model knows.
    """
    length = window_length(model, context)
    ids, offsets = tokenizer.encode_with_offsets(text)
    tail = ending(tokenizer) if end else []
    start = beginning(tokenizer)
    read = [*start, *ids, *tail]
    check_ids(model, [read])
    if len(read) < 2:
        raise DataError("The text has no token to predict", next="Give a longer text")
    said = np.array([*ids, *tail], dtype=np.int32)
    lines: list[NDArray[np.int32]] = []
    done = 0
    with evaluating(model):
        for window in windows(read, length):
            for logits, targets in _pieces(model, window):
                lines.append(_line(logits, targets, alternatives).cpu().numpy())
                done += len(targets)
                if progress is not None:
                    progress(done, len(read) - 1)
    found = np.concatenate(lines)  # int32 [N, 1 + K + 2 + K]
    kept = (found.shape[1] - 3) // 2
    floats = np.ascontiguousarray(found[:, 1 + kept :]).view(np.float32)
    loss = check_finite(-float(floats[:, 0].mean(dtype=np.float64)))
    given = len(said) - len(found)  # 1 where nothing stands before the first token
    position = np.arange(len(said), dtype=np.int32)
    spans = np.array([*offsets, *((len(text), len(text)) for _ in tail)], dtype=np.int64).reshape(-1, 2)
    columns: dict[str, Any] = {"position": position, "token": said, "text": token_texts(tokenizer, said)}
    columns |= {"start": spans[:, 0], "end": spans[:, 1], "probability": _missing(np.exp(floats[:, 0]), given)}
    columns |= {"logprob": _missing(floats[:, 0], given), "rank": _missing(found[:, 0], given)}
    columns |= {"entropy": _missing(floats[:, 1], given)}
    tops = found[:, 1 : 1 + kept].reshape(-1)
    others = {"position": position[given:].repeat(kept), "token": tops, "text": token_texts(tokenizer, tops)}
    others |= {"chosen": tops == said[given:].repeat(kept), "probability": floats[:, 2:].reshape(-1)}
    return Score(
        text=text,
        tokens=pa.table(columns),
        alternatives=pa.table(others),
        loss=loss,
        predicted=len(found),
        text_bytes=len(text.encode()) - sum(len(tokenizer.token_bytes(id)) for id in ids[:given]),
    )


def _pieces(model: PreTrainedModel, window: Window) -> Iterator[tuple[Tensor, Tensor]]:
    """Runs a window. Yields logits [T, V] and the tokens that came, int64 [T], of what counts, in order."""
    device = model.get_input_embeddings().weight.device
    ids = torch.tensor(window.ids, device=device)
    size = max(1, _LOGITS // model.config.get_text_config().vocab_size)
    taken = inspect.signature(model.forward).parameters
    cache_name = next((name for name in _CACHE_NAMES if name in taken), None)
    cache = _new_cache(model) if cache_name is not None and len(window) > size else None
    if cache is None:
        logits = model(input_ids=ids[None, :-1], use_cache=False).logits[0]
        for begin in range(window.first, len(window), size):
            yield logits[begin : begin + size], ids[begin + 1 : begin + 1 + size]
        return
    for begin in range(0, len(window), size):
        end = min(begin + size, len(window))
        options: dict[str, Any] = {str(cache_name): cache}
        if end <= window.first and "logits_to_keep" in taken:  # only keys and values are wanted
            options["logits_to_keep"] = 1
        logits = model(input_ids=ids[None, begin:end], use_cache=True, **options).logits[0]
        if end > window.first:
            skipped = max(0, window.first - begin)
            yield logits[skipped:], ids[begin + skipped + 1 : end + 1]


def _new_cache(model: PreTrainedModel) -> Any | None:
    """A cache that a text can be read into piece by piece; None for layers with a recurrent state."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    return cache if can_select(cache) else None


def _line(logits: Tensor, targets: Tensor, count: int) -> Tensor:
    """Rank, alternatives, then the bits of logprob, entropy and the alternatives' probabilities: one transfer.

    Returns:
        int32 [T, 1 + K + 2 + K].
    """
    logits = logits.float()
    top, rank = most_probable(logits, count), ranks(logits, targets)
    logprobs = logits.log_softmax(-1)
    of_target, of_top = logprobs.gather(1, targets[:, None]), logprobs.gather(1, top)
    entropy = torch.special.entr(logprobs.exp_()).sum(-1, keepdim=True)
    floats = torch.cat([of_target, entropy, of_top.exp()], 1)
    return torch.cat([rank[:, None].int(), top.int(), floats.view(torch.int32)], 1)


def _missing(numbers: NDArray[Any], given: int) -> pa.Array:
    """A column with nothing for the tokens that were given."""
    padded = np.concatenate([np.zeros(given, dtype=numbers.dtype), numbers])
    return pa.array(padded, mask=np.arange(len(padded)) < given)
