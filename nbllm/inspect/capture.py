"""One forward pass that notes each layer's queries and keys: enough to work any head's attention out later.

transformers' models ask a table for the function that attends. While a model is watched, that table's entry of ours is
the one they find: it notes queries, keys and mask, attends, and lets single heads be switched off. Afterwards the model
attends as before. Knows transformers' attention interface; nothing of tokens.

Legend: T tokens, H query heads, K key/value heads, C head size.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from nbllm.adapters import attached
from nbllm.errors import UsageError
from nbllm.sample.reading import evaluating

_NAME = "nbllm_watched"
_WEIGHTS = 2**25
"""Weights at once: 128 MiB in float32, of which a few copies are needed."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Layer:
    """What one layer's attention was computed from; on the CPU, in the model's dtype."""

    index: int
    """The layer's number in the model."""
    query: Tensor
    """[H, T, C], after position encoding."""
    key: Tensor
    """[K, T, C]."""
    mask: Tensor | None
    """Added to the scores, [T, T] or [H, T, T]; None: every token sees every other."""
    scaling: float
    """The scores' factor."""
    softcap: float | None
    """Scores are capped at this by a tangent (Gemma 2); None: not capped."""
    sinks: Tensor | None
    """[H], scores of a place that is no token and takes attention (gpt-oss); None: there is none."""

    @property
    def heads(self) -> int:
        """H."""
        return self.query.shape[0]

    def scores(
        self,
        heads: Sequence[int],
        rows: slice = slice(None),
        keys: slice = slice(None),
        masked: slice | None = slice(None),
    ) -> Tensor:
        """The scores before the softmax, float32 [h, q, k].

        Args:
            heads: which of the heads.
            rows: which queries.
            keys: which keys.
            masked: the keys, all among `keys`, for which the mask says anything to these queries; None: it says none.
        """
        share = self.heads // self.key.shape[0]
        scores = torch.stack(
            [
                (self.query[head, rows].float() * self.scaling) @ self.key[head // share, keys].float().T
                for head in heads
            ]
        )
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        if self.mask is not None and masked is not None:
            mask = self.mask if self.mask.ndim == 2 else self.mask[list(heads)]
            begin = (masked.start or 0) - (keys.start or 0)
            part = scores[..., begin : None if masked.stop is None else begin + masked.stop - masked.start]
            part += mask[..., rows, masked].float()
        return scores

    def weights(self, heads: Sequence[int] | None = None) -> Tensor:
        """Attention of some heads, or of all, float32 [h, T, T]; each row sums to 1 (to less where there is a sink)."""
        heads = range(self.heads) if heads is None else heads
        scores = self.scores(heads)
        if self.sinks is None:
            return scores.softmax(-1)
        sinks = self.sinks[list(heads)].float()[:, None, None].expand(-1, scores.shape[1], 1)
        return torch.cat([scores, sinks], dim=-1).softmax(-1)[..., :-1]

    def parts(self) -> Iterator[Tensor]:
        """All weights, as many heads at once as stay small, float32 [h, T, T] each."""
        size = max(1, _WEIGHTS // self.query.shape[1] ** 2)
        for begin in range(0, self.heads, size):
            yield self.weights(range(begin, min(begin + size, self.heads)))


@dataclass(frozen=True, kw_only=True, eq=False)
class Pass:
    """What one pass noted."""

    layers: list[Layer]
    """The layers that attend."""
    logits: Tensor
    """Of the token looked at, float32 [V] on the CPU."""
    states: tuple[Tensor, ...] | None
    """What each layer handed on, [1, T, width]; None where that isn't all it hands on."""


@dataclass(kw_only=True, eq=False)
class _Watch:
    """What the attention function does during one pass."""

    off: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """Heads to switch off, by layer."""
    note: bool = True
    """Whether to note queries and keys."""
    layers: list[Layer] = field(default_factory=list)
    calls: int = 0


_watch: ContextVar[_Watch | None] = ContextVar("watch", default=None)


def run(
    model: Any,
    ids: Sequence[int],
    *,
    attention_mask: Sequence[int] | None = None,
    place: int = -1,
) -> Pass:
    """Runs the model over a text.

    Args:
        model: a causal or masked language model of transformers.
        ids: T token ids.
        attention_mask: 0 for each token that is padding; None: there is none.
        place: the token whose logits are wanted.

    Raises:
        UsageError: a model that doesn't attend through transformers' interface.
    """
    states: list[Any] = []
    watch = _Watch()
    layers = _stack(model)
    with ExitStack() as stack:
        for layer in layers:
            stack.callback(layer.register_forward_hook(lambda _, __, output: states.append(output)).remove)
        logits = _forward(model, ids, watch, attention_mask, place)
    if not watch.calls:
        raise UsageError(
            f"{type(model).__name__} doesn't attend through transformers' attention interface",
            next="Choose another --model",
        )
    plain = len(states) == len(layers) > 0 and all(isinstance(state, Tensor) for state in states)
    # where later layers read earlier ones' keys, what a layer hands on isn't all they need
    shared = getattr(model.config.get_text_config(), "num_kv_shared_layers", 0)
    return Pass(layers=watch.layers, logits=logits, states=tuple(states) if plain and not shared else None)


def run_without(
    model: Any,
    ids: Sequence[int],
    off: Mapping[int, Sequence[int]],
    *,
    states: Sequence[Tensor] | None = None,
    attention_mask: Sequence[int] | None = None,
    place: int = -1,
) -> Tensor:
    """Runs the model with some heads' outputs set to zero, before the layers' output projections.

    Args:
        model, ids, attention_mask, place: as of `run`.
        off: the heads by layer.
        states: of `run` over these ids; layers below the lowest in `off` aren't computed again.

    Returns:
        Logits at the place, float32 [V] on the CPU.
    """
    lowest = min(off, default=0)
    watch = _Watch(off=off, note=False)
    with ExitStack() as stack:
        if states is not None and lowest > 0:
            stack.enter_context(_skipped(_stack(model)[:lowest], states[lowest - 1]))
        return _forward(model, ids, watch, attention_mask, place)


def _forward(model: Any, ids: Sequence[int], watch: _Watch, attention_mask: Sequence[int] | None, place: int) -> Tensor:
    """Logits at a place, float32 [V] on the CPU."""
    device = model.get_input_embeddings().weight.device
    inputs: dict[str, Any] = {"input_ids": torch.tensor([list(ids)], device=device), "use_cache": False}
    if attention_mask is not None:
        inputs["attention_mask"] = torch.tensor([list(attention_mask)], device=device)
    if place == -1 and "logits_to_keep" in inspect.signature(model.forward).parameters:
        inputs["logits_to_keep"] = 1
    with evaluating(model), _watched(model), _watching(watch):
        logits: Tensor = model(**inputs).logits[0, place].float().cpu()
    return logits


def _stack(model: Any) -> list[nn.Module]:
    """The model's layers in order; none where they aren't found."""
    count = model.config.get_text_config().num_hidden_layers
    lists = (module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) == count)
    return list(next(lists, ()))


@contextmanager
def _skipped(layers: Sequence[nn.Module], state: Tensor) -> Iterator[None]:
    """These layers compute nothing and hand on what the last of them did."""
    before = [layer.__dict__.get("forward") for layer in layers]
    try:
        for layer in layers:
            layer.__dict__["forward"] = lambda *_, **__: state
        yield
    finally:
        for layer, own in zip(layers, before, strict=True):
            if own is None:
                layer.__dict__.pop("forward", None)
            else:
                layer.__dict__["forward"] = own


@contextmanager
def _watching(watch: _Watch) -> Iterator[_Watch]:
    token = _watch.set(watch)
    try:
        yield watch
    finally:
        _watch.reset(token)


@contextmanager
def _watched(model: nn.Module) -> Iterator[None]:
    """The model attends through `_attend`; afterwards as before, whatever happened.

    Raises:
        UsageError: its adapter has virtual tokens, which stand outside the text.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    adapter = attached(model)
    if adapter is not None and adapter.virtual_tokens:
        raise UsageError("Attention to virtual tokens isn't shown", next="Look at the base: %llm_adapter off")
    AttentionInterface.register(_NAME, _attend)
    AttentionMaskInterface.register(_NAME, eager_mask)
    configs: dict[int, Any] = {
        id(module.config): module.config
        for module in model.modules()
        if hasattr(getattr(module, "config", None), "_attn_implementation")
    }
    before = [(config, config._attn_implementation) for config in configs.values()]
    try:
        for config, _ in before:
            config._attn_implementation = _NAME
        yield
    finally:
        for config, name in before:
            config._attn_implementation = name


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    **_others: Any,
) -> tuple[Tensor, None]:
    """transformers' attention function: [1, H, T, C], [1, K, T, C] twice, to [1, T, H, C]."""
    watch = _watch.get()
    assert watch is not None
    index = getattr(module, "layer_idx", None)
    index = watch.calls if index is None else int(index)
    watch.calls += 1
    sinks = getattr(module, "sinks", None)
    layer = Layer(
        index=index,
        query=query[0],
        key=key[0],
        mask=None if attention_mask is None else _one_mask(attention_mask),
        scaling=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        softcap=softcap,
        sinks=sinks,
    )
    output = _attended(layer, value[0])
    heads = list(watch.off.get(index, ()))
    if heads:
        output[heads] = 0
    if watch.note:
        watch.layers.append(_kept(layer, watch.layers))
    return output.transpose(0, 1)[None].contiguous(), None


def _attended(layer: Layer, value: Tensor) -> Tensor:
    """What the layer's heads pass on of values [K, T, C]: [H, T, C]."""
    query = layer.query
    if layer.softcap is None and layer.sinks is None:
        # four dimensions: with fewer, torch takes its slow path
        mask = None if layer.mask is None else layer.mask.reshape(1, -1, *layer.mask.shape[-2:]).to(query.dtype)
        return functional.scaled_dot_product_attention(
            query[None], layer.key[None], value[None], mask, scale=layer.scaling, enable_gqa=True
        )[0]
    share = layer.heads // value.shape[0]
    passed = [layer.weights([head])[0] @ value[head // share].float() for head in range(layer.heads)]
    return torch.stack(passed).to(query.dtype)


def _one_mask(mask: Tensor) -> Tensor:
    """[1, 1 or H, T, T] without what is 1."""
    return mask[0, 0] if mask.shape[1] == 1 else mask[0]


def _kept(layer: Layer, before: Sequence[Layer]) -> Layer:
    """The layer on the CPU; layers with the same mask share it."""
    mask = None if layer.mask is None else layer.mask.cpu()
    if mask is not None:
        mask = next((old.mask for old in before if old.mask is not None and torch.equal(old.mask, mask)), mask)
    return Layer(
        index=layer.index,
        query=layer.query.cpu().clone(),
        key=layer.key.cpu().clone(),
        mask=mask,
        scaling=layer.scaling,
        softcap=layer.softcap,
        sinks=None if layer.sinks is None else layer.sinks.detach().cpu().clone(),
    )
