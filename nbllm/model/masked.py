"""Masked language models: telling them from causal ones, and keeping documents that share a row apart in them.

Decoders of transformers read from position ids that restart where one document ends and the next begins. Encoders
don't: here the same position ids become a mask. Knows torch, lazily, and no data.

Legend: B rows, T positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel


def is_masked(model: Any) -> bool:
    """Whether a model predicts hidden tokens (BERT and its kin), going by its class or its config's architectures."""
    config = getattr(model, "config", model)
    names = (type(model).__name__, *(getattr(config, "architectures", None) or ()))
    return any(name.endswith("ForMaskedLM") for name in names)


def document_mask(position_ids: Tensor, *, dtype: Any = None) -> Tensor:
    """Which positions may see each other: those of one document, which begins wherever the position is 0.

    Args:
        position_ids: [B, T] int64.
        dtype: None for a mask of bool; a floating dtype for what is added to the scores, 0 or the least number.

    Returns:
        [B, 1, T, T].
    """
    import torch

    document = (position_ids == 0).cumsum(-1)  # [B, T]
    same = (document[:, :, None] == document[:, None, :])[:, None]  # [B, 1, T, T]
    if dtype is None:
        return same
    return torch.zeros(same.shape, dtype=dtype, device=same.device).masked_fill(~same, torch.finfo(dtype).min)


def separate_documents(model: PreTrainedModel) -> None:
    """From now on, position ids that are given to this masked model without a mask of their own make one.

    A mask of bool for sdpa; for eager, which transformers gives no such mask, what is added to the scores.
    """
    model.base_model.register_forward_pre_hook(_with_mask, with_kwargs=True)


def head_transform(model: Any) -> nn.Module | None:
    """What a masked model does with hidden states [..., D] before its last linear layer; None where that isn't known.

    BERT and ModernBERT are.
    """
    found: nn.Module | None = getattr(getattr(getattr(model, "cls", None), "predictions", None), "transform", None)
    return getattr(model, "head", None) if found is None else found


def _with_mask(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    positions = kwargs.get("position_ids")
    if positions is None or kwargs.get("attention_mask") is not None:
        return args, kwargs
    eager = model.config._attn_implementation == "eager"
    mask = document_mask(positions, dtype=model.dtype if eager else None)
    return args, {**kwargs, "attention_mask": mask}
