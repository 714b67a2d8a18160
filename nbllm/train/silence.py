"""Notices that what is to be trained gets no gradient, which otherwise looks like a run that learns slowly.

Layers in 4 bits, recomputed activations and wrapped modules have each lost gradients without a word. Knows names and
gradients only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from nbllm.errors import RunError

_PATIENCE = 3


class SilenceWatch:
    """Looks at the gradients of a run step by step.

    Args:
        names: of the parameters, by `id`.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = names
        self._silent_steps: dict[int, int] = {}

    def look(self, parameters: Sequence[nn.Parameter]) -> None:
        """Call it after a step's backward pass. Where gradients are cut over processes, a collective call.

        Raises:
            RunError: no parameter has a gradient, or half of them have had none for three steps (the first matrix of a
                low-rank update has none in the first step, when the second is still zero).
        """
        there = [(id(weight), weight.grad) for weight in parameters if weight.grad is not None]
        norms = _norms([gradient for _, gradient in there])
        heard = {number for (number, _), norm in zip(there, norms, strict=True) if norm != 0}
        for weight in parameters:
            number = id(weight)
            self._silent_steps[number] = 0 if number in heard else self._silent_steps.get(number, 0) + 1
        long = [number for number, steps in self._silent_steps.items() if steps >= _PATIENCE]
        if heard and 2 * len(long) < len(parameters):
            return
        silent = long if heard else [id(weight) for weight in parameters]
        since = f"for {_PATIENCE} steps" if heard else "in this step"
        raise RunError(
            f"{len(silent)} of {len(parameters)} trained tensors got no gradient {since}, such as "
            f"{self._names.get(silent[0], '?')}: nothing is learnt there",
            next="Use --method lora, and leave --checkpointing and --compile out",
        )


def _norms(gradients: Sequence[torch.Tensor]) -> list[float]:
    if not gradients:
        return []
    found = torch.stack(torch._foreach_norm(list(gradients)))
    whole: torch.Tensor = found.full_tensor() if isinstance(found, DTensor) else found
    return whole.tolist()
