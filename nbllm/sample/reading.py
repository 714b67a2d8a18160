"""How a model reads text that it didn't make: where a document begins and ends, windows past the context.

Every document begins with the tokenizer's beginning-of-text token (else its end-of-text token), so that its first token
is predicted too. One longer than the context is read in windows that overlap by half, and each token counts once. Knows
tokenizers and what a model's configuration says; not what is made of the logits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbllm.errors import DataError, UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from nbllm.tokenizer import Tokenizer

_MOST_CONTEXT = 2048


@dataclass(frozen=True, kw_only=True)
class Window:
    """A piece of a document: what the model reads, and what of it counts. Its length is that of the inputs."""

    ids: list[int]
    """Inputs and, one longer, their targets."""
    first: int
    """The first target that counts; those before were counted in the window before."""

    def __len__(self) -> int:
        return len(self.ids) - 1


def windows(ids: list[int], length: int) -> Iterator[Window]:
    """Cuts a document's ids into windows of at most `length` inputs; each target counts once."""
    inputs = len(ids) - 1
    done, end = 0, min(length, inputs)
    while done < inputs:
        begin = max(0, end - length)
        yield Window(ids=ids[begin : end + 1], first=done - begin)
        done, end = end, min(end + length // 2, inputs)


def window_length(model: PreTrainedModel, context: int | None = None) -> int:
    """The most tokens that are read at once.

    Args:
        model: a causal language model of transformers.
        context: what was asked for; by default the model's own, but at most 2,048.

    Raises:
        UsageError: a context that the model doesn't have.
    """
    from nbllm.adapters import attached

    largest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if largest is not None and (adapter := attached(model)) is not None:
        largest -= adapter.virtual_tokens
    length = context if context is not None else min(largest or _MOST_CONTEXT, _MOST_CONTEXT)
    if length < 2 or (largest is not None and length > largest):
        raise UsageError(f"The context is from 2 to {largest or 'any number of'} tokens", received=context)
    return length


def beginning(tokenizer: Tokenizer) -> list[int]:
    """The token before a document, from which its first one is predicted; none where the tokenizer has none."""
    first = tokenizer.bos_id if tokenizer.bos_id is not None else tokenizer.eos_id
    return [] if first is None else [first]


def ending(tokenizer: Tokenizer) -> list[int]:
    """The token after a document; none where the tokenizer has none."""
    return [] if tokenizer.eos_id is None else [tokenizer.eos_id]


def check_ids(model: PreTrainedModel, encoded: Iterable[list[int]]) -> None:
    """Raises UsageError for a token that the model doesn't know."""
    vocab_size = model.config.get_text_config().vocab_size
    highest = max((max(ids, default=0) for ids in encoded), default=0)
    if highest >= vocab_size:
        raise UsageError(
            f"The text has token {highest}, and the model's vocabulary has {vocab_size:,} tokens",
            next="Load the tokenizer that the model was trained with",
        )


def check_finite(nats: float) -> float:
    """Gives the number back; raises DataError where it is none."""
    if not math.isfinite(nats):
        raise DataError("The model's logits aren't finite numbers", next="Load it as fp32, or an older checkpoint")
    return nats


def perplexity(loss: float) -> float:
    """e to the loss; infinite where that is too large for a number."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


@contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """No gradients, evaluation mode, and the mode it was in afterwards."""
    import torch

    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)
