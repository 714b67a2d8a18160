"""How strongly an attached adapter acts, set while it is attached: 0 is the base, 1 as trained, more is beyond.

LoRA, bottlenecks and virtual tokens have a number for it. Of other methods (DoRA, IA3), what a layer gives is moved
from what its base gives towards, or past, what the adapter makes of it: base + scale · (adapted - base). Knows peft's
layers.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nbllm.adapters import bottleneck, virtual
from nbllm.adapters.lora import Adapter, attached, record
from nbllm.errors import UsageError

if TYPE_CHECKING:
    from torch import nn


def set_scale(model: nn.Module, scale: float) -> Adapter:
    """Sets the attached adapter's scale in place; the base isn't touched. Attaching one anew sets it to 1.

    Args:
        model: carries an adapter.
        scale: 0 or above.

    Raises:
        UsageError: the model carries none, or the scale is negative or no number.
    """
    adapter = attached(model)
    if adapter is None:
        raise UsageError("This model carries no adapter", next="Attach one with %llm_adapter use NAME")
    if not scale >= 0 or not math.isfinite(scale):
        raise UsageError("An adapter's scale is 0 or above", received=scale)
    if scale == adapter.scale:
        return adapter
    if isinstance(adapter.tuner, virtual.Tuner):
        adapter.tuner.scale = scale
    elif isinstance(adapter.tuner, bottleneck.Tuner):
        for detour in adapter.tuner.detours:
            detour.scale = scale
    elif adapter.plain_lora:
        for layer in _layers(model):
            for name in layer.active_adapters:
                layer.set_scale(name, scale)
    else:
        for layer in _layers(model):
            _blend(layer, scale)
    return record(model, replace(adapter, scale=scale))


def _layers(model: nn.Module) -> list[Any]:
    """peft's layers inside the model."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    return [module for module in model.modules() if isinstance(module, BaseTunerLayer)]


def _blend(layer: Any, scale: float) -> None:
    """Lets a layer give base + scale · (adapted - base)."""
    handle = vars(layer).pop("_nbllm_blend", None)
    if handle is not None:
        handle.remove()
    if scale == 1:
        return

    def blend(_: Any, args: tuple[Any, ...], options: dict[str, Any], out: Any) -> Any:
        base = layer.base_layer(*args, **options)
        return base + scale * (out - base)

    layer._nbllm_blend = layer.register_forward_hook(blend, with_kwargs=True)
