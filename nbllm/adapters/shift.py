"""Which tokens of a text an adapter makes more or less probable: the model with it and without, on the same ids.

Without means at scale 0, so that nothing is loaded again. Knows ids only, no tokenizer.

Legend: T ids of a document, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbllm.adapters.lora import attached
from nbllm.adapters.scale import set_scale
from nbllm.errors import DataError, UsageError

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel


@dataclass(frozen=True, kw_only=True)
class Shift:
    """One token of a document."""

    document: int
    """Which document."""
    position: int
    """Its place in the document, at least 1."""
    token: int
    """Its id."""
    before: float
    """Natural logarithm of its probability under the base."""
    after: float
    """The same with the adapter."""

    @property
    def moved(self) -> float:
        """How much the logarithm grew."""
        return self.after - self.before


def shifts(model: PreTrainedModel, documents: Sequence[Sequence[int]]) -> list[Shift]:
    """Every token of the documents but their first, with its probability without and with the attached adapter.

    Args:
        model: carries an adapter, whose scale is as before afterwards.
        documents: ids of each; one of a single id says nothing.

    Raises:
        UsageError: no adapter.
        DataError: no document has two ids.
    """
    import torch

    adapter = attached(model)
    if adapter is None:
        raise UsageError("This model carries no adapter", next="Attach one with %llm_adapter use NAME")
    device = model.get_input_embeddings().weight.device
    rows = [(number, torch.tensor([ids], device=device)) for number, ids in enumerate(documents) if len(ids) > 1]
    if not rows:
        raise DataError("There is no text on which tokens could move", next="Add --on FILE")
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            after = [_logprobs(model, ids) for _, ids in rows]
            set_scale(model, 0.0)
            before = [_logprobs(model, ids) for _, ids in rows]
    finally:
        set_scale(model, adapter.scale)
        model.train(training)
    return [
        Shift(document=number, position=place, token=token, before=old, after=new)
        for (number, ids), one, other in zip(rows, before, after, strict=True)
        for place, (token, old, new) in enumerate(zip(ids[0, 1:].tolist(), one, other, strict=True), 1)
    ]


def _logprobs(model: PreTrainedModel, ids: Tensor) -> list[float]:
    """Of every id [1, T] but the first."""
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits[0].float()  # [T - 1, V]
    found = logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
    values: list[float] = found.tolist()
    return values
