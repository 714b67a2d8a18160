"""One decode step as a module that can be compiled ahead of time: token and place in, logits out, buffers written.

It is a copy of the model's modules over the same weights, in which a product with one row is a fused
multiply-and-sum (a matrix-vector product is bound by reading the weights, and so reads them at the memory's speed), and
attention is written out over the buffers, so that all of a step becomes one loop nest. LoRA weights are merged into
the copy. Knows nothing of sampling.

Legend: B = 1 row, D inputs, O outputs, H heads, K key/value heads, L places, C head size, V tokens of the vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

ATTENTION = "nbllm_step"
_STRANGE = ("s_aux", "position_bias", "head_mask")


class Unsupported(Exception):
    """This model's step isn't compiled; the message says why."""


class Step(nn.Module):
    """The step of a model.

    Args:
        model: a causal language model of transformers, with or without a LoRA adapter. It isn't changed, and its
            weights are shared.

    Raises:
        Unsupported: an adapter of another kind.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = plain_copy(model)
        config: Any = self.model.config
        text = config.get_text_config()
        config._attn_implementation = text._attn_implementation = ATTENTION
        self._window: int | None = getattr(text, "sliding_window", None)
        kinds = set(getattr(text, "layer_types", None) or ())
        self._kinds = tuple(sorted(kinds))
        if not kinds <= {"full_attention", "sliding_attention"}:
            raise Unsupported(f"it has layers of {', '.join(sorted(kinds))}")
        _one_row(self.model)

    def forward(self, token: Tensor, place: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
        """Runs one id.

        Args:
            token: int64 [1, 1].
            place: where its key and value go, and its position; int64 [1].
            keys, values: of each layer [1, K, L, C]; written at `place`.

        Returns:
            float32 [1, V].
        """
        cache = Cache(layers=[_Layer(k, v, place) for k, v in zip(keys, values, strict=True)])
        logits: Tensor = self.model(
            input_ids=token,
            position_ids=place[None],
            attention_mask=self._mask(place, keys[0].shape[2]),
            cache=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits
        return logits[:, -1].float()

    def _mask(self, place: Tensor, places: int) -> Any:
        """True where a place counts, bool [1, 1, 1, L]; by kind of layer where there are several."""
        numbers = torch.arange(places, device=place.device)
        whole = (numbers <= place)[None, None, None]
        near = whole if self._window is None else whole & (numbers > place - self._window)[None, None, None]
        if len(self._kinds) > 1:
            return {"full_attention": whole, "sliding_attention": near}
        return whole if self._kinds == ("full_attention",) else near


class _Layer(CacheLayerMixin):
    """Writes into buffers that it was given."""

    is_compileable = True
    is_sliding = False

    def __init__(self, keys: Tensor, values: Tensor, place: Tensor) -> None:
        super().__init__()
        self.keys, self.values, self.is_initialized = keys, values, True
        self._place = place

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing is left to make: the buffers were given."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        self.keys.index_copy_(2, self._place, key_states)
        self.values.index_copy_(2, self._place, value_states)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.keys.shape[2], 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return self.keys.shape[2]


class _OneRow(nn.Module):
    """A linear layer for one row, as a product and a sum that a compiler fuses."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, states: Tensor) -> Tensor:
        found = (states.float().unsqueeze(-2) * self.weight.float()).sum(-1)
        return (found if self.bias is None else found + self.bias.float()).to(states.dtype)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float | None = None,
    softcap: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention of one query, in float32. query [1, H, 1, C], key and value [1, K, L, C]; returns [1, 1, H, C].

    Raises:
        Unsupported: the model asks for something else than masked attention.
    """
    if any(options.get(name) is not None for name in _STRANGE) or attention_mask is None:
        raise Unsupported("its attention is of another kind")
    rows, heads, _, size = query.shape
    groups = key.shape[1]
    query = query.reshape(rows, groups, heads // groups, 1, size).float() * (size**-0.5 if scaling is None else scaling)
    scores = (query * key.float().unsqueeze(2)).sum(-1)  # [1, K, H / K, L]
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.masked_fill(~attention_mask, float("-inf"))
    found = (scores.softmax(-1).unsqueeze(-1) * value.float().unsqueeze(2)).sum(-2)  # [1, K, H / K, C]
    return found.reshape(rows, 1, heads, value.shape[-1]).to(value.dtype), None


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, attend)


def plain_copy(model: nn.Module) -> nn.Module:
    """The model's modules once more over the same parameters and buffers, with LoRA adapters merged in.

    Raises:
        Unsupported: an adapter that isn't plain LoRA.
    """
    tensors = [*model.parameters(), *model.buffers()]
    made: nn.Module = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors}).eval()
    for parent, name, child in list(_children(made)):
        if hasattr(child, "base_layer"):
            setattr(parent, name, _merged(child))
    return made


def _merged(layer: Any) -> Any:
    """The layer under a LoRA layer with the adapter added; its own weights aren't changed."""
    base: Any = layer.base_layer
    if layer.disable_adapters or not layer.active_adapters:
        return base
    if not hasattr(layer, "get_delta_weight") or any(getattr(layer, "use_dora", {}).values()):
        raise Unsupported("its adapter isn't plain LoRA")
    weight = base.weight.detach()
    for adapter in layer.active_adapters:
        if adapter in layer.lora_A:
            weight = weight + layer.get_delta_weight(adapter).to(weight.dtype)
    base.weight = nn.Parameter(weight, requires_grad=False)  # of the copy
    return base


def _children(module: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    for parent in module.modules():
        for name, child in parent.named_children():
            yield parent, name, child


def _one_row(model: nn.Module) -> None:
    """On a CPU a product with one row is written out; a GPU's own matrix-vector product is as fast."""
    for parent, name, child in list(_children(model)):
        if type(child) is nn.Linear and child.weight.device.type == "cpu":
            setattr(parent, name, _OneRow(child))
