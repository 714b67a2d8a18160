"""A frozen base kept in the dtype that autocast computes in, under LoRA's layers: half its memory, the same numbers.

Autocast rounds a weight so in every pass. Embeddings, norms and the head, which it doesn't touch, stay as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn


def narrow_base(model: nn.Module, dtype: torch.dtype) -> int:
    """Rounds the frozen weights under plain LoRA layers, in place; other adapters' bases are left alone.

    Args:
        model: carries an adapter.
        dtype: autocast's.

    Returns:
        How many weights.
    """
    layers: list[Any] = [module for module in model.modules() if getattr(module, "_nbllm_lean", False)]
    narrowed = [layer.get_base_layer() for layer in layers if not layer.lora_variant]
    for base in narrowed:
        base.weight.data = base.weight.data.to(dtype)
    return len(narrowed)
