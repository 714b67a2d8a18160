"""A base in 4 bits for QLoRA: the linear layers of its blocks keep NF4 numbers, through bitsandbytes, on any device.

An adapter trained on such a base is right only on such a base, so its folder says so (`base_quantization.json`, beside
peft's files), and whoever attaches it prepares the base first: in 4 bits, or rounded to what 4 bits can say and dense
again, which is what it merges into. Embeddings, norms and the head stay as they are. Everything is computed in the
dtype of the activations. Source: Dettmers et al. 2023, https://arxiv.org/abs/2305.14314.

Legend: D inputs, O outputs.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbllm.errors import StoreError, UsageError
from nbllm.model.structure import find_blocks

if TYPE_CHECKING:
    from torch import Tensor, nn

_FILE = "base_quantization.json"
_KIND = "nf4"
_MARK = "_nbllm_base"


def quantize_base(model: nn.Module) -> None:
    """Puts the blocks' linear layers into 4 bits, in place; one that is so already stays as it is.

    Raises:
        UsageError: bitsandbytes isn't installed, or the blocks have no linear layers.
    """
    import torch
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    if base_of(model) is not None:
        return
    if importlib.util.find_spec("bitsandbytes") is None:
        raise UsageError("--method qlora needs bitsandbytes", next='pip install "nbllm[quant]"')
    _, blocks = find_blocks(model)
    found: list[tuple[nn.Module, str, Any]] = [
        (parent, name, child)
        for parent in blocks.modules()
        for name, child in parent.named_children()
        if type(child) in (nn.Linear, Conv1D)
    ]
    if not found:
        raise UsageError("The blocks of this model have no linear layers", received=type(model).__name__)
    with torch.no_grad():
        for parent, name, child in found:
            transposed = type(child) is Conv1D
            weight = child.weight.t().contiguous() if transposed else child.weight
            setattr(parent, name, _four_bit(weight, child.bias, transposed=transposed))
    setattr(model, _MARK, _KIND)
    model.is_loaded_in_4bit = True  # type: ignore[assignment]  # where peft looks


def dequantize_base(model: nn.Module) -> None:
    """Makes a base in 4 bits dense again, in place, with the numbers that the 4 bits stand for."""
    import torch
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    if not in_four_bits(model):
        return
    import bitsandbytes as bnb

    with torch.no_grad():
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if not isinstance(child, bnb.nn.Linear4bit):
                    continue
                weight = bnb.functional.dequantize_4bit(child.weight, child.weight.quant_state)  # [O, D]
                outputs, inputs = weight.shape
                dense: Any
                if child.transposed:
                    dense, weight = Conv1D(outputs, inputs), weight.t().contiguous()
                else:
                    dense = nn.Linear(inputs, outputs, bias=child.bias is not None)
                dense.weight = nn.Parameter(weight)
                if child.bias is not None:
                    dense.bias = child.bias
                setattr(parent, name, dense)
    model.is_loaded_in_4bit = False  # type: ignore[assignment]


def base_of(model: nn.Module) -> str | None:
    """`nf4` where the blocks' weights are, or were rounded to, NF4; else None."""
    return getattr(model, _MARK, None)


def in_four_bits(model: nn.Module) -> bool:
    """Whether the blocks' weights lie in 4 bits now."""
    return base_of(model) is not None and bool(getattr(model, "is_loaded_in_4bit", False))


def wanted_base(folder: str | Path) -> str | None:
    """`nf4` where the adapter in a folder was trained on a base in 4 bits; None for a plain base."""
    path = Path(folder) / _FILE
    try:
        kind = json.loads(path.read_text(encoding="utf-8"))["kind"] if path.is_file() else None
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path} doesn't say what base the adapter was trained on: {error}") from error
    if kind not in (None, _KIND):
        raise UsageError("The adapter was trained on a base of a kind that isn't known here", received=kind)
    return kind


def note_base(model: nn.Module, folder: Path) -> None:
    """Writes into an adapter's folder that its base is in 4 bits, where it is."""
    kind = base_of(model)
    if kind is not None:
        (folder / _FILE).write_text(json.dumps({"kind": kind}) + "\n", encoding="utf-8")


def prepare_base(model: nn.Module, folder: str | Path, *, dense: bool = False) -> None:
    """Makes a plain base what the adapter in a folder was trained on, in place; does nothing for other adapters.

    Args:
        model: the base, without an adapter.
        folder: the adapter's.
        dense: rounded to 4 bits but dense, to merge into.
    """
    if wanted_base(folder) is None:
        return
    quantize_base(model)
    if dense:
        dequantize_base(model)


def _four_bit(weight: Tensor, bias: Any, *, transposed: bool) -> nn.Module:
    import bitsandbytes as bnb
    import torch

    class FourBit(bnb.nn.Linear4bit):
        """A linear layer [..., D] -> [..., O] in NF4, its scales in 8 bits."""

        def __init__(self) -> None:
            # the base class makes a weight to fill: one that takes no memory
            super().__init__(weight.shape[1], weight.shape[0], bias=False, device="meta", quant_type="nf4")
            self.bias = bias
            self.transposed = transposed
            # eval mode would repack the weights for one instruction set, after which gradients are silently zero
            self.support_avx512bf16_for_cpu = False
            self.compute_type_is_set = True  # that of the activations
            packed = bnb.nn.Params4bit(weight.detach(), requires_grad=False, quant_type="nf4", module=self)
            self.weight = packed.to(weight.device)

        def forward(self, states: Tensor) -> Tensor:
            kind = states.device.type
            if torch.is_autocast_enabled(kind):  # an op of its own, which autocast doesn't know
                states = states.to(torch.get_autocast_dtype(kind))
            return super().forward(states)

    return FourBit()
