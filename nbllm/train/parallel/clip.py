"""Clipping the gradient's global norm where some gradients are ordinary tensors and others are cut (DTensor).

torch's own clipping takes one kind at a time. An ordinary tensor counts as it is, and is held alike by every process;
a cut one counts once over all its pieces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


def clip_gradients(
    parameters: Sequence[nn.Parameter],
    limit: float,
    *,
    combine: Callable[[Tensor], Tensor] | None = None,
    uncounted: Collection[int] = (),
) -> float:
    """Scales gradients in place so that their global 2-norm is at most `limit`; returns the norm before.

    Args:
        parameters: those with a gradient count.
        limit: the largest norm; inf only measures.
        combine: sums the squared norm over processes that hold different parameters; None: every process sees all.
        uncounted: `id` of parameters that are scaled but don't count, since another process counts them.
    """
    kinds: dict[object, list[nn.Parameter]] = {}
    for weight in parameters:
        if weight.grad is not None:
            kinds.setdefault(kind_of(weight.grad), []).append(weight)
    norms = []
    for group in kinds.values():
        counted = [weight.grad for weight in group if weight.grad is not None and id(weight) not in uncounted]
        norm = nn.utils.get_total_norm(counted)
        norms.append(norm.full_tensor() if isinstance(norm, DTensor) else norm)
    if len(norms) == 1 and combine is None:
        total = norms[0]
    else:
        device = norms[0].device if norms else torch.device("cpu")
        squares = torch.stack([norm.float() ** 2 for norm in norms]).sum() if norms else torch.zeros((), device=device)
        total = (combine(squares) if combine is not None else squares).sqrt()
    if math.isfinite(limit):
        for group in kinds.values():
            nn.utils.clip_grads_with_norm_(group, limit, total)
    return float(total)


def kind_of(tensor: Tensor) -> object:
    """What tensors must share to be worked on in one go: None for ordinary ones, else the mesh that they are cut on."""
    return tensor.device_mesh if isinstance(tensor, DTensor) else None
