"""Weights in 8 or 4 bits: a copy of a model whose linear layers keep integers and a scale, everything else shared.

On the CPU by torch's own packed products, which read the integers and multiply in floating point: int8 with a scale an
output (symmetric, rounded to nearest), int4 with a scale and a zero for every group of 32 inputs. Layers whose shape
doesn't fit stay as they are. Doesn't know sampling or training: a quantised model only runs forward.

Legend: N rows, D inputs, O outputs, G groups.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from nbllm.errors import UsageError, did_you_mean

KINDS = ("int8", "int4")
GROUP = 32
"""Inputs that share a scale in int4, as in llama.cpp's Q4_1."""
_LARGEST_INT8 = 127
_STEPS_INT4 = 15


class Int8Linear(nn.Module):
    """A linear layer with int8 weights."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach().float()  # [O, D]
        scale = weight.abs().amax(1).clamp(min=1e-12) / _LARGEST_INT8
        self.register_buffer("packed", (weight / scale[:, None]).round().to(torch.int8))
        self.register_buffer("scale", scale.to(linear.weight.dtype))
        self.bias = linear.bias

    def forward(self, states: Tensor) -> Tensor:
        """[..., D] to [..., O], in the dtype of `states`."""
        rows = states.reshape(-1, states.shape[-1]).contiguous()  # of a sliced batch it is a view
        found = torch.ops.aten._weight_int8pack_mm(rows, self.packed, self.scale)
        found = found.reshape(*states.shape[:-1], -1)
        return found if self.bias is None else found + self.bias


class Int4Linear(nn.Module):
    """A linear layer with int4 weights, by groups of inputs."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach().float()
        groups = weight.reshape(len(weight), -1, GROUP)  # [O, G, 32]
        least, most = groups.amin(-1), groups.amax(-1)
        scale = ((most - least) / _STEPS_INT4).clamp(min=1e-12)
        levels = ((groups - least[..., None]) / scale[..., None]).round().clamp(0, _STEPS_INT4)
        self.register_buffer(
            "packed", torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels.to(torch.int32).flatten(1), 1)
        )
        zero = least + scale * 8  # the product counts levels from -8
        pairs = torch.stack([scale, zero], -1).transpose(0, 1).contiguous()
        self.register_buffer("scales_and_zeros", pairs.to(linear.weight.dtype))  # [G, O, 2]
        self.bias = linear.bias

    def forward(self, states: Tensor) -> Tensor:
        """[..., D] to [..., O], in the dtype of `states`."""
        rows = states.reshape(-1, states.shape[-1]).contiguous()
        found = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, self.packed, GROUP, self.scales_and_zeros)
        found = found.reshape(*states.shape[:-1], -1)
        return found if self.bias is None else found + self.bias


def quantize(model: Any, kind: str) -> Any:
    """A copy of the model with int8 or int4 weights in its linear layers, the head's included; the rest is shared.

    Args:
        model: a causal language model of transformers, on the CPU, in bfloat16 or float32.
        kind: `int8` or `int4`.

    Raises:
        UsageError: another kind, a model elsewhere than on the CPU, or one without linear layers that fit.
    """
    _check_kind(kind)
    if model.device.type != "cpu":
        raise UsageError("int8 and int4 are made for the CPU", received=str(model.device), next="Leave --quantize out")
    import copy

    tensors = [*model.parameters(), *model.buffers()]
    made = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors}).eval()
    count = 0
    for parent in list(made.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and _fits(child, kind):
                setattr(parent, name, Int8Linear(child) if kind == "int8" else Int4Linear(child))
                count += 1
    if not count:
        raise UsageError(f"{type(model).__name__} has no linear layers that {kind} fits", next="Leave --quantize out")
    made.nbllm_quantized = kind
    return made


def quantized_bytes(model: Any, kind: str) -> int:
    """Bytes of the weights that `quantize` would leave, once the model it was made from is freed.

    An embedding stays as it is, also where the head is tied to it: the head gets integers of its own beside it.

    Args:
        model: as for `quantize`.
        kind: `int8` or `int4`.

    Raises:
        UsageError: another kind.
    """
    _check_kind(kind)
    replaced = {id(one) for one in model.modules() if type(one) is nn.Linear and _fits(one, kind)}
    total, counted = 0, set()
    for module in model.modules():
        if id(module) in replaced:
            total += _packed_bytes(module, kind)
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            if id(tensor) not in counted and not (id(module) in replaced and name == "weight"):
                counted.add(id(tensor))
                total += tensor.nbytes
    return total


def _packed_bytes(linear: Any, kind: str) -> int:
    outputs, inputs = linear.weight.shape
    width = linear.weight.dtype.itemsize
    if kind == "int8":
        return int(outputs * inputs + outputs * width)
    return int(outputs * inputs // 2 + 2 * outputs * (inputs // GROUP) * width)


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise UsageError("quantize is int8 or int4", received=kind, next=did_you_mean(kind, KINDS))


def _fits(linear: nn.Linear, kind: str) -> bool:
    if kind == "int8":
        return linear.in_features % 16 == 0 and linear.out_features % 16 == 0
    return linear.in_features % GROUP == 0 and linear.out_features % 16 == 0
