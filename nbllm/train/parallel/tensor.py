"""The plan `tp`: the matrices of every block cut over the processes, by transformers' own plan for the model.

Every process reads the same rows. The plan's words (`colwise`, `rowwise`) are carried out by torch's
`parallelize_module`, so that parameters are DTensors; embeddings, norms and head stay whole on every process, which
keeps the loss without logits usable. transformers' DistributedConfig cuts models while it loads them from disk only.
Not yet measured on a GPU. Source: https://docs.pytorch.org/docs/stable/distributed.tensor.parallel.html
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from nbllm.errors import RunError, UsageError
from nbllm.model import find_blocks
from nbllm.train.parallel.sharded import Cut, local

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel

    from nbllm.train.loss_model import LossModel

_STYLES: dict[str, type[ParallelStyle]] = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}
_DIVIDED = ("num_attention_heads", "num_key_value_heads", "intermediate_size")


class Tensors(Cut):
    """The plan `tp`."""

    name = "tp"

    def __init__(self, accelerator: Accelerator) -> None:
        super().__init__(accelerator)
        self.data_rank, self.data_world = 0, 1
        self.mesh: DeviceMesh = init_device_mesh(self.device.type, (self.world_size,), mesh_dim_names=("tp",))

    def prepare(self, inner: LossModel) -> nn.Module:
        """Cuts the blocks' matrices in place; raises UsageError where the model can't be cut so."""
        styles = block_plan(inner.model, parts=self.mesh.size())
        self._begin(inner)
        cut_blocks(inner.model, self.mesh, styles)
        return inner

    def report(self) -> dict[str, Any]:
        """How many matrices are cut, and the parameters each process holds; raises RunError unless all are cut."""
        cut = check_cut(self.inner.model, parts=self.world_size)
        return {"wrapper": "DTensor", "matrices_cut": cut, "parameters_by_rank": self._sizes()}

    def accumulating(self, more: bool) -> AbstractContextManager[None]:
        """Nothing is exchanged at the end of a micro-batch."""
        return contextlib.nullcontext()


def block_plan(model: PreTrainedModel, *, parts: int) -> dict[str, str]:
    """transformers' plan of one block: submodule to `colwise` or `rowwise`.

    Raises:
        UsageError: the model has no plan, one with other words, or sizes that don't divide by `parts`.
    """
    kind = model.config.model_type
    whole: dict[str, str] = getattr(model.config, "base_model_tp_plan", None) or {}
    styles = {name.partition(".*.")[2]: style for name, style in whole.items() if ".*." in name}
    if not styles or not set(styles.values()) <= set(_STYLES):
        raise UsageError(f"transformers has no plan to cut the matrices of a {kind} model", next="Use --parallel fsdp")
    for name in _DIVIDED:
        count = getattr(model.config, name, None)
        if count is not None and count % parts:
            raise UsageError(
                f"--parallel tp over {parts} processes needs a {name} that divides by {parts}",
                received=count,
                next="Use --parallel fsdp, or another number of processes",
            )
    return styles


def cut_blocks(model: PreTrainedModel, mesh: DeviceMesh, styles: dict[str, str]) -> None:
    """Cuts every block over the mesh by the plan of `block_plan`."""
    for block in find_blocks(model)[1]:
        parallelize_module(block, mesh, {name: _STYLES[style]() for name, style in styles.items()})


def check_cut(model: PreTrainedModel, *, parts: int) -> int:
    """The number of matrices that are cut into `parts`; raises RunError where one of the blocks' isn't."""
    cut = 0
    for name, weight in find_blocks(model)[1].named_parameters():
        if weight.ndim != 2:
            continue
        if not isinstance(weight, DTensor) or local(weight).numel() * parts > weight.numel():
            raise RunError(f"{name} was to be cut into {parts} pieces, and isn't")
        cut += 1
    return cut
