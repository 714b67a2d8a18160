"""Where a model goes wrong: the module whose output first isn't finite, parts that aren't trained.

Runs the model's forward and backward pass again on the batch of a step that wasn't taken, with the random numbers put
back, so that the run is the same with and without it. For whole models; not for those that are cut over processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from nbllm.train.loss_model import LossModel

Batch = tuple[Tensor, Tensor, Tensor]
AT_MOST = 3
"""Steps of a run that are looked into."""
LOOK_AT = 3
"""The step whose gradients show parts that none reaches: where a layer begins with zeros, the first has none yet."""


def locate(
    inner: LossModel, batches: Sequence[Batch], *, autocast: Callable[[], AbstractContextManager[Any]]
) -> dict[str, Any]:
    """Where the first number that isn't finite comes from; the gradients are those of this look afterwards.

    Args:
        inner: the model with its loss, with the weights of the step.
        batches: the step's micro-batches: ids, targets and positions, int64 [B, T].
        autocast: the run's precision.

    Returns:
        `where`, a clause; `module`, the name of the module or parameter; `weights`: whether weights aren't finite.
    """
    for name, weight in inner.model.named_parameters():
        if not bool(torch.isfinite(weight).all()):
            return {"where": f"the weights of {name} aren't finite", "module": name, "weights": True}
    seen: list[str] = []

    def watch(name: str) -> Callable[[Any, Any, Any], None]:
        def look(_module: Any, _inputs: Any, output: Any) -> None:
            if not seen and not all(bool(torch.isfinite(one).all()) for one in _tensors(output)):
                seen.append(name)

        return look

    names = [(name, module) for name, module in inner.model.named_modules() if name]
    hooks = [module.register_forward_hook(watch(name)) for name, module in names]
    devices = [] if inner.model.device.type == "cpu" else [inner.model.device]
    try:
        # compiled code knows nothing of hooks
        with torch.random.fork_rng(devices), torch.compiler.set_stance("force_eager"):
            for number, batch in enumerate(batches):
                inner.zero_grad(set_to_none=True)
                with autocast():
                    loss = inner(*batch)
                if seen:
                    return {"where": f"first in the output of {seen[0]}{_of(number, batches)}", "module": seen[0]}
                if not bool(torch.isfinite(loss)):
                    return {"where": f"first in the loss itself{_of(number, batches)}", "module": "loss"}
                loss.backward()
                # backward goes from the loss to the first layer: the last parameter of the model comes first
                for name, weight in reversed(list(inner.model.named_parameters())):
                    if weight.grad is not None and not bool(torch.isfinite(weight.grad).all()):
                        return {"where": f"first in the gradient of {name}{_of(number, batches)}", "module": name}
    finally:
        for hook in hooks:
            hook.remove()
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return {"where": "not on the first process's rows", "module": ""}
    return {"where": "every number is finite, and the gradient's norm is too large for one", "module": ""}


def structure(inner: LossModel, *, whole: bool) -> dict[str, Any]:
    """Parts that aren't as they should be, asked after a step's backward pass.

    Args:
        inner: the model with its loss.
        whole: whether all weights are to be trained, and not an adapter.

    Returns:
        `frozen` and `still`: names of tensors that take no gradient, and that take one and got none; `untied`.
    """
    named = list(inner.model.named_parameters())
    head, embedding = inner.model.get_output_embeddings(), inner.model.get_input_embeddings()
    tied = bool(getattr(inner.model.config.get_text_config(), "tie_word_embeddings", False))
    return {
        "frozen": [name for name, weight in named if not weight.requires_grad] if whole else [],
        "still": [
            name
            for name, weight in named
            if weight.requires_grad and (weight.grad is None or not bool(weight.grad.any()))
        ],
        "untied": tied and head is not None and getattr(head, "weight", None) is not embedding.weight,
    }


def _of(number: int, batches: Sequence[Batch]) -> str:
    return f", in micro-batch {number + 1} of {len(batches)}" if len(batches) > 1 else ""


def _tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output] if output.is_floating_point() else []
    if isinstance(output, dict):
        output = list(output.values())
    return [one for part in output for one in _tensors(part)] if isinstance(output, (list, tuple)) else []
