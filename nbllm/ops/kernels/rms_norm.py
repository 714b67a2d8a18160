"""Triton kernels of `nbllm.ops.rms_norm`: a row a program forward; backward, each program walks some rows and keeps
their share of the weight's gradient in registers, so that nothing is added atomically and the sum has one order.

Shapes: N rows, D width.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nbllm.ops.kernels.rows import power_of_two, processors, rows, warps


@triton.jit
def forward_kernel(
    x_ptr, residual_ptr, weight_ptr, y_ptr, total_ptr, rstd_ptr,
    x_stride, residual_stride, width, eps, offset,
    ADD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    x = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(residual_ptr + row * residual_stride + columns, mask=inside, other=0.0).to(tl.float32)
        x = x.to(total_ptr.dtype.element_ty)  # the norm is of the sum as it is kept
        tl.store(total_ptr + row * width + columns, x, mask=inside)
        x = x.to(tl.float32)
    rstd = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / width + eps)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32) + offset
    y = x * rstd * weight
    tl.store(y_ptr + row * width + columns, y.to(y_ptr.dtype.element_ty), mask=inside)
    tl.store(rstd_ptr + row, rstd)


@triton.jit
def backward_kernel(
    grad_ptr, total_grad_ptr, total_ptr, weight_ptr, rstd_ptr, d_total_ptr, d_weight_ptr,
    grad_stride, total_grad_stride, total_stride, count, width, offset, rows_a_program,
    ADD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32) + offset
    d_weight = tl.zeros([BLOCK], dtype=tl.float32)
    first = program * rows_a_program
    last = tl.minimum(first + rows_a_program, count)
    for row in range(first, last):
        dy = tl.load(grad_ptr + row * grad_stride + columns, mask=inside, other=0.0).to(tl.float32)
        rstd = tl.load(rstd_ptr + row)
        h = tl.load(total_ptr + row * total_stride + columns, mask=inside, other=0.0).to(tl.float32) * rstd
        d_weight += dy * h
        g = dy * weight
        d_total = rstd * (g - h * (tl.sum(g * h, axis=0) / width))
        if ADD:
            more = total_grad_ptr + row * total_grad_stride + columns
            d_total += tl.load(more, mask=inside, other=0.0).to(tl.float32)
        tl.store(d_total_ptr + row * width + columns, d_total.to(d_total_ptr.dtype.element_ty), mask=inside)
    tl.store(d_weight_ptr + program * width + columns, d_weight, mask=inside)


def forward(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, offset: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As the op `nbllm::add_rms_norm`."""
    flat = rows(x)
    more = flat if residual is None else rows(residual)
    count, width = flat.shape
    dtype = x.dtype if residual is None else torch.promote_types(x.dtype, residual.dtype)
    y = x.new_empty(x.shape, dtype=torch.promote_types(dtype, weight.dtype))
    total = x.new_empty(0) if residual is None else x.new_empty(x.shape, dtype=dtype)
    rstd = x.new_empty(count, dtype=torch.float32)
    block = power_of_two(width)
    if y.numel():
        with torch.cuda.device_of(x):
            forward_kernel[(count,)](
                flat, more, weight.contiguous(), y, total, rstd, flat.stride(0), more.stride(0), width, eps, offset,
                ADD=residual is not None, BLOCK=block, num_warps=warps(block),
            )  # fmt: skip
    return y, total, rstd


def backward(
    grad: Tensor, total_grad: Tensor | None, total: Tensor, weight: Tensor, rstd: Tensor, offset: float
) -> tuple[Tensor, Tensor]:
    """As the op `nbllm::add_rms_norm_backward`."""
    dy, flat = rows(grad), rows(total)
    more = dy if total_grad is None else rows(total_grad)
    count, width = flat.shape
    programs = max(1, min(count, 4 * processors(total)))
    a_program = -(-count // programs)
    d_total = total.new_empty(total.shape)
    parts = total.new_zeros(programs, width, dtype=torch.float32)
    block = power_of_two(width)
    if total.numel():
        with torch.cuda.device_of(total):
            backward_kernel[(programs,)](
                dy, more, flat, weight.contiguous(), rstd, d_total, parts,
                dy.stride(0), more.stride(0), flat.stride(0), count, width, offset, a_program,
                ADD=total_grad is not None, BLOCK=block, num_warps=warps(block),
            )  # fmt: skip
    return d_total, parts.sum(0).to(weight.dtype)
