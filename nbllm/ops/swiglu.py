"""The gate of a SwiGLU feed-forward in one op: y = g * sigmoid(g) * u.

With s = sigmoid(g): dg = dy * u * s * (1 + g * (1 - s)), du = dy * g * s; in fp32 (float64 for float64), rounded once.
Source: Shazeer 2020, https://arxiv.org/abs/2002.05202. Memory: y; g and u are kept, the activation isn't. Bytes moved,
of b each: 3 N I b forward, 5 N I b backward. Not yet measured on a GPU. Under autocast the types are those of the
tensors given, as in the models' own code.

Shapes: N rows, I width of the feed-forward. Doesn't know models.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nbllm.errors import UsageError
from nbllm.ops.backend import exact, runs_in_triton


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """The gated product.

    Args:
        gate: [..., I], any floating dtype and strides; a half of a larger tensor is read where it is.
        up: as gate.

    Returns:
        [..., I] in the dtype to which both promote.

    Raises:
        UsageError: shapes that differ.
    """
    if gate.shape != up.shape:
        raise UsageError("Gate and up must have one shape", received=[tuple(gate.shape), tuple(up.shape)])
    y: Tensor = _forward(gate, up)
    return y


def reference(gate: Tensor, up: Tensor) -> Tensor:
    """The definition."""
    dtype = torch.promote_types(gate.dtype, up.dtype)
    wide = exact(dtype)
    return (torch.nn.functional.silu(gate.to(wide)) * up.to(wide)).to(dtype)


@torch.library.custom_op("nbllm::swiglu", mutates_args=())
def _forward(gate: Tensor, up: Tensor) -> Tensor:
    return reference(gate, up).contiguous()


@torch.library.custom_op("nbllm::swiglu_backward", mutates_args=())
def _backward(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    wide = exact(grad.dtype)
    dy, g, u = grad.to(wide), gate.to(wide), up.to(wide)
    s = torch.sigmoid(g)
    d_gate = dy * u * s * (1 + g * (1 - s))
    return d_gate.to(gate.dtype).contiguous(), (dy * g * s).to(up.dtype).contiguous()


@_forward.register_kernel("cuda")
def _(gate: Tensor, up: Tensor) -> Tensor:
    if not runs_in_triton("swiglu", gate, up):
        return _forward._init_fn(gate, up)
    from nbllm.ops.kernels import swiglu as kernels

    return kernels.forward(gate, up)


@_backward.register_kernel("cuda")
def _(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    if not runs_in_triton("swiglu", grad, gate, up):
        return _backward._init_fn(grad, gate, up)
    from nbllm.ops.kernels import swiglu as kernels

    return kernels.backward(grad, gate, up)


@_forward.register_fake
def _(gate: Tensor, up: Tensor) -> Tensor:
    return gate.new_empty(gate.shape, dtype=torch.promote_types(gate.dtype, up.dtype))


@_backward.register_fake
def _(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    return gate.new_empty(gate.shape), up.new_empty(up.shape)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = _backward(grad, *ctx.saved_tensors)
    return found


_forward.register_autograd(_gradients, setup_context=_keep)
