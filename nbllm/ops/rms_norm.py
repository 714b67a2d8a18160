"""Residual add and RMSNorm in one op: s = x + r, y = s / sqrt(mean(s^2) + eps) * (w + offset).

With h = s * rstd and g = dy * (w + offset): ds = rstd * (g - h * mean(g * h)) plus what arrives at s from elsewhere;
dx = dr = ds; dw = sum over rows of dy * h. All in fp32 (float64 for float64), rounded once at the end.
Source: Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467; offset 1 is Gemma's norm, whose weight starts at 0.
Memory: y, s and one fp32 number a row; plain PyTorch keeps fp32 copies of s besides. Bytes moved, of b each:
4 N D b forward and as many backward with a residual, 2 N D b and 3 N D b without. Not yet measured on a
GPU. Under autocast the types are those of the tensors given, as in the models' own code.

Shapes: N rows, D width. Doesn't know models.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nbllm.errors import UsageError
from nbllm.ops.backend import exact, runs_in_triton

MOST_WIDE = 8192
"""The widest rows that the kernels hold in registers; wider ones take the definition."""


def rms_norm(x: Tensor, weight: Tensor, *, eps: float = 1e-6, offset: float = 0.0) -> Tensor:
    """The norm of each row.

    Args:
        x: [..., D], any floating dtype and strides.
        weight: [D].
        eps: added to the mean square.
        offset: added to the weight.

    Returns:
        [..., D] in the dtype to which x and weight promote.

    Raises:
        UsageError: a weight of another width.
    """
    _check(x, None, weight)
    y: Tensor = _forward(x, None, weight, eps, offset)[0]
    return y


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, *, eps: float = 1e-6, offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The norm of x + residual, and that sum; neither input is written to.

    Args:
        x: [..., D], any floating dtype and strides.
        residual: as x; of another dtype, the sum has the one to which both promote.
        weight: [D].
        eps: added to the mean square.
        offset: added to the weight.

    Raises:
        UsageError: shapes that don't fit.
    """
    _check(x, residual, weight)
    y, total, _ = _forward(x, residual, weight, eps, offset)
    return y, total


def reference(
    x: Tensor, weight: Tensor, *, residual: Tensor | None = None, eps: float = 1e-6, offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The definition: the norm, and the sum that it is of."""
    total = x if residual is None else x + residual
    wide = total.to(exact(total.dtype))
    y = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * (weight.to(wide.dtype) + offset)
    return y.to(torch.promote_types(total.dtype, weight.dtype)), total


def _check(x: Tensor, residual: Tensor | None, weight: Tensor) -> None:
    if weight.shape != x.shape[-1:] or (residual is not None and residual.shape != x.shape):
        shapes = [tuple(tensor.shape) for tensor in (x, residual, weight) if tensor is not None]
        raise UsageError("Shapes must be [..., D] and a weight of [D]", received=shapes)


@torch.library.custom_op("nbllm::add_rms_norm", mutates_args=())
def _forward(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, offset: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The norm, the sum (empty without a residual) and 1 / sqrt(mean square + eps), [N]."""
    y, total = reference(x, weight, residual=residual, eps=eps, offset=offset)
    wide = total.to(exact(total.dtype))
    rstd = torch.rsqrt(wide.pow(2).mean(-1) + eps).reshape(-1)
    return y.contiguous(), x.new_empty(0) if residual is None else total.contiguous(), rstd


@torch.library.custom_op("nbllm::add_rms_norm_backward", mutates_args=())
def _backward(
    grad: Tensor, total_grad: Tensor | None, total: Tensor, weight: Tensor, rstd: Tensor, offset: float
) -> tuple[Tensor, Tensor]:
    """The gradients of the sum and of the weight."""
    wide = exact(total.dtype)
    h = total.to(wide) * rstd.view(*total.shape[:-1], 1)
    dy = grad.to(wide)
    g = dy * (weight.to(wide) + offset)
    d_total = rstd.view(*total.shape[:-1], 1) * (g - h * (g * h).mean(-1, keepdim=True))
    if total_grad is not None:
        d_total = d_total + total_grad
    d_weight = (dy * h).reshape(-1, h.shape[-1]).sum(0)
    return d_total.to(total.dtype).contiguous(), d_weight.to(weight.dtype)


@_forward.register_kernel("cuda")
def _(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, offset: float) -> tuple[Tensor, Tensor, Tensor]:
    if x.shape[-1] > MOST_WIDE or not runs_in_triton("rms_norm", x, residual, weight):
        return _forward._init_fn(x, residual, weight, eps, offset)
    from nbllm.ops.kernels import rms_norm as kernels

    return kernels.forward(x, residual, weight, eps, offset)


@_backward.register_kernel("cuda")
def _(
    grad: Tensor, total_grad: Tensor | None, total: Tensor, weight: Tensor, rstd: Tensor, offset: float
) -> tuple[Tensor, Tensor]:
    if total.shape[-1] > MOST_WIDE or not runs_in_triton("rms_norm", grad, total_grad, total, weight):
        return _backward._init_fn(grad, total_grad, total, weight, rstd, offset)
    from nbllm.ops.kernels import rms_norm as kernels

    return kernels.backward(grad, total_grad, total, weight, rstd, offset)


@_forward.register_fake
def _(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, offset: float) -> tuple[Tensor, Tensor, Tensor]:
    dtype = x.dtype if residual is None else torch.promote_types(x.dtype, residual.dtype)
    return (
        x.new_empty(x.shape, dtype=torch.promote_types(dtype, weight.dtype)),
        x.new_empty((0,)) if residual is None else x.new_empty(x.shape, dtype=dtype),
        x.new_empty((x.shape[:-1].numel(),), dtype=exact(dtype)),
    )


@_backward.register_fake
def _(
    grad: Tensor, total_grad: Tensor | None, total: Tensor, weight: Tensor, rstd: Tensor, offset: float
) -> tuple[Tensor, Tensor]:
    return total.new_empty(total.shape), weight.new_empty(weight.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, residual, weight, _, ctx.offset = inputs
    _, total, rstd = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*([rstd] if residual is not None else [total, rstd]))
    ctx.dtypes = (x.dtype, None if residual is None else residual.dtype)
    ctx.save_for_backward(x if residual is None else total, weight, rstd)


def _gradients(ctx: Any, grad: Tensor | None, total_grad: Tensor | None, _: Any) -> tuple[Any, ...]:
    total, weight, rstd = ctx.saved_tensors
    x_dtype, residual_dtype = ctx.dtypes
    d_weight = None
    if residual_dtype is None:
        total_grad = None
    if grad is None:
        if total_grad is None:
            return (None,) * 5
        d_total = total_grad
    else:
        d_total, d_weight = _backward(grad, total_grad, total, weight, rstd, ctx.offset)
    residual_grad = None if residual_dtype is None else d_total.to(residual_dtype)
    return d_total.to(x_dtype), residual_grad, d_weight, None, None


_forward.register_autograd(_gradients, setup_context=_keep)
