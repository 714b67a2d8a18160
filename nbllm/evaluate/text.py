"""How well a model predicts text: loss in nats a token, perplexity, bits a byte; and what compressors make of it.

Every document stands alone: it begins with the tokenizer's beginning-of-text token (else its end-of-text token), so
that its first token is predicted too, and it ends with the end-of-text token, as in training. Bits a byte divides the
same nats by the bytes of the text, so that models with different tokenizers, and compressors, can be compared. A
document longer than the context is read in windows that overlap by half. Doesn't know how models are trained.

Legend: B rows, T inputs a row, V tokens of the vocabulary.
"""

from __future__ import annotations

import gzip
import lzma
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbllm.errors import DataError
from nbllm.evaluate.table import html_table, text_table
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

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from nbllm.tokenizer import Tokenizer

_IGNORED = -100
_LOGITS = 2**26
"""Numbers in one batch of logits: 256 MiB in float32."""
_XZ_DICTIONARY = 64 * 2**20


@dataclass(frozen=True, kw_only=True)
class EvalResult:
    """What a model thinks of some text."""

    loss: float
    """Mean cross-entropy, nats a token."""
    bits_per_byte: float
    """The same sum in bits, over the text's UTF-8 bytes."""
    tokens: int
    """Tokens that were predicted, ends of text included."""
    text_bytes: int
    """UTF-8 bytes of the text."""
    documents: int
    """Documents, each read by itself."""

    @property
    def perplexity(self) -> float:
        """e to the loss; infinite where that is too large for a number."""
        return perplexity(self.loss)

    def rows(self) -> list[tuple[str, str]]:
        """The result as label and value."""
        return [
            ("Loss", f"{self.loss:.4f} nats a token"),
            ("Perplexity", f"{self.perplexity:,.2f}"),
            ("Bits a byte", f"{self.bits_per_byte:.4f}"),
            ("Text", f"{self.documents:,} documents, {self.text_bytes:,} bytes, {self.tokens:,} tokens"),
        ]

    def __str__(self) -> str:
        return text_table(self.rows())

    def _repr_html_(self) -> str:
        return html_table(self.rows())


def evaluate(
    model: PreTrainedModel,
    tokenizer: Tokenizer,
    texts: Iterable[str],
    *,
    context: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> EvalResult:
    """Loss, perplexity and bits a byte of texts.

    Args:
        model: a causal language model of transformers.
        tokenizer: the model's.
        texts: documents; empty ones are left out.
        context: T, the most tokens read at once; the model's own by default, but at most 2,048.
        progress: called with tokens done and tokens in all.

    Raises:
        DataError: there is no text, or no token to predict in it, or the model's logits aren't numbers.
        UsageError: a context that the model doesn't have, or a tokenizer with more tokens than the model knows.
    """
    documents = [text for text in texts if text]
    if not documents:
        raise DataError("There is no text to evaluate on")
    length = window_length(model, context)
    start, end = beginning(tokenizer), ending(tokenizer)
    encoded = tokenizer.encode_batch(documents)
    check_ids(model, encoded)
    read = [window for ids in encoded for window in windows([*start, *ids, *end], length)]
    nats, count = _predict(model, read, progress)
    if not count:
        raise DataError("The text has no token to predict", next="Give longer texts")
    # without a first token, the first one of a text is given, not predicted, and its bytes don't count
    given = 0 if start else sum(len(tokenizer.token_bytes(ids[0])) for ids in encoded if ids)
    return _result(nats, count, sum(len(text.encode()) for text in documents) - given, len(documents))


def compressed_bits_per_byte(texts: Iterable[str]) -> dict[str, float]:
    """What `xz -9` and `gzip -9` make of the same text (documents joined by newlines): bits a byte.

    Raises:
        DataError: there is no text.
    """
    content = "\n".join(texts).encode()
    if not content:
        raise DataError("There is no text to compress")
    # xz's level 9 with a dictionary no larger than the text: the same size, without its 674 MiB of memory
    dictionary = min(_XZ_DICTIONARY, max(4096, len(content)))
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9, "dict_size": dictionary}]
    sizes = {
        "xz": len(lzma.compress(content, format=lzma.FORMAT_XZ, filters=filters)),
        "gzip": len(gzip.compress(content, compresslevel=9, mtime=0)),
    }
    return {name: 8 * size / len(content) for name, size in sizes.items()}


def _predict(
    model: PreTrainedModel, read: list[Window], progress: Callable[[int, int], None] | None
) -> tuple[float, int]:
    """Sum of nats and number of targets that count."""
    import torch

    device = model.get_input_embeddings().weight.device
    total = sum(len(window) - window.first for window in read)
    nats, count = 0.0, 0
    with evaluating(model):
        for batch in _batches(read, model.config.get_text_config().vocab_size):
            width = len(batch[0])
            ids = torch.zeros(len(batch), width, dtype=torch.long)  # [B, T]; what pads on the right is never looked at
            targets = torch.full((len(batch), width), _IGNORED)
            for row, window in enumerate(batch):
                ids[row, : len(window)] = torch.tensor(window.ids[:-1])
                targets[row, window.first : len(window)] = torch.tensor(window.ids[1 + window.first :])
                count += len(window) - window.first
            logits = model(input_ids=ids.to(device), use_cache=False).logits  # [B, T, V]
            nats += float(_nats(logits, targets.to(device)))
            if progress is not None:
                progress(count, total)
    return nats, count


def _batches(read: list[Window], vocab_size: int) -> Iterator[list[Window]]:
    """Windows of like length together, the longest first, as many as keep the logits small."""
    batch: list[Window] = []
    for window in sorted(read, key=len, reverse=True):
        if batch and (len(batch) + 1) * len(batch[0]) * vocab_size > _LOGITS:
            yield batch
            batch = []
        batch.append(window)
    if batch:
        yield batch


def _nats(logits: Tensor, targets: Tensor) -> Tensor:
    from torch.nn.functional import cross_entropy

    losses = cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=_IGNORED, reduction="none")
    return losses.cpu().double().sum()


def _result(nats: float, count: int, text_bytes: int, documents: int) -> EvalResult:
    return EvalResult(
        loss=check_finite(nats) / count,
        bits_per_byte=nats / math.log(2) / text_bytes if text_bytes else math.inf,
        tokens=count,
        text_bytes=text_bytes,
        documents=documents,
    )
