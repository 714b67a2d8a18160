"""One process alone, or several with a whole model each (DistributedDataParallel); and the base of all other plans.

A plan says how the model is wrapped, how the gradients of a step are made, averaged and clipped, how whole weights and
optimizer state are gathered on rank 0 and given back, and what is truly active. Knows neither files nor schedules.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nbllm.errors import RunError
from nbllm.train.parallel.clip import clip_gradients

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel

    from nbllm.train.loss_model import LossModel
    from nbllm.train.optimizer import Optimizers

Batch = tuple[Tensor, Tensor, Tensor]
"""Input ids, targets and positions, each int64 [B, T]."""


class Parallel:
    """The plan `ddp`.

    Args:
        accelerator: joins the processes.
    """

    name = "ddp"

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self.device: torch.device = accelerator.device
        self.rank: int = accelerator.process_index
        self.world_size: int = accelerator.num_processes
        self.data_rank = self.rank
        """Which share of a global batch this process reads."""
        self.data_world = self.world_size
        """How many shares there are."""
        self.data_group: dist.ProcessGroup | None = None
        """The processes that read different shares; None: all."""
        self.inner: LossModel
        self.wrapped: nn.Module

    def prepare(self, inner: LossModel) -> nn.Module:
        """Wraps the model with its loss, which is on its device; what comes back is called as `inner` is."""
        self.inner = inner
        self.wrapped = self.accelerator.prepare_model(inner)
        return self.wrapped

    @property
    def evaluated(self) -> nn.Module:
        """What evaluations call as they would call `inner`: by every process at once."""
        return self.inner

    def report(self) -> dict[str, Any]:
        """What is truly active: the wrapper's class, and what proves the plan. A collective call.

        Raises:
            RunError: it isn't what was asked for.
        """
        several = self.world_size > 1
        wrapper = type(self.wrapped).__name__ if self.wrapped is not self.inner else "none"
        if several != isinstance(self.wrapped, nn.parallel.DistributedDataParallel):
            raise RunError(f"{self.world_size} processes train with the wrapper {wrapper!r}")
        return {"wrapper": wrapper}

    def gradients(self, batches: Sequence[Batch], share: Tensor, backward: Callable[[Tensor], None]) -> Tensor:
        """Forward and backward of a step's micro-batches; the nats of this process's targets, summed, fp32.

        Afterwards every parameter has the gradient of (all processes' nats) × `share`.

        Args:
            batches: the micro-batches of this process, as many as the others have.
            share: scalar that the loss is multiplied by: 1 / targets of the global batch.
            backward: takes the place of `loss.backward()`.
        """
        # gradients are averaged over processes, which this undoes
        share = share * self.data_world
        total = torch.zeros((), device=self.device)
        for number, batch in enumerate(batches):
            with self.accumulating(number + 1 < len(batches)):
                loss = self.wrapped(*batch, share)
                backward(loss)
            total += loss.detach() / share
        return total

    def accumulating(self, more: bool) -> AbstractContextManager[None]:
        """Around a micro-batch; gradients aren't exchanged yet where more follow."""
        if more and self.world_size > 1:
            return self.wrapped.no_sync()  # type: ignore[operator]
        return contextlib.nullcontext()

    def sum_over_data(self, total: Tensor) -> Tensor:
        """The sum over all shares of the data, in place, the same on every process."""
        if self.data_world > 1:
            dist.all_reduce(total, group=self.data_group)
        return total

    def clip(self, parameters: Iterable[nn.Parameter], limit: float | None) -> float:
        """Scales the gradients down to a global norm of `limit`; returns the norm before, the same on every process."""
        return clip_gradients(list(parameters), limit or math.inf)

    def adopt(self, optimizers: Optimizers) -> None:
        """Called once with the optimizers of the bare, perhaps cut model, before anything is reported or trained."""

    def zero_grad(self, optimizers: Optimizers) -> None:
        """Drops all gradients."""
        optimizers.zero_grad()

    def step(self, optimizers: Optimizers, limit: float | None) -> float:
        """Clips the gradients and takes a step, unless one isn't finite; returns the norm before clipping."""
        scaler = self.accelerator.scaler
        if scaler is not None:
            for member in optimizers:
                scaler.unscale_(member)
        norm = self.clip(optimizers.parameters, limit)
        if math.isfinite(norm):  # for all members or for none: one alone would take a step of momentum
            for member in optimizers:
                member.step() if scaler is None else scaler.step(member)
        if scaler is not None:
            scaler.update()
        return norm

    def forget(self, optimizers: Optimizers) -> None:
        """Drops all optimizer state."""
        for member in optimizers:
            member.state.clear()

    def state_of(self, optimizers: Optimizers, member: str) -> dict[str, Tensor]:
        """One optimizer's state as this process holds it, keys `PARAMETER|FIELD`; `collect` makes it whole."""
        return {
            f"{optimizers.names[id(weight)]}|{key}": value.detach()
            for weight, fields in optimizers.members[member].state.items()
            for key, value in fields.items()
        }

    def give_state(self, optimizers: Optimizers, member: str, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Takes over whole optimizer state, by the names of parameters that this process trains."""
        owner = optimizers.members[member]
        weights = [weight for group in owner.param_groups for weight in group["params"]]
        numbers = {optimizers.names[id(weight)]: number for number, weight in enumerate(weights)}
        placed = {
            numbers[name]: {field: self.place(value, weights[numbers[name]]) for field, value in fields.items()}
            for name, fields in state.items()
        }
        owner.load_state_dict({"state": placed, "param_groups": owner.state_dict()["param_groups"]})

    def whole_model(self) -> PreTrainedModel | None:
        """An ordinary model with all weights on rank 0, and None or the same elsewhere. A collective call."""
        return self.inner.model

    def collect(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """This process's named tensors and the others', whole; None but on rank 0. A collective call."""
        return dict(tensors) if self.rank == 0 else None

    def owns(self, name: str) -> bool:
        """Whether this process trains the parameter of that name."""
        return True

    def place(self, value: Tensor, like: Tensor) -> Tensor:
        """A whole tensor (optimizer state, say) as this process holds it, where `like` is the parameter's."""
        return value
