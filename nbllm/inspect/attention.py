"""Attention of one text: every head's map on demand, never all of them at once.

Kept are each layer's queries and keys, from which a map is worked out when it is looked at: for T tokens, H heads of
size C and L layers, about 2 L H T C numbers in place of L H T². Draws nothing.

Legend: L layers that attend, H query heads, T tokens, V vocabulary.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from nbllm.errors import NotFoundError, UsageError
from nbllm.inspect.capture import Layer, run, run_without
from nbllm.inspect.head_scores import KINDS, entropy
from nbllm.inspect.masked import encode_masked, is_masked, mask_place, mask_token
from nbllm.inspect.survey import survey
from nbllm.sample.prompt import encode_prompt
from nbllm.sample.reading import check_ids
from nbllm.sample.trace import most_probable, token_texts
from nbllm.tokenizer import Tokenizer

Float = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class NextToken:
    """One token that may come next."""

    token_id: int
    """Its id."""
    text: str
    """Its text, made visible."""
    probability: float
    """With all heads."""
    without: float
    """With some heads switched off."""


class AttentionMaps:
    """Attention of one model over one text.

    Args:
        model: the model; only weakly held, for `next_tokens`.
        tokenizer: the model's.
        ids: T token ids.
        name: what to call the model.
        lock: held while the model runs.
        attention_mask: 0 for each token that is padding.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        ids: Sequence[int],
        *,
        name: str = "",
        lock: AbstractContextManager[Any] | None = None,
        attention_mask: Sequence[int] | None = None,
    ) -> None:
        masked = is_masked(model)
        self._place: int | None = mask_place(tokenizer, ids) if masked else -1
        found = run(model, ids, attention_mask=attention_mask, place=-1 if self._place is None else self._place)
        self._layers, self._states, self._padding = found.layers, found.states, attention_mask
        self._probabilities = found.logits.softmax(-1)
        self._model = weakref.ref(model)
        self._tokenizer = tokenizer
        self._lock = lock or contextlib.nullcontext()
        self._thumbnails: dict[int, NDArray[np.uint8]] = {}
        self._scores: Tensor | None = None
        self._rollout: tuple[int, Tensor] | None = None
        self.tokens: tuple[str, ...] = tuple(token_texts(tokenizer, np.array(ids, dtype=np.int32)).to_pylist())
        """The text's tokens, made visible (T)."""
        self.token_ids: tuple[int, ...] = tuple(ids)
        """Their ids."""
        self.layers: int = len(self._layers)
        """L."""
        self.layer_indices: tuple[int, ...] = tuple(layer.index for layer in self._layers)
        """The numbers that the layers have in the model; some of a hybrid model's layers don't attend."""
        self.heads: int = max(layer.heads for layer in self._layers)
        """H."""
        self.model: str = name or type(model).__name__
        """What was looked at: name, checkpoint, adapter."""
        self.predicts: str = f"token in place of {mask_token(tokenizer) or 'the mask'}" if masked else "next token"
        """What `next_tokens` are."""

    def __repr__(self) -> str:
        return f"AttentionMaps({self.model!r}, {len(self.tokens):,} tokens, {self.layers} layers × {self.heads} heads)"

    def weights(self, layer: int, head: int) -> Float:
        """One head's map, float32 [T, T]: row q says how token q spreads its attention; rows sum to 1.

        Args:
            layer: the layer's number in the model.
            head: the head's, from 0.

        Raises:
            UsageError: there is no such layer or head.
        """
        found = self._layer(layer)
        if not 0 <= head < found.heads:
            raise UsageError("There is no such head", received=head, next=f"Choose 0 to {found.heads - 1}")
        return _array(found.weights([head])[0])

    def layer(self, layer: int) -> Float:
        """All maps of one layer, float32 [H, T, T]."""
        return _array(self._layer(layer).weights())

    def entropy(self, layer: int, head: int) -> Float:
        """How widely each token looks, float32 [T], in nats."""
        return _array(entropy(torch.from_numpy(self.weights(layer, head))))

    def thumbnails(self, size: int = 64) -> NDArray[np.uint8]:
        """Every head small, uint8 [L, H, size, size]: the largest weight of each block, against the head's largest."""
        if size not in self._thumbnails:
            self._survey(size)
        return self._thumbnails[size]

    @property
    def scores(self) -> pa.Table:
        """One row a head: `layer`, `head`, the scores of `nbllm.inspect.head_scores` (shares of attention, NaN where
        the text has no such place), `entropy` in nats, `distance` in tokens."""
        if self._scores is None:
            self._survey(None)
        assert self._scores is not None
        columns: dict[str, Any] = {
            "layer": np.repeat(np.array(self.layer_indices, dtype=np.int32), self.heads),
            "head": np.tile(np.arange(self.heads, dtype=np.int32), self.layers),
        }
        values = self._scores.reshape(-1, len(KINDS) + 2).numpy()
        for at, name in enumerate((*KINDS, "entropy", "distance")):
            columns[name] = values[:, at]
        return pa.table(columns)

    def _survey(self, size: int | None) -> None:
        """Goes once over all maps for thumbnails and scores."""
        small, scores = survey(self._layers, self.token_ids, size, scores=self._scores is None)
        if small is not None and size:
            self._thumbnails[size] = small
        if scores is not None:
            self._scores = scores

    def rollout(self, *, until: int | None = None) -> Float:
        """Attention followed through the layers, float32 [T, T]; half of each layer goes by in the residual stream.

        Abnar and Zuidema 2020, "Quantifying attention flow in transformers" (https://arxiv.org/abs/2005.00928).

        Args:
            until: the last layer's number; all by default.
        """
        last = self.layers - 1 if until is None else self.layer_indices.index(self._layer(until).index)
        begin, joint = 0, torch.eye(len(self.tokens))
        if self._rollout is not None and self._rollout[0] <= last:
            begin, joint = self._rollout[0] + 1, self._rollout[1]
        for layer in self._layers[begin : last + 1]:
            mean = torch.stack([weights.sum(0) for weights in layer.parts()]).sum(0) / layer.heads
            joint = 0.5 * (mean @ joint) + 0.5 * joint
        self._rollout = last, joint
        return _array(joint)

    def next_tokens(self, *, without: Sequence[tuple[int, int]] = (), top: int = 10) -> list[NextToken]:
        """The tokens that are most probable after the text, with all heads or without some.

        A head is switched off by setting its output to zero before the layer's output projection. A masked model
        predicts no next token: of it, these are the tokens in place of the text's last mask token.

        Args:
            without: (layer, head) of each head to switch off.
            top: how many.

        Raises:
            UsageError: there is no such head, or a masked model's text has no mask token.
            NotFoundError: the model has been released.
        """
        if self._place is None:
            token = mask_token(self._tokenizer)
            raise UsageError(
                "A masked model predicts what a mask token hides, and the text has none",
                next=f"Put {token} into the text" if token else "Use a tokenizer with a mask token",
            )
        off: dict[int, list[int]] = {}
        for layer, head in without:
            if not 0 <= head < self._layer(layer).heads:
                raise UsageError("There is no such head", received=(layer, head), next=f"Choose 0 to {self.heads - 1}")
            off.setdefault(layer, []).append(head)
        other = self._probabilities
        if off:
            model = self._model()
            if model is None:
                raise NotFoundError("The model has been released", next="Look at the text again: %llm_attention")
            with self._lock:
                found = run_without(
                    model, self.token_ids, off, states=self._states, attention_mask=self._padding, place=self._place
                )
            other = found.softmax(-1)
        ids = most_probable(torch.maximum(self._probabilities, other)[None], min(top, len(other)))[0]
        texts = token_texts(self._tokenizer, ids.numpy().astype(np.int32)).to_pylist()
        return [
            NextToken(
                token_id=int(token),
                text=text,
                probability=float(self._probabilities[token]),
                without=float(other[token]),
            )
            for token, text in zip(ids, texts, strict=True)
        ]

    def _layer(self, number: int) -> Layer:
        for layer in self._layers:
            if layer.index == number:
                return layer
        low, high = self.layer_indices[0], self.layer_indices[-1]
        raise UsageError("No such layer attends", received=number, next=f"Choose one from {low} to {high}")


def attention(
    model: Any,
    tokenizer: Tokenizer,
    text: str | Sequence[int],
    *,
    name: str = "",
    lock: AbstractContextManager[Any] | None = None,
) -> AttentionMaps:
    """Runs the model once over a text, and gives its attention.

    Args:
        model: a causal or masked language model of transformers, whatever attention implementation it has.
        tokenizer: the model's.
        text: any text, or token ids.
        name: what to call the model.
        lock: held while the model runs again for `AttentionMaps.next_tokens`.

    Raises:
        UsageError: no token, more than the context holds, unknown ones, or a model that attends in a way of its own.
    """
    ids = encode_prompt(tokenizer, encode_masked(tokenizer, text) if is_masked(model) else text)
    check_ids(model, [ids])
    if not ids:
        raise UsageError("There is no token to look at", next='For example %llm_attention "The cat sat on the mat"')
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if longest is not None and len(ids) > longest:
        raise UsageError("The text is longer than the model's context", received=len(ids), next=f"At most {longest:,}")
    return AttentionMaps(model, tokenizer, ids, name=name, lock=lock)


def _array(tensor: Tensor) -> Float:
    return np.ascontiguousarray(tensor.numpy(), dtype=np.float32)
