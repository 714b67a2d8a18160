"""Triton kernels of `nbllm.ops.swiglu`: a block of a row's columns a program.

Shapes: N rows, I width.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nbllm.ops.kernels.rows import power_of_two, rows

_BLOCK = 2048


@triton.jit
def forward_kernel(gate_ptr, up_ptr, y_ptr, gate_stride, up_stride, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    gate = tl.load(gate_ptr + row * gate_stride + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row * up_stride + columns, mask=inside, other=0.0).to(tl.float32)
    y = gate * tl.sigmoid(gate) * up
    tl.store(y_ptr + row * width + columns, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def backward_kernel(
    grad_ptr, gate_ptr, up_ptr, d_gate_ptr, d_up_ptr, grad_stride, gate_stride, up_stride, width, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    dy = tl.load(grad_ptr + row * grad_stride + columns, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + row * gate_stride + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row * up_stride + columns, mask=inside, other=0.0).to(tl.float32)
    s = tl.sigmoid(gate)
    d_gate = dy * up * s * (1.0 + gate * (1.0 - s))
    d_up = dy * gate * s
    tl.store(d_gate_ptr + row * width + columns, d_gate.to(d_gate_ptr.dtype.element_ty), mask=inside)
    tl.store(d_up_ptr + row * width + columns, d_up.to(d_up_ptr.dtype.element_ty), mask=inside)


def forward(gate: Tensor, up: Tensor) -> Tensor:
    """As the op `nbllm::swiglu`."""
    g, u = rows(gate), rows(up)
    y = gate.new_empty(gate.shape, dtype=torch.promote_types(gate.dtype, up.dtype))
    if y.numel():
        block = min(power_of_two(g.shape[1]), _BLOCK)
        with torch.cuda.device_of(gate):
            forward_kernel[(g.shape[0], triton.cdiv(g.shape[1], block))](
                g, u, y, g.stride(0), u.stride(0), g.shape[1], BLOCK=block, num_warps=4
            )
    return y


def backward(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """As the op `nbllm::swiglu_backward`."""
    dy, g, u = rows(grad), rows(gate), rows(up)
    d_gate, d_up = gate.new_empty(gate.shape), up.new_empty(up.shape)
    if grad.numel():
        block = min(power_of_two(g.shape[1]), _BLOCK)
        with torch.cuda.device_of(gate):
            backward_kernel[(g.shape[0], triton.cdiv(g.shape[1], block))](
                dy, g, u, d_gate, d_up, dy.stride(0), g.stride(0), u.stride(0), g.shape[1], BLOCK=block, num_warps=4
            )
    return d_gate, d_up
