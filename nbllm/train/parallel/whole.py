"""An ordinary model beside a cut one: the same modules without weights, filled with whole weights when asked.

So that a checkpoint is written, and a sample of text drawn, by the code that does it for one process. The empty model
costs its buffers only; filled, it takes the memory of all weights on rank 0 until it is emptied.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def empty_copy(model: PreTrainedModel) -> PreTrainedModel:
    """The model again with parameters that hold nothing (`meta`), tied where they were tied; buffers are copied."""
    memo: dict[int, object] = {
        id(weight): nn.Parameter(torch.empty_like(weight, device="meta"), requires_grad=weight.requires_grad)
        for weight in model.parameters()
    }
    return copy.deepcopy(model, memo)


def fill(empty: PreTrainedModel, weights: Mapping[str, Tensor]) -> PreTrainedModel:
    """Gives the empty model its weights, by the names of `named_parameters`; returns it."""
    made: dict[int, nn.Parameter] = {}
    for name, old in list(empty.named_parameters(remove_duplicate=False)):
        if id(old) not in made:
            made[id(old)] = nn.Parameter(weights[name].detach(), requires_grad=old.requires_grad)
        module, _, leaf = name.rpartition(".")
        setattr(empty.get_submodule(module), leaf, made[id(old)])
    return empty
