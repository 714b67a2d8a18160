"""What runs the ops on a GPU: the definitions in PyTorch, or Triton kernels where they were asked for.

Knows whether Triton is there and what the process chose, not which op is faster: that is measured elsewhere. The
kernels are not yet measured on a GPU, so nothing takes them by itself.
"""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor

_KINDS = (torch.float32, torch.float16, torch.bfloat16)
_chosen = False


def triton_problem() -> str | None:
    """Why Triton's kernels can't be used here, in one line; None where they can."""
    if not torch.cuda.is_available():
        return "Triton's kernels need a GPU"
    if importlib.util.find_spec("triton") is None:
        return 'Triton isn\'t installed (pip install "nbllm[triton]")'
    return None


def use_triton(wanted: bool) -> None:
    """Lets this process's ops on a GPU run in Triton's kernels from now on, or in the definitions as from the start."""
    global _chosen
    _chosen = wanted


def runs_in_triton(*tensors: Tensor | None) -> bool:
    """Whether these tensors of a GPU go to a kernel: Triton is there and wanted, and they are fp32, fp16 or bf16."""
    kinds = all(tensor is None or tensor.dtype in _KINDS for tensor in tensors)
    return _chosen and kinds and importlib.util.find_spec("triton") is not None


def exact(dtype: torch.dtype) -> torch.dtype:
    """What sums are taken in: fp32, float64 for float64."""
    return dtype if dtype == torch.float64 else torch.float32
