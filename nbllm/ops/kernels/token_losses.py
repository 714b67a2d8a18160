"""Triton kernel of the losses of a chunk of logits, which become their own gradient where they lie.

A row a program, over its vocabulary twice: first the partition (with a running maximum) and the mean, then the
gradient. Formula as in `nbllm.ops.linear_cross_entropy`: with n = log-partition - z_y, q = 1 - e^-n and
c = q^g + g (1 - q) q^(g-1) n, dz_j = w {[(1 - e) c + e + 2 k l] p_j - (1 - e) c 1[j = y] - e / V}, times 1 - tanh^2
under a softcap. Logits are rounded to their dtype once, when the gradient is written.

Shapes: N rows, V vocabulary.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nbllm.ops.kernels.rows import power_of_two
from nbllm.ops.token_losses import TINY

_BLOCK = 2048
_TINY = tl.constexpr(TINY)


@triton.jit
def _minus_expm1(n):
    """1 - e^-n for n >= 0, without losing digits near 0."""
    small = n * (1.0 - n * (0.5 - n * (1.0 / 6 - n * (1.0 / 24 - n * (1.0 / 120 - n * (1.0 / 720))))))
    return tl.where(n < 0.25, small, 1.0 - tl.exp(-n))


@triton.jit
def _tanh(x):
    """Of any x, to fp32's last digits; the series serves where the quotient would lose them."""
    square = x * x
    series = 1.0 - square * (1.0 / 3 - square * (2.0 / 15 - square * (17.0 / 315 - square * (62.0 / 2835))))
    far = 1.0 - 2.0 / (tl.exp(2.0 * tl.minimum(tl.abs(x), 20.0)) + 1.0)
    return tl.where(tl.abs(x) < 0.3, x * series, tl.where(x < 0, -far, far))


