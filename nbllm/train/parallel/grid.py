"""The plan `fsdp,tp`: a grid of processes; matrices are cut over its rows of two, and all of it over its columns.

Two neighbours share the work on the same rows of data (`tp`), and the pairs read different rows and cut what a pair
holds among themselves (`fsdp`). Not yet measured on a GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from nbllm.errors import RunError
from nbllm.train.parallel.sharded import Sharded
from nbllm.train.parallel.tensor import block_plan, check_cut, cut_blocks

if TYPE_CHECKING:
    from accelerate import Accelerator

    from nbllm.train.loss_model import LossModel

TENSOR_PARTS = 2
"""Processes that share one matrix."""


class Grid(Sharded):
    """The plan `fsdp,tp`."""

    name = "fsdp,tp"

    def __init__(self, accelerator: Accelerator) -> None:
        shape = (accelerator.num_processes // TENSOR_PARTS, TENSOR_PARTS)
        grid = init_device_mesh(accelerator.device.type, shape, mesh_dim_names=("fsdp", "tp"))
        super().__init__(accelerator, grid["fsdp"])
        self._tensor_mesh = grid["tp"]
        self.data_rank, self.data_world = self.mesh.get_local_rank(), self.mesh.size()
        self.data_group = self.mesh.get_group()

    def prepare(self, inner: LossModel) -> nn.Module:
        """Cuts the blocks' matrices, then everything, in place; raises UsageError where the model can't be cut so."""
        styles = block_plan(inner.model, parts=TENSOR_PARTS)
        self._begin(inner)
        cut_blocks(inner.model, self._tensor_mesh, styles)
        return self._shard(inner)

    def report(self) -> dict[str, Any]:
        """Matrices cut both ways and the parameters each process holds; raises RunError unless all are cut."""
        wrapper = type(self.wrapped).__name__
        cut = check_cut(self.inner.model, parts=self.world_size)
        whole = [name for name, weight in self.inner.named_parameters() if not isinstance(weight, DTensor)]
        if not isinstance(self.wrapped, FSDPModule) or whole:
            raise RunError(f"fsdp,tp was asked for, but {wrapper} has {len(whole)} whole weights")
        return {"wrapper": f"{wrapper} over DTensor", "matrices_cut": cut, "parameters_by_rank": self._sizes()}
