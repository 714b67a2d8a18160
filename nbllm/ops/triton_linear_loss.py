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
from nbllm.ops.linear_cross_entropy import Settings, _losses, _sum, chunks

_CHUNK_ELEMENTS = 2**28  # 512 MB in bf16; the head's traffic is then small beside the products


def rows_by_kernel(
    z: Tensor, y: Tensor, w: Tensor | None, bias: Tensor | None, settings: Settings, gradient: bool
) -> Tensor:
    """The losses [n] in fp32 of a chunk, whose logits `z` [n, V] become their gradient where one is asked for."""
    from nbllm.ops.kernels.token_losses import rows_in_place

    losses = torch.empty(len(z), dtype=torch.float32, device=z.device)
    rows_in_place(
        z, y, w, bias, losses, label_smoothing=settings.label_smoothing, focal_gamma=settings.focal_gamma,
        z_loss=settings.z_loss, softcap=settings.softcap, ignore_index=settings.ignore_index, gradient=gradient,
    )  # fmt: skip
    return losses


@_sum.register_kernel("cuda")
def _(
    hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None, token_weights: Tensor | None, *options: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    tensors = (hidden, weight, targets, bias, token_weights)
    if not runs_in_triton("linear_loss", hidden, weight, bias):
        return _sum._init_fn(*tensors, *options)
    found = chunks(*tensors, Settings(*options[:6]), options[6:], rows_of=rows_by_kernel, elements=_CHUNK_ELEMENTS)
    return found[0].sum(), *found[1:]


@_losses.register_kernel("cuda")
def _(
    hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None, token_weights: Tensor | None, *options: Any
) -> Tensor:
    tensors = (hidden, weight, targets, bias, token_weights)
    if not runs_in_triton("linear_loss", hidden, weight, bias):
        return _losses._init_fn(*tensors, *options)
    return chunks(*tensors, Settings(*options), rows_of=rows_by_kernel, elements=_CHUNK_ELEMENTS)[0]
