"""What the kernels' launchers share: tensors as rows, and how many warps a block of columns gets.

Shapes: N rows, D columns.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor


def rows(tensor: Tensor) -> Tensor:
    """[..., D] as [N, D] with neighbouring columns side by side in memory; a copy only where strides ask for one."""
    flat = tensor.reshape(-1, tensor.shape[-1])
    return flat if flat.stride(1) == 1 or flat.shape[1] == 1 else flat.contiguous()


def power_of_two(size: int) -> int:
    """The least power of two that isn't below `size`."""
    return int(triton.next_power_of_2(size))


def warps(block: int) -> int:
    """Warps for a block that stays in registers: 8 to 16 elements a thread."""
    return min(max(block // 512, 4), 16)


def processors(tensor: Tensor) -> int:
    """Multiprocessors of the tensor's device; 1 where there are none."""
    return int(torch.cuda.get_device_properties(tensor.device).multi_processor_count) if tensor.is_cuda else 1
