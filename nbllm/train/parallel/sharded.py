"""The plan `fsdp`: weights, gradients and optimizer state cut into one piece a process by torch's `fully_shard`.

Every block is gathered for its forward and backward pass and freed again; embeddings, last norm and head are gathered
once for the whole pass, so that a loss that takes the head's weight sees all of it. The same code path on gloo and on
GPUs (accelerate's own FSDP falls back to DDP on a CPU). Not yet measured on a GPU.
Source: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from nbllm.errors import RunError
from nbllm.model import find_blocks
from nbllm.train.parallel.replicated import Parallel
from nbllm.train.parallel.whole import empty_copy, fill

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel

    from nbllm.train.loss_model import LossModel


class Cut(Parallel):
    """What the plans share whose parameters are DTensors."""

    def __init__(self, accelerator: Accelerator) -> None:
        super().__init__(accelerator)
        self._empty: PreTrainedModel | None = None

    def _begin(self, inner: LossModel) -> None:
        self.inner = self.wrapped = inner
        if self.rank == 0:
            self._empty = empty_copy(inner.model)
        # the run's number format around forward, without a wrapper
        self.accelerator.prepare_model(inner, device_placement=False, evaluation_mode=True)

    def _sizes(self) -> list[int]:
        """Parameters that each process holds."""
        mine = sum(local(weight).numel() for weight in self.inner.parameters())
        sizes = [torch.zeros(1, dtype=torch.int64, device=self.device) for _ in range(self.world_size)]
        dist.all_gather(sizes, torch.tensor([mine], device=self.device))
        return [int(size) for size in sizes]

    def whole_model(self) -> PreTrainedModel | None:
        """On rank 0 a model with all weights, on the run's device; None elsewhere. A collective call."""
        weights = self.collect(dict(self.inner.model.named_parameters(remove_duplicate=False)))
        if self._empty is None or weights is None:
            return None
        return fill(self._empty, weights).train(self.inner.model.training)

    def collect(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """Every tensor whole on rank 0, None elsewhere. A collective call, one tensor after the other."""
        found = {}
        for name, tensor in tensors.items():
            whole = tensor.detach()
            if isinstance(whole, DTensor):
                whole = whole.full_tensor()
            if self.rank == 0:
                found[name] = whole
        return found if self.rank == 0 else None

    def place(self, value: Tensor, like: Tensor) -> Tensor:
        """The piece of a whole tensor that goes with a cut parameter; a scalar stays as it is."""
        if not isinstance(like, DTensor) or value.shape != like.shape:
            return value
        # every process has read the same file: nothing to send
        return distribute_tensor(value.to(self.device), like.device_mesh, like.placements, src_data_rank=None)


class Sharded(Cut):
    """The plan `fsdp`."""

    name = "fsdp"

    def __init__(self, accelerator: Accelerator, mesh: DeviceMesh | None = None) -> None:
        super().__init__(accelerator)
        self.mesh = mesh or init_device_mesh(self.device.type, (self.world_size,), mesh_dim_names=("fsdp",))

    def prepare(self, inner: LossModel) -> nn.Module:
        """Cuts each block, and what is outside the blocks, in place."""
        self._begin(inner)
        self._total = sum(weight.numel() for weight in inner.parameters())
        return self._shard(inner)

    def _shard(self, inner: LossModel) -> nn.Module:
        for block in find_blocks(inner.model)[1]:
            fully_shard(block, mesh=self.mesh)
        fully_shard(inner, mesh=self.mesh)
        return inner

    def report(self) -> dict[str, Any]:
        """Wrapper, blocks cut, and how many parameters each process holds; raises RunError unless all are cut."""
        wrapper = type(self.wrapped).__name__
        blocks = sum(isinstance(block, FSDPModule) for block in find_blocks(self.inner.model)[1])
        whole = [name for name, weight in self.inner.named_parameters() if not isinstance(weight, DTensor)]
        sizes = self._sizes()
        if not isinstance(self.wrapped, FSDPModule) or not blocks or whole:
            raise RunError(f"fsdp was asked for, but {wrapper} has {blocks} blocks cut and {len(whole)} whole weights")
        if sum(sizes) != self._total or max(sizes) >= self._total:
            raise RunError(f"fsdp was asked for, but the processes hold {sizes} of {self._total:,} parameters")
        return {"wrapper": wrapper, "blocks_cut": blocks, "parameters_by_rank": sizes}

    def whole_model(self) -> PreTrainedModel | None:
        """As for every cut plan; a forward pass without a backward pass leaves the outer weights gathered."""
        assert isinstance(self.wrapped, FSDPModule)
        self.wrapped.reshard()
        return super().whole_model()

    @contextlib.contextmanager
    def accumulating(self, more: bool) -> Iterator[None]:
        """Gradients stay whole on each process until the last micro-batch."""
        assert isinstance(self.wrapped, FSDPModule)
        self.wrapped.set_requires_gradient_sync(not more)
        yield


def local(tensor: Tensor) -> Tensor:
    """This process's piece of a cut tensor; an ordinary tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
