"""Fused ops: the definition of each in plain PyTorch, and a form that needs less memory or time.

Each is registered under torch.library, so that compile, autocast, checkpointing and sharding see one op; on a GPU
they run in Triton kernels once `use_triton` asks for these, which are not yet measured there. Knows torch,
Triton only where a kernel is called, and nothing of models or training.
"""

from __future__ import annotations

import nbllm.ops.triton_linear_loss  # noqa: F401  (registers itself for GPUs)
from nbllm.ops.backend import KERNELS, chosen, faster_here, keep_faster, triton_problem, use_triton
from nbllm.ops.linear_cross_entropy import LinearLoss, linear_cross_entropy
from nbllm.ops.rms_norm import add_rms_norm, rms_norm
from nbllm.ops.rope import rope
from nbllm.ops.swiglu import swiglu
from nbllm.ops.token_losses import IGNORED, token_losses

__all__ = [
    "IGNORED",
    "KERNELS",
    "LinearLoss",
    "add_rms_norm",
    "chosen",
    "faster_here",
    "keep_faster",
    "linear_cross_entropy",
    "rms_norm",
    "rope",
    "swiglu",
    "token_losses",
    "triton_problem",
    "use_triton",
]
