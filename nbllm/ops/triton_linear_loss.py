"""The linear loss on a GPU: a chunk's logits from one matrix product, then one Triton kernel that gives the losses and
turns the logits into their gradient where they lie.

Against the definition in chunks, no fp32 copy of the logits is made and they are read twice and written once. Memory
beside inputs and gradients: one chunk of logits in their own dtype. Sum, order of the chunks and dtypes are those of
`linear_cross_entropy`, whose ops this registers itself for. Not yet measured on a GPU. float64 takes the definition.

Shapes: N rows, D width, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nbllm.ops.backend import runs_in_triton
from nbllm.ops.linear_cross_entropy import _losses, _sum

_CHUNK_ROWS = 2048
_CHUNK_ELEMENTS = 2**28  # 512 MB in bf16; the head's traffic is then small beside the products


def chunks(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None,
    token_weights: Tensor | None,
    label_smoothing: float,
    focal_gamma: float,
    z_loss: float,
    softcap: float,
    ignore_index: int,
    dtype: torch.dtype,
    hidden_grad: bool,
    weight_grad: bool,
    bias_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Each row's loss [N] in fp32, and the gradients of their sum for hidden, weight and bias (empty where they aren't
    asked for). Arguments as of the op `nbllm::linear_cross_entropy_sum`."""
    from nbllm.ops.kernels.token_losses import rows_in_place

    vocabulary = len(weight)
    losses = hidden.new_zeros(len(hidden), dtype=torch.float32)
    d_hidden = torch.zeros_like(hidden, memory_format=torch.contiguous_format) if hidden_grad else hidden.new_empty(0)
    d_weight = weight.new_zeros(weight.shape, dtype=torch.float32) if weight_grad else weight.new_empty(0)
    d_bias = weight.new_zeros(vocabulary, dtype=torch.float32) if bias_grad else weight.new_empty(0)
    counted = (targets != ignore_index).nonzero()[:, 0]
    everything = len(counted) == len(targets)
    head = weight.to(dtype)
    step = max(1, min(_CHUNK_ROWS, _CHUNK_ELEMENTS // vocabulary, len(counted)))
    logits = hidden.new_empty(step, vocabulary, dtype=dtype)
    for first in range(0, len(counted), step):
        last = min(first + step, len(counted))
        places: Any = slice(first, last) if everything else counted[first:last]
        x, y = hidden[places].to(dtype), targets[places]
        w = None if token_weights is None else token_weights[places]
        z = torch.mm(x, head.t(), out=logits[: len(x)])
        found = losses.new_empty(len(x))
        rows_in_place(
            z, y, w, bias, found,
            label_smoothing=label_smoothing, focal_gamma=focal_gamma, z_loss=z_loss, softcap=softcap,
            ignore_index=ignore_index, gradient=hidden_grad or weight_grad or bias_grad,
        )  # fmt: skip
        losses[places] = found
        if hidden_grad:
            d_hidden[places] = (z @ head).to(d_hidden.dtype)
        if weight_grad:
            d_weight.add_(z.t() @ x)
        if bias_grad:
            d_bias.add_(z.sum(0, dtype=torch.float32))
    bias_dtype = d_bias.dtype if bias is None else bias.dtype
    return losses, d_hidden, d_weight.to(weight.dtype), d_bias.to(bias_dtype)


@_sum.register_kernel("cuda")
def _(
    hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None, token_weights: Tensor | None, *options: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if not runs_in_triton("linear_loss", hidden, weight, bias):
        return _sum._init_fn(hidden, weight, targets, bias, token_weights, *options)
    with torch.autocast(hidden.device.type, enabled=False):
        losses, d_hidden, d_weight, d_bias = chunks(hidden, weight, targets, bias, token_weights, *options)
        return losses.sum(), d_hidden, d_weight, d_bias


@_losses.register_kernel("cuda")
def _(
    hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None, token_weights: Tensor | None, *options: Any
) -> Tensor:
    if not runs_in_triton("linear_loss", hidden, weight, bias):
        return _losses._init_fn(hidden, weight, targets, bias, token_weights, *options)
    with torch.autocast(hidden.device.type, enabled=False):
        return chunks(hidden, weight, targets, bias, token_weights, *(*options, False, False, False))[0]
