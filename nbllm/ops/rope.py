"""Rotary positions for queries and keys in one op: each half of a head turns with the other.

With halves x1, x2 of a head and those of cos and sin: y1 = x1 c1 - x2 s1, y2 = x2 c2 + x1 s2; backward
dx1 = dy1 c1 + dy2 s2, dx2 = dy2 c2 - dy1 s1. In fp32 (float64 for float64), rounded once.
Source: Su et al. 2021, https://arxiv.org/abs/2104.09864, in the halves' order of GPT-NeoX and Llama. Memory: the
results; cos and sin are kept, queries and keys aren't. Bytes moved, of b each: 2 N (H + K) C b either way.
Not yet measured on a GPU. Under autocast the types are those of the tensors given, as in the models' own code.

Shapes: B batch, H heads, K key heads, T time, C head size, N = B T. Doesn't know models.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nbllm.errors import UsageError
from nbllm.ops.backend import exact, runs_in_triton


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys, turned.

    Args:
        q: [B, H, T, C], any floating dtype and strides; C even.
        k: [B, K, T, C].
        cos: [B or 1, T, C]; no gradient flows to it.
        sin: as cos.

    Returns:
        Tensors of the shapes and memory order of q and k, each in the dtype to which it and cos promote.

    Raises:
        UsageError: shapes that don't fit, or a cos or sin that wants a gradient.
    """
    batch, _, time, size = q.shape
    fits = (k.shape[0], *k.shape[2:]) == (batch, time, size) and size % 2 == 0 and cos.shape == sin.shape
    if not fits or cos.shape[0] not in (1, batch) or cos.shape[1:] != (time, size):
        shapes = [tuple(tensor.shape) for tensor in (q, k, cos, sin)]
        raise UsageError("Shapes must be [B, H, T, C], [B, K, T, C] and twice [B or 1, T, C]", received=shapes)
    if cos.requires_grad or sin.requires_grad:
        raise UsageError("rope gives no gradient to cos and sin", next="Detach them")
    found: tuple[Tensor, Tensor] = _turn(q, k, cos, sin, False)
    return found


def reference(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """The definition."""
    return _turned(q, cos, sin, back=False), _turned(k, cos, sin, back=False)


def _turned(x: Tensor, cos: Tensor, sin: Tensor, *, back: bool) -> Tensor:
    dtype = torch.promote_types(x.dtype, cos.dtype)
    wide = exact(dtype)
    c, s = cos.to(wide)[:, None], sin.to(wide)[:, None]  # [B or 1, 1, T, C]
    half = x.shape[-1] // 2
    x1, x2 = x[..., :half].to(wide), x[..., half:].to(wide)
    c1, c2, s1, s2 = c[..., :half], c[..., half:], s[..., :half], s[..., half:]
    if back:
        return torch.cat((x1 * c1 + x2 * s2, x2 * c2 - x1 * s1), -1).to(dtype)
    return torch.cat((x1 * c1 - x2 * s1, x2 * c2 + x1 * s2), -1).to(dtype)


@torch.library.custom_op("nbllm::rope", mutates_args=())
def _turn(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, back: bool) -> tuple[Tensor, Tensor]:
    """Turned forward, or a gradient turned back."""
    found = []
    for x in (q, k):
        made = torch.empty_like(x, dtype=torch.promote_types(x.dtype, cos.dtype))
        found.append(made.copy_(_turned(x, cos, sin, back=back)))
    return found[0], found[1]


@_turn.register_kernel("cuda")
def _(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, back: bool) -> tuple[Tensor, Tensor]:
    if not runs_in_triton("rope", q, k, cos, sin):
        return _turn._init_fn(q, k, cos, sin, back)
    from nbllm.ops.kernels import rope as kernels

    return kernels.turn(q, k, cos, sin, back)


@_turn.register_fake
def _(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, back: bool) -> tuple[Tensor, Tensor]:
    made = [torch.empty_like(x, dtype=torch.promote_types(x.dtype, cos.dtype)) for x in (q, k)]
    return made[0], made[1]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, cos, sin, ctx.back = inputs
    ctx.dtypes = (q.dtype, k.dtype)
    ctx.save_for_backward(cos, sin)


def _gradients(ctx: Any, q_grad: Tensor, k_grad: Tensor) -> tuple[Any, ...]:
    d_q, d_k = _turn(q_grad, k_grad, *ctx.saved_tensors, not ctx.back)
    return d_q.to(ctx.dtypes[0]), d_k.to(ctx.dtypes[1]), None, None, None


_turn.register_autograd(_gradients, setup_context=_keep)