@triton.jit
def rows_kernel(
    z_ptr, targets_ptr, weights_ptr, bias_ptr, losses_ptr,
    z_stride, targets_stride, weights_stride, bias_stride, vocabulary, ignore_index,
    smoothing, gamma, z_loss, softcap,
    FOCAL: tl.constexpr, SMOOTH: tl.constexpr, SQUARE: tl.constexpr, CAP: tl.constexpr,
    BIAS: tl.constexpr, WEIGHTS: tl.constexpr, GRADIENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    z_row = z_ptr + row * z_stride
    target = tl.load(targets_ptr + row * targets_stride)
    spread = tl.arange(0, BLOCK)
    if target == ignore_index:
        tl.store(losses_ptr + row, 0.0)
        if GRADIENT:
            for first in range(0, vocabulary, BLOCK):
                columns = first + spread
                nothing = tl.zeros([BLOCK], dtype=tl.float32).to(z_ptr.dtype.element_ty)
                tl.store(z_row + columns, nothing, mask=columns < vocabulary)
        return
    # the partition: each lane keeps its own maximum, so that the loop has no reduction
    most = tl.full([BLOCK], float("-inf"), dtype=tl.float32)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    plain = tl.zeros([BLOCK], dtype=tl.float32)
    for first in range(0, vocabulary, BLOCK):
        columns = first + spread
        inside = columns < vocabulary
        z = tl.load(z_row + columns, mask=inside, other=0.0).to(tl.float32)
        if BIAS:
            z += tl.load(bias_ptr + columns.to(tl.int64) * bias_stride, mask=inside, other=0.0).to(tl.float32)
        if CAP:
            z = softcap * _tanh(z / softcap)
        if SMOOTH:
            plain += tl.where(inside, z, 0.0)
        higher = tl.maximum(most, tl.where(inside, z, float("-inf")))
        known = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(most - known) + tl.where(inside, tl.exp(z - known), 0.0)
        most = higher
    highest = tl.max(most, axis=0)
    total_row = tl.sum(total * tl.exp(most - highest), axis=0)
    z_y = tl.load(z_row + target).to(tl.float32)
    if BIAS:
        z_y += tl.load(bias_ptr + target * bias_stride).to(tl.float32)
    if CAP:
        z_y = softcap * _tanh(z_y / softcap)
    logarithm = tl.log(total_row)
    partition = highest + logarithm
    n = tl.maximum((highest - z_y) + logarithm, 0.0)
    p_y = tl.exp(-n)
    q_full = _minus_expm1(n)
    w = 1.0
    if WEIGHTS:
        w = tl.load(weights_ptr + row * weights_stride).to(tl.float32)
    c = 1.0
    loss = (1.0 - smoothing) * n
    if FOCAL:
        q = tl.maximum(q_full, _TINY)
        power = tl.exp(gamma * tl.log(q))
        loss *= power
        # below the least q the power is a constant, as in the definition
        c = power + tl.where(q_full > _TINY, gamma * p_y * (power / q) * n, 0.0)
    if SMOOTH:
        loss += smoothing * (partition - tl.sum(plain, axis=0) / vocabulary)
    if SQUARE:
        loss += z_loss * partition * partition
    tl.store(losses_ptr + row, loss * w)
    if GRADIENT:
        rest = smoothing + 2.0 * z_loss * partition
        scale = (1.0 - smoothing) * c + rest
        own = rest * p_y - (1.0 - smoothing) * c * q_full  # p - 1 would lose digits as p goes to 1
        tl.debug_barrier()  # every warp has read z_y before any of them overwrites it
        for first in range(0, vocabulary, BLOCK):
            columns = first + spread
            inside = columns < vocabulary
            z = tl.load(z_row + columns, mask=inside, other=0.0).to(tl.float32)
            if BIAS:
                z += tl.load(bias_ptr + columns.to(tl.int64) * bias_stride, mask=inside, other=0.0).to(tl.float32)
            slope = 1.0
            if CAP:
                bent = _tanh(z / softcap)
                slope = 1.0 - bent * bent
                z = softcap * bent
            gradient = tl.where(columns == target, own, scale * tl.exp((z - highest) - logarithm))
            if SMOOTH:
                gradient -= smoothing / vocabulary
            gradient *= slope * w
            tl.store(z_row + columns, gradient.to(z_ptr.dtype.element_ty), mask=inside)


def rows_in_place(
    z: Tensor,
    targets: Tensor,
    weights: Tensor | None,
    bias: Tensor | None,
    losses: Tensor,
    *,
    label_smoothing: float,
    focal_gamma: float,
    z_loss: float,
    softcap: float,
    ignore_index: int,
    gradient: bool,
) -> None:
    """Writes the rows' losses, and makes logits their gradient.

    Args:
        z: [N, V] in fp32, fp16 or bf16, neighbouring columns side by side; written to where a gradient is asked for.
        targets: [N] int64, of any stride.
        weights: [N], or None for ones.
        bias: [V], added to the logits.
        losses: [N] fp32, written to.
        label_smoothing: as in `linear_cross_entropy`, as the next three; softcap 0 is none.
        focal_gamma: exponent.
        z_loss: weight of the squared log-partition.
        softcap: s of s tanh(z / s).
        ignore_index: the target of rows whose loss and gradient are 0.
        gradient: make logits their gradient.
    """
    count, vocabulary = z.shape
    if not count:
        return
    block = min(power_of_two(vocabulary), _BLOCK)
    weights_given, bias_given = weights is not None, bias is not None
    factors = losses if weights is None else weights
    addend = losses if bias is None else bias
    with torch.cuda.device_of(z):
        rows_kernel[(count,)](
            z, targets, factors, addend, losses,
            z.stride(0), targets.stride(0), factors.stride(0), addend.stride(0), vocabulary, ignore_index,
            label_smoothing, focal_gamma, z_loss, softcap,
            FOCAL=focal_gamma != 0, SMOOTH=label_smoothing != 0, SQUARE=z_loss != 0, CAP=softcap != 0,
            BIAS=bias_given, WEIGHTS=weights_given, GRADIENT=gradient, BLOCK=block, num_warps=8,
        )  # fmt: skip
