"""A linear layer and the loss of its logits in one op, which never holds the logits of more than a chunk of rows.

The gradients are made in the forward pass, chunk by chunk, while a chunk's logits are at hand: with p = softmax z,
c = q^g + g p_y q^(g-1) n and a row's weight w (the rest as in `token_losses`),
dloss/dz_j = w {[(1 - e) c + e + 2 k l] p_j - (1 - e) c 1[j = y] - e / V}, k the z-loss; a softcap multiplies it by
1 - tanh^2. Rows to be ignored are left out before the product. The head's gradient is summed in fp32.

Memory beside inputs and gradients: one chunk of logits, about 64 MB in fp32 (again as much in bf16, and for a softcap),
whatever the number of rows. Plain: two to three times N V. Work: 6 N D V operations over the rows that count.
Sources: Cut Cross-Entropy (Wijmans et al. 2024, https://arxiv.org/abs/2411.09009) and Liger Kernel (Hsu et al. 2024,
https://arxiv.org/abs/2410.10989) for gradients in the forward pass. Doesn't know models; has no second derivatives.

Shapes: N rows, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nbllm.errors import UsageError
from nbllm.ops.backend import exact
from nbllm.ops.token_losses import IGNORED, TINY, token_losses

_CHUNK_ELEMENTS = 2**24
_CHUNK_ROWS = 2048


class LinearLoss(NamedTuple):
    """What `linear_cross_entropy` returns."""

    loss: Tensor
    """The loss in nats, fp32 (or float64): a scalar, or [N] unreduced."""
    counted: Tensor
    """int64 scalar: targets that count."""


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
    label_smoothing: float = 0.0,
    focal_gamma: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    token_weights: Tensor | None = None,
    ignore_index: int = IGNORED,
    reduction: str = "sum",
) -> LinearLoss:
    """The loss of `hidden @ weight.T + bias` against the targets.

    Under autocast the products are taken in its dtype, while gradients keep the dtype of their tensor. A mean over a
    micro-batch is wrong under accumulation: sum, and divide by the count of the whole batch.

    Args:
        hidden: [..., D], any floating dtype.
        weight: [V, D], as `nn.Linear` has it.
        targets: [...] int64, already shifted.
        bias: [V].
        label_smoothing: share of the target spread over the vocabulary, 0 to below 1.
        focal_gamma: exponent of the focal loss; 0 is cross-entropy.
        z_loss: weight of the squared log-partition.
        softcap: logits become s tanh(z / s).
        token_weights: [...], each row's factor; no gradient flows to it.
        ignore_index: the target of rows that don't count.
        reduction: `sum`, `mean` (over the count; 0 where nothing counts) or `none`, whose backward pass takes the
            products again.

    Raises:
        UsageError: shapes that don't fit, a sharded tensor (DTensor), or an unknown reduction.
    """
    _check(hidden, weight, targets, bias, token_weights, reduction)
    rows, flat = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1)
    weights = None if token_weights is None else token_weights.detach().reshape(-1)
    dtype = torch.promote_types(hidden.dtype, weight.dtype)
    device = hidden.device.type
    if torch.is_autocast_enabled(device) and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(device)
    options = (label_smoothing, focal_gamma, z_loss, 0.0 if softcap is None else softcap, ignore_index, dtype)
    count = (flat != ignore_index).sum()
    if reduction == "none":
        return LinearLoss(_losses(rows, weight, flat, bias, weights, *options).reshape(targets.shape), count)
    grads = [
        torch.is_grad_enabled() and tensor is not None and tensor.requires_grad for tensor in (hidden, weight, bias)
    ]
    loss = _sum(rows, weight, flat, bias, weights, *options, *grads)[0]
    return LinearLoss(loss / count.clamp(min=1) if reduction == "mean" else loss, count)


def _check(
    hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None, weights: Tensor | None, reduction: str
) -> None:
    if reduction not in ("sum", "mean", "none"):
        raise UsageError("reduction is one of sum, mean, none", received=reduction)
    if weight.ndim != 2 or hidden.shape[-1] != weight.shape[1] or hidden.shape[:-1] != targets.shape:
        shapes = [tuple(tensor.shape) for tensor in (hidden, weight, targets)]
        raise UsageError("Shapes must be [..., D], [V, D] and [...]", received=shapes)
    if bias is not None and bias.shape != weight.shape[:1]:
        raise UsageError("The bias must have one entry a row of the weight", received=tuple(bias.shape))
    if weights is not None and weights.shape != targets.shape:
        raise UsageError("token_weights must have the shape of the targets", received=tuple(weights.shape))
    for tensor in (hidden, weight, bias):
        if tensor is not None and hasattr(tensor, "full_tensor"):
            raise UsageError(
                "A sharded tensor can't go into the linear loss", next="Call it in the forward of the module it is in"
            )


@torch.library.custom_op("nbllm::linear_cross_entropy_sum", mutates_args=())
def _sum(
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
    """The sum, and its gradients for hidden, weight and bias (empty where they aren't asked for)."""
    settings = Settings(label_smoothing, focal_gamma, z_loss, softcap, ignore_index, dtype)
    wanted = (hidden_grad, weight_grad, bias_grad)
    losses, *gradients = chunks(hidden, weight, targets, bias, token_weights, settings, wanted)
    return losses.sum(), gradients[0], gradients[1], gradients[2]


@torch.library.custom_op("nbllm::linear_cross_entropy_rows", mutates_args=())
def _losses(
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
) -> Tensor:
    """Each row's loss, [N]."""
    settings = Settings(label_smoothing, focal_gamma, z_loss, softcap, ignore_index, dtype)
    return chunks(hidden, weight, targets, bias, token_weights, settings)[0]


class Settings(NamedTuple):
    """What the ops get beside tensors, in their order."""

    label_smoothing: float
    focal_gamma: float
    z_loss: float
    softcap: float
    """0: none."""
    ignore_index: int
    dtype: torch.dtype
    """Of the products."""


def _rows_by_definition(
    z: Tensor, y: Tensor, w: Tensor | None, bias: Tensor | None, settings: Settings, gradient: bool
) -> Tensor:
    """The losses [n] of a chunk; its logits `z` [n, V], still without bias and softcap, become their gradient where
    one is asked for."""
    wide = z.to(exact(z.dtype))
    if bias is not None:
        wide.add_(bias)
    slope = None
    if settings.softcap:
        wide.div_(settings.softcap).tanh_()
        slope = 1 - wide * wide if gradient else None
        wide.mul_(settings.softcap)
    smoothing, gamma, z_loss = settings[:3]
    found = _rows_in_place(wide, y[:, None], w, smoothing, gamma, z_loss, gradient=gradient)
    if slope is not None:
        wide.mul_(slope)
    if gradient and wide is not z:
        z.copy_(wide)
    return found


def chunks(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None,
    token_weights: Tensor | None,
    settings: Settings,
    wanted: tuple[bool, bool, bool] = (False, False, False),
    *,
    rows_of: Callable[[Tensor, Tensor, Tensor | None, Tensor | None, Settings, bool], Tensor] = _rows_by_definition,
    elements: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Each row's loss [N], and the gradients of their sum for hidden, weight and bias (empty where not `wanted`).

    Args:
        hidden: this and what follows as in `linear_cross_entropy`, [N, D] and so on.
        weight: as there.
        targets: as there.
        bias: as there.
        token_weights: as there.
        settings: what the loss is.
        wanted: which gradients.
        rows_of: makes a chunk's losses of its logits, and the logits' gradient where they lie; in fp32 inside.
        elements: logits of a chunk, at most.
    """
    with torch.autocast(hidden.device.type, enabled=False):
        vocabulary, dtype = len(weight), settings.dtype
        sums = exact(dtype)
        losses = hidden.new_zeros(len(hidden), dtype=sums)
        d_hidden = hidden.new_zeros(hidden.shape if wanted[0] else (0,))
        d_weight = weight.new_zeros(weight.shape if wanted[1] else (0,), dtype=sums)
        d_bias = weight.new_zeros(vocabulary if wanted[2] else 0, dtype=sums)
        counted = (targets != settings.ignore_index).nonzero()[:, 0]
        everything = len(counted) == len(targets)
        head = weight.to(dtype)
        step = max(1, min(_CHUNK_ROWS, (elements or _CHUNK_ELEMENTS) // vocabulary, len(counted)))
        logits = hidden.new_empty(step, vocabulary, dtype=dtype)
        for first in range(0, len(counted), step):
            last = min(first + step, len(counted))
            places: Any = slice(first, last) if everything else counted[first:last]
            x = hidden[places].to(dtype)
            w = None if token_weights is None else token_weights[places].to(sums)
            z = torch.mm(x, head.t(), out=logits[: len(x)])
            losses[places] = rows_of(z, targets[places], w, bias, settings, any(wanted))
            if wanted[0]:
                d_hidden[places] = (z @ head).to(d_hidden.dtype)
            if wanted[1] and sums == dtype:
                d_weight.addmm_(z.t(), x)
            elif wanted[1]:
                d_weight.add_(z.t() @ x)
            if wanted[2]:
                d_bias.add_(z.sum(0, dtype=sums))
        bias_dtype = d_bias.dtype if bias is None else bias.dtype
        return losses, d_hidden, d_weight.to(weight.dtype), d_bias.to(bias_dtype)


def _rows_in_place(
    z: Tensor,
    y: Tensor,
    w: Tensor | None,
    smoothing: float,
    gamma: float,
    z_loss: float,
    *,
    gradient: bool,
) -> Tensor:
    """The rows' losses; logits `z` [n, V] become their gradient."""
    highest, where = z.max(-1, keepdim=True)
    z_y = z.gather(-1, y)
    mean = z.mean(-1, keepdim=True) if smoothing else None
    p = torch.softmax(z, -1, out=z)
    # the partition by way of the likeliest token, whose probability is far from underflow
    partition = highest - p.gather(-1, where).log()
    n = partition - z_y
    q = (-torch.expm1(-n)).clamp(min=TINY) if gamma else None
    loss = (1 - smoothing) * n * (1.0 if q is None else q**gamma)
    if mean is not None:
        loss = loss + smoothing * (partition - mean)
    if z_loss:
        loss = loss + z_loss * partition**2
    if w is not None:
        loss = loss * w[:, None]
    if not gradient:
        return loss[:, 0]
    c: Tensor | float = 1.0
    if q is not None:
        # below the least q the power is a constant, as in the definition
        c = q**gamma + torch.where(q > TINY, gamma * torch.exp(-n) * q ** (gamma - 1) * n, 0.0)
    rest = smoothing + 2 * z_loss * partition if smoothing or z_loss else None
    # the target's own entry apart, where p - 1 would lose digits as p goes to 1
    own = (1 - smoothing) * c * torch.expm1(-n)
    if rest is not None:
        own = own + rest * torch.exp(-n)
    scale = (1 - smoothing) * c + (0.0 if rest is None else rest)
    if isinstance(scale, Tensor):
        p.mul_(scale)
    p.scatter_(-1, y, own)
    if smoothing:
        p.sub_(smoothing / p.shape[-1])
    if w is not None:
        p.mul_(w[:, None])
    return loss[:, 0]


@_sum.register_fake
def _(
    hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None, token_weights: Tensor | None, *options: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dtype, hidden_grad, weight_grad, bias_grad = options[5:]
    bias_dtype = exact(dtype) if bias is None else bias.dtype
    return (
        hidden.new_empty((), dtype=exact(dtype)),
        hidden.new_empty(hidden.shape if hidden_grad else (0,)),
        weight.new_empty(weight.shape if weight_grad else (0,)),
        weight.new_empty((weight.shape[0],) if bias_grad else (0,), dtype=bias_dtype),
    )


@_losses.register_fake
def _(
    hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None, token_weights: Tensor | None, *options: Any
) -> Tensor:
    return hidden.new_empty(len(hidden), dtype=exact(options[5]))


def _keep_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[1:])
    ctx.wanted = inputs[11:]
    ctx.save_for_backward(*output[1:])


def _scale_gradients(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Any, ...]:
    nothing = (None,) * 14
    if grad is None:
        return nothing
    kept = ctx.saved_tensors
    # Eager and on the CPU, where looking costs nothing, a factor of 1 spares a second head's gradient.
    looks = type(grad) is Tensor and grad.device.type == "cpu" and not torch.compiler.is_compiling()
    if not (looks and grad.item() == 1.0):
        kept = [(tensor * grad).to(tensor.dtype) for tensor in kept]
    found = [tensor if wanted else None for tensor, wanted in zip(kept, ctx.wanted, strict=True)]
    return (found[0], found[1], None, found[2], *nothing[4:])


def _keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:5])
    ctx.options = inputs[5:]


def _gradients_again(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    hidden, weight, targets, bias, weights = ctx.saved_tensors
    scaled = grad if weights is None else grad * weights
    wanted = [ctx.needs_input_grad[0], ctx.needs_input_grad[1], ctx.needs_input_grad[3]]
    _loss, *made = _sum(hidden, weight, targets, bias, scaled, *ctx.options, *wanted)
    found = [tensor if want else None for tensor, want in zip(made, wanted, strict=True)]
    return (found[0], found[1], None, found[2], *(None,) * 7)


_sum.register_autograd(_scale_gradients, setup_context=_keep_gradients)
_losses.register_autograd(_gradients_again, setup_context=_keep_inputs)


def reference(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
    softcap: float | None = None,
    token_weights: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """The definition: each row's loss [N] by way of all logits. `options` are those of `token_losses`."""
    logits = F.linear(hidden, weight, bias)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    losses = token_losses(logits, targets, **options)
    return losses if token_weights is None else losses * token_weights
