"""Weights in 8 or 4 bits: a copy of a model whose linear layers keep integers and a scale, everything else shared.

By torch's own packed products, which read the integers and multiply in floating point: int8 with a scale an output
(symmetric, rounded to nearest), int4 with a scale and a zero for every group of 32 inputs. On a GPU int8 is a product
with a cast that the compiled decode step fuses into it (as in pytorch-labs/gpt-fast), and int4 the tinygemm kernel
that torchao calls too; no package is needed, and not yet measured on a GPU. Layers whose shape doesn't fit stay as they
are. Doesn't know sampling or training: a quantised model only runs forward.

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
_GPU_INT4 = torch.ops.aten._weight_int4pack_mm
_TILES = (8, 4, 2)
"""Tiles of 16 inputs that a GPU's product reads at once, the most first."""


class Int8Linear(nn.Module):
    """A linear layer with int8 weights."""

    packed: Tensor
    scale: Tensor

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
        if rows.device.type == "cpu":
            found = torch.ops.aten._weight_int8pack_mm(rows, self.packed, self.scale)
        else:
            found = cast_product(rows, self.packed, self.scale)
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
        self.register_buffer("packed", _pack(levels.to(torch.int32).flatten(1)))
        zero = least + scale * 8  # the product counts levels from -8
        pairs = torch.stack([scale, zero], -1).transpose(0, 1).contiguous()
        self.register_buffer("scales_and_zeros", pairs.to(linear.weight.dtype))  # [G, O, 2]
        self.bias = linear.bias

    def forward(self, states: Tensor) -> Tensor:
        """[..., D] to [..., O], in the dtype of `states`."""
        rows = states.reshape(-1, states.shape[-1]).contiguous()
        product = torch.ops.aten._weight_int4pack_mm_for_cpu if rows.device.type == "cpu" else _GPU_INT4
        found = product(rows, self.packed, GROUP, self.scales_and_zeros)
        found = found.reshape(*states.shape[:-1], -1)
        return found if self.bias is None else found + self.bias


def cast_product(rows: Tensor, packed: Tensor, scale: Tensor) -> Tensor:
    """The product with int8 weights where there is no packed one: cast, multiply, scale, which a compiler fuses.

    Args:
        rows: [N, D].
        packed: int8 [O, D].
        scale: [O].

    Returns:
        [N, O] in the dtype of `rows`.
    """
    return nn.functional.linear(rows, packed.to(rows.dtype)) * scale


def _pack(levels: Tensor) -> Tensor:
    """Levels 0 to 15, int32 [O, D], as the device's product wants them."""
    if levels.device.type == "cpu":
        return torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels, 1)
    pairs = (levels[:, ::2] << 4 | levels[:, 1::2]).to(torch.uint8)  # [O, D / 2]
    tiles = next(count for count in _TILES if levels.shape[1] % (16 * count) == 0)
    return torch.ops.aten._convert_weight_to_int4pack(pairs, tiles)


def quantize(model: Any, kind: str) -> Any:
    """A copy of the model with int8 or int4 weights in its linear layers, the head's included; the rest is shared.

    Args:
        model: a causal language model of transformers, on the CPU in bfloat16 or float32, or on a CUDA device in
            bfloat16 (int8: any floating dtype).
        kind: `int8` or `int4`.

    Raises:
        UsageError: another kind, a model elsewhere than on the CPU or a CUDA device, or one without linear layers that
            fit.
    """
    _check_kind(kind)
    if model.device.type not in ("cpu", "cuda"):
        raise UsageError(
            "int8 and int4 are made for the CPU and for CUDA devices",
            received=str(model.device),
            next="Leave --quantize out",
        )
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
    if linear.weight.device.type == "cuda" and linear.weight.dtype is not torch.bfloat16:
        return False
    return linear.in_features % GROUP == 0 and linear.out_features % 16 == 0
