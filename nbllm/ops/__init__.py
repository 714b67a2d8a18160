"""Fused ops: the definition of each in plain PyTorch, and a form that needs less memory or time.

Each is registered under torch.library, so that compile, autocast, checkpointing and sharding see one op. Knows torch
and nothing of models or training.
"""

from __future__ import annotations

from nbllm.ops.linear_cross_entropy import LinearLoss, linear_cross_entropy
from nbllm.ops.token_losses import IGNORED, token_losses

__all__ = ["IGNORED", "LinearLoss", "linear_cross_entropy", "token_losses"]
