"""What an attached adapter changes in a model: for every adapted weight, how large the change is, by layer and module.

Of methods that change weights (LoRA, QLoRA, DoRA, IA3) the Frobenius norm of the change, and its share of the weight's
own. Of the others what they add: a bottleneck's product of its two matrices, a virtual token's length. Knows the model
and its adapter; draws nothing.

Legend: D inputs, O outputs, r rank.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nbllm.adapters import bottleneck, virtual
from nbllm.adapters.lora import attached
from nbllm.errors import UsageError
from nbllm.model.structure import find_blocks

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Change:
    """The change at one place."""

    layer: int | None
    """Number of the block; None outside of them."""
    module: str
    """The layer's short name in its block: `q_proj`, or `keys`, `values`, `embeddings`."""
    norm: float
    """Frobenius norm of the change, at the adapter's scale."""
    share: float | None
    """That over the norm of the weight that is changed; None where nothing is there to compare it with."""


def changes(model: nn.Module) -> list[Change]:
    """The changes of the attached adapter, first block first.

    Raises:
        UsageError: the model carries none.
    """
    import torch

    adapter = attached(model)
    if adapter is None:
        raise UsageError("This model carries no adapter", next="Attach one with %llm_adapter use NAME")
    scale = adapter.scale
    with torch.no_grad():
        if isinstance(adapter.tuner, virtual.Tuner):
            return [
                Change(layer=layer, module=name, norm=scale * float(states.float().norm()), share=None)
                for layer, name, states in adapter.tuner.parts()
            ]
        if isinstance(adapter.tuner, bottleneck.Tuner):
            found = []
            for number, (name, detour) in enumerate(zip(adapter.tuner.names, adapter.tuner.detours, strict=True)):
                product = detour.up.weight.float() @ detour.down.weight.float()
                module = name.rpartition(".")[2]
                found.append(Change(layer=number, module=module, norm=scale * float(product.norm()), share=None))
            return found
        return _of_weights(model, scale)


def _of_weights(model: nn.Module, scale: float) -> list[Change]:
    from peft.tuners.tuners_utils import BaseTunerLayer

    prefix, _ = find_blocks(model)
    inside = re.compile(re.escape(prefix) + r"\.(\d+)\.")
    found = []
    for name, layer in model.named_modules():
        if not isinstance(layer, BaseTunerLayer):
            continue
        weight = _weight(layer.get_base_layer())  # [O, D]
        changed = _norm(layer, weight, scale)
        own = float(weight.norm())
        place = inside.match(name)
        found.append(
            Change(
                layer=int(place[1]) if place else None,
                module=name.rpartition(".")[2],
                norm=changed,
                share=changed / own if own else None,
            )
        )
    return found


def _weight(base: Any) -> Tensor:
    """A linear layer's weight in fp32, [O, D], also where it lies in 4 bits or transposed."""
    from transformers.pytorch_utils import Conv1D

    state = getattr(base.weight, "quant_state", None)
    if state is not None:
        import bitsandbytes as bnb

        packed: Tensor = bnb.functional.dequantize_4bit(base.weight, state)
        return packed.float()
    weight: Tensor = base.weight.detach().float()
    return weight.t() if isinstance(base, Conv1D) else weight


def _norm(layer: Any, weight: Tensor, scale: float) -> float:
    """Frobenius norm of what the adapter adds to a weight [O, D]."""
    (name,) = layer.active_adapters
    if hasattr(layer, "ia3_l"):
        factors = scale * (layer.ia3_l[name].detach().float() - 1)  # [1, D] before a feed-forward's end, else [O, 1]
        return float((weight * factors).norm())
    down, up = layer.lora_A[name].weight.float(), layer.lora_B[name].weight.float()  # [r, D], [O, r]
    magnitudes = getattr(layer, "lora_magnitude_vector", {})
    if name not in magnitudes:  # |BA|² is the sum of BᵀB ∘ AAᵀ, so that [O, D] is never made
        squared = ((up.t() @ up) * (down @ down.t())).sum()
        return float(layer.scaling[name] * squared.clamp(min=0).sqrt())
    moved = weight + layer.scaling[name] * (up @ down)
    magnitude = magnitudes[name].weight.detach().float().reshape(-1, 1)
    return float(scale * (magnitude / moved.norm(dim=1, keepdim=True) * moved - weight).norm())
