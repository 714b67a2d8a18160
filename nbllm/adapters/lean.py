"""LoRA's layers in one op, forward and backward, which keeps a layer's input once and makes no copies of its outputs.

y = x W' + b + s (m x) A' B', with m the dropout's mask and s = alpha / r, over 1 - p under dropout. With
e = s dy B: dx = dy W + m (e A), dA = e' (m x), dB = s dy' (x A'). Products are taken in autocast's dtype, gradients
have their tensors'. peft's own code makes the same sum from separate ops, which keep x two or three times and go over
every output twice more. Source: Hu et al. 2021, https://arxiv.org/abs/2106.09685.

Only a plain adapter on a frozen `nn.Linear` is taken; anything else (DoRA, 4 bits, sharded weights, hooks inside the
layer, compiled code) goes peft's way. Doesn't know models.

Legend: N rows, D inputs, O outputs, r rank.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def make_lean(model: nn.Module) -> int:
    """Gives peft's plain LoRA layers in a model the op, in place; returns how many there are."""
    from peft.tuners.lora.layer import Linear

    plain: Any = Linear
    layers: list[Any] = [module for module in model.modules() if type(module) is plain]
    taken = [layer for layer in layers if type(layer.get_base_layer()) is nn.Linear]
    for layer in taken:
        layer.__class__ = _lean_class(plain)
    return len(taken)


@functools.cache
def _lean_class(own: Any) -> type:
    def forward(self: Any, x: Tensor, *args: Any, **options: Any) -> Tensor:
        names = self.active_adapters
        base = self.base_layer
        if args or options or len(names) != 1 or not _takes(self, base, names[0], x):
            found: Tensor = own.forward(self, x, *args, **options)
            return found
        a, b = self.lora_A[names[0]].weight, self.lora_B[names[0]].weight
        p = getattr(self.lora_dropout[names[0]], "p", 0.0) if self.training else 0.0
        scale = self.scaling[names[0]]
        kind = x.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        rows = x.to(dtype).reshape(-1, x.shape[-1])
        mask = torch.empty_like(rows, dtype=torch.bool).bernoulli_(1 - p) if p else None
        y: Tensor = _Sum.apply(rows, base.weight, base.bias, a, b, scale / (1 - p), mask)
        return y.view(*x.shape[:-1], y.shape[-1])

    # under its own name, so that what looks at classes finds what it looks for
    body = {"_nbllm_lean": True, "__module__": own.__module__, "__qualname__": own.__qualname__, "forward": forward}
    return type(own.__name__, (own,), body)


def _takes(layer: Any, base: Any, name: str, x: Tensor) -> bool:
    """Whether the op says what the layer does now."""
    if layer.disable_adapters or layer.merged or name not in layer.lora_A or name in layer.lora_variant:
        return False
    if torch.compiler.is_compiling() or not x.is_floating_point() or type(base) is not nn.Linear:
        return False
    parts = (base, layer.lora_A[name], layer.lora_B[name])
    weights = (base.weight, *(part.weight for part in parts[1:]))
    return (
        not layer.lora_bias[name]
        and not base.weight.requires_grad
        and (base.bias is None or not base.bias.requires_grad)
        and not any(part._forward_hooks or part._forward_pre_hooks or part._backward_hooks for part in parts)
        and not any(hasattr(weight, "full_tensor") or hasattr(weight, "ds_id") for weight in weights)
    )


class _Sum(torch.autograd.Function):
    """(rows [N, D], W [O, D], bias [O], A [r, D], B [O, r], scale, mask [N, D]) -> [N, O]."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float,
        mask: Tensor | None,
    ) -> Tensor:  # fmt: skip
        dtype = rows.dtype
        y = F.linear(rows, weight.to(dtype), None if bias is None else bias.to(dtype))
        inner = (rows if mask is None else rows * mask) @ a.to(dtype).t()  # [N, r]
        y.addmm_(inner, b.to(dtype).t(), alpha=scale)
        ctx.save_for_backward(rows, weight, a, b, inner, mask)
        ctx.scale = scale
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight, a, b, inner, mask = ctx.saved_tensors
        dtype = rows.dtype
        e = (dy @ b.to(dtype)).mul_(ctx.scale)  # [N, r]
        dx = None
        if ctx.needs_input_grad[0]:
            dx = dy @ weight.to(dtype)
            if mask is None:
                dx.addmm_(e, a.to(dtype))
            else:
                dx.add_((e @ a.to(dtype)).mul_(mask))
        da = e.t() @ (rows if mask is None else rows * mask)
        db = dy.t() @ inner
        return dx, None, None, da.to(a.dtype), db.to(b.dtype).mul_(ctx.scale), None, None
