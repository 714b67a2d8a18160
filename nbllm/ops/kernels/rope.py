"""Triton kernel of `nbllm.ops.rope`: a position a program, all its heads, queries and keys, forward or back.

Shapes: B batch, H heads, K key heads, T time, C head size.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nbllm.ops.kernels.rows import power_of_two

_HEADS = 16


@triton.jit
def _heads(
    x_ptr, y_ptr, x_place, y_place, x_head, y_head, x_column, y_column, heads, c1, c2, s1, s2, size,
    BACK: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    half = size // 2
    columns = tl.arange(0, HALF).to(tl.int64)[None, :]
    for first in range(0, heads, HEADS):
        head = (first + tl.arange(0, HEADS)).to(tl.int64)[:, None]
        inside = (head < heads) & (columns < half)
        x = x_ptr + x_place + head * x_head + columns * x_column
        y = y_ptr + y_place + head * y_head + columns * y_column
        x1 = tl.load(x, mask=inside, other=0.0).to(tl.float32)
        x2 = tl.load(x + half * x_column, mask=inside, other=0.0).to(tl.float32)
        if BACK:
            y1 = x1 * c1 + x2 * s2
            y2 = x2 * c2 - x1 * s1
        else:
            y1 = x1 * c1 - x2 * s1
            y2 = x2 * c2 + x1 * s2
        tl.store(y, y1.to(y_ptr.dtype.element_ty), mask=inside)
        tl.store(y + half * y_column, y2.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def turn_kernel(
    q_ptr, k_ptr, cos_ptr, sin_ptr, q_out_ptr, k_out_ptr,
    q_batch, q_head, q_time, q_column, k_batch, k_head, k_time, k_column,
    q_out_batch, q_out_head, q_out_time, q_out_column, k_out_batch, k_out_head, k_out_time, k_out_column,
    table_batch, table_time, time, heads, key_heads, size,
    BACK: tl.constexpr, Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0)
    b, t = (place // time).to(tl.int64), (place % time).to(tl.int64)
    half = size // 2
    columns = tl.arange(0, HALF)[None, :]
    inside = columns < half
    table = b * table_batch + t * table_time + columns
    c1 = tl.load(cos_ptr + table, mask=inside, other=0.0).to(tl.float32)
    c2 = tl.load(cos_ptr + table + half, mask=inside, other=0.0).to(tl.float32)
    s1 = tl.load(sin_ptr + table, mask=inside, other=0.0).to(tl.float32)
    s2 = tl.load(sin_ptr + table + half, mask=inside, other=0.0).to(tl.float32)
    _heads(
        q_ptr, q_out_ptr, b * q_batch + t * q_time, b * q_out_batch + t * q_out_time, q_head, q_out_head,
        q_column, q_out_column, heads, c1, c2, s1, s2, size, BACK, Q_HEADS, HALF,
    )  # fmt: skip
    _heads(
        k_ptr, k_out_ptr, b * k_batch + t * k_time, b * k_out_batch + t * k_out_time, k_head, k_out_head,
        k_column, k_out_column, key_heads, c1, c2, s1, s2, size, BACK, K_HEADS, HALF,
    )  # fmt: skip


def turn(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, back: bool) -> tuple[Tensor, Tensor]:
    """As the op `nbllm::rope`."""
    made_q = torch.empty_like(q, dtype=torch.promote_types(q.dtype, cos.dtype))
    made_k = torch.empty_like(k, dtype=torch.promote_types(k.dtype, cos.dtype))
    batch, heads, time, size = q.shape
    tables = [table.contiguous() for table in (cos, sin)]
    step = 0 if cos.shape[0] == 1 else tables[0].stride(0)
    if batch * time * size:
        with torch.cuda.device_of(q):
            turn_kernel[(batch * time,)](
                q, k, *tables, made_q, made_k, *q.stride(), *k.stride(), *made_q.stride(), *made_k.stride(),
                step, tables[0].stride(1), time, heads, k.shape[1], size,
                BACK=back, Q_HEADS=min(power_of_two(heads), _HEADS), K_HEADS=min(power_of_two(k.shape[1]), _HEADS),
                HALF=power_of_two(size // 2), num_warps=4,
            )  # fmt: skip
    return made_q, made_k
