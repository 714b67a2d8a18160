"""torch.compile for training: the blocks one by one, for the shape that nearly every micro-batch has.

All blocks of a model run the same code, so that one of them is compiled and serves the others: a first step takes a
fraction of the time that compiling the whole model takes, and sharding, which gathers block by block, stays outside.
Whatever has another shape or needs no gradient (a short last batch, evaluations, samples) runs as it is without:
compiling for it costs more than it gives.
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager

import torch
from torch import nn

from nbllm.model import find_blocks


def compile_blocks(model: nn.Module) -> int:
    """From now on the blocks are compiled when they are first used; returns how many there are."""
    blocks = find_blocks(model)[1]
    for block in blocks:
        block.compile(dynamic=False)
    return len(blocks)


def uncompiled(when: bool = True) -> AbstractContextManager[object]:
    """What is run inside runs as if nothing were compiled."""
    return torch.compiler.set_stance("force_eager") if when else contextlib.nullcontext()
