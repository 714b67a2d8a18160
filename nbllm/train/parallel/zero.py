"""The plans `zero2` and `zero3`: optimizer state and gradients (with 3 the weights too) cut over the processes.

DeepSpeed does it. The optimizer is the run's own AdamW, given this process's piece of everything; weights and state
stay in fp32, and the run's number format is the autocast of its forward pass, as under every plan. State is read and
set whole, by the parameters' names, so that a checkpoint doesn't know the plan. With `offload`, optimizer state (with
3 the weights too) lies in the host's memory. Not yet measured on a GPU.
Sources: ZeRO (Rajbhandari et al. 2020, https://arxiv.org/abs/1910.02054); https://deepspeed.readthedocs.io/
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nbllm.errors import RunError, UsageError
from nbllm.train.parallel.names import check_offload
from nbllm.train.parallel.replicated import Batch, Parallel
from nbllm.train.parallel.whole import empty_copy, fill

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel

    from nbllm.train.loss_model import LossModel
    from nbllm.train.optimizer import Optimizers

_MEMBER = "adamw"
_STATE = ("exp_avg", "exp_avg_sq")


class Zero(Parallel):
    """The plans `zero2` and `zero3`.

    Args:
        accelerator: joins the processes.
        stage: 2 or 3.
        offload: keep optimizer state (and with 3 the weights) in the host's memory.
        rows: of a micro-batch.
        clip: the gradient's largest norm; None: not clipped.

    Raises:
        UsageError: DeepSpeed isn't installed, or there is no GPU to offload from.
    """

    def __init__(self, accelerator: Accelerator, *, stage: int, offload: bool, rows: int, clip: float | None) -> None:
        super().__init__(accelerator)
        self.name = f"zero{stage}"
        self.stage = stage
        if offload:
            check_offload(self.device.type)
        self._deepspeed = _load(self.device.type)
        self._offload, self._rows, self._clip = offload, rows, clip
        self._empty: PreTrainedModel | None = None
        self._engine: Any = None
        self._trained: dict[str, nn.Parameter] = {}
        self._flat: list[Tensor] = []  # this process's pieces, which the optimizer steps

    def prepare(self, inner: LossModel) -> nn.Module:
        """Takes the model as it is; `adopt` cuts it, since DeepSpeed cuts model and optimizer together."""
        self.inner = self.wrapped = inner
        self._total = sum(weight.numel() for weight in inner.parameters() if weight.requires_grad)
        if self.rank == 0:
            self._empty = empty_copy(inner.model)
        # the run's number format around forward, without a wrapper
        self.accelerator.prepare_model(inner, device_placement=False, evaluation_mode=True)
        return inner

    def adopt(self, optimizers: Optimizers) -> None:
        """Cuts model and optimizer. A collective call."""
        member = optimizers.members[_MEMBER]
        self._trained = {optimizers.names[id(weight)]: weight for weight in optimizers.parameters}
        with _quiet():
            engine, *_ = self._deepspeed.initialize(
                model=self.inner, optimizer=member, config=self._config(), dist_init_required=False
            )
        self._engine = self.wrapped = engine
        cut = engine.optimizer
        self._flat = list(cut.fp32_partitioned_groups_flat if self.stage == 3 else cut.single_partition_of_fp32_groups)
        head = self.inner.model.get_output_embeddings()
        if self.stage == 3 and head is not None:  # the loss takes it outside the head's own forward pass
            for weight in head.parameters(recurse=False):
                self._deepspeed.zero.register_external_parameter(self.inner, weight)
        self.forget(optimizers)

    def _config(self) -> dict[str, Any]:
        host = {"device": "cpu", "pin_memory": True}
        return {
            "train_micro_batch_size_per_gpu": self._rows,
            "gradient_accumulation_steps": 1,  # where a step ends is said at every micro-batch
            "gradient_clipping": self._clip or 0.0,
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "steps_per_print": 10**9,
            "zero_optimization": {
                "stage": self.stage,
                **({"offload_optimizer": host} if self._offload else {}),
                **({"offload_param": host} if self._offload and self.stage == 3 else {}),
            },
        }

    @property
    def evaluated(self) -> nn.Module:
        """The engine, which gathers what it needs."""
        return self.wrapped

    def report(self) -> dict[str, Any]:
        """What each process holds; raises RunError unless it is a piece."""
        engine = self._engine
        held = sum(weight.numel() for weight in self._flat)
        found = [torch.zeros(1, dtype=torch.int64, device=self.device) for _ in range(self.world_size)]
        dist.all_gather(found, torch.tensor([held], device=self.device))
        sizes = [int(size) for size in found]
        wrapper = type(engine).__name__
        if engine.zero_optimization_stage() != self.stage or not engine.zero_optimization_partition_gradients():
            raise RunError(f"{self.name} was asked for, but DeepSpeed's stage {engine.zero_optimization_stage()} runs")
        # pieces are filled up to one size
        if sum(sizes) < self._total or max(sizes) > self._total // self.world_size + 4096 or max(sizes) >= self._total:
            raise RunError(f"{self.name} was asked for, but the processes hold {sizes} of {self._total:,} parameters")
        active: dict[str, Any] = {"wrapper": wrapper, "optimizer_by_rank": sizes, "offloaded": self._offload}
        if self.stage == 3:
            whole = [name for name, weight in self._trained.items() if not hasattr(weight, "ds_tensor")]
            mine = torch.tensor([sum(weight.ds_tensor.numel() for weight in self._trained.values())])  # type: ignore[attr-defined]
            dist.all_gather(found, mine.to(self.device))
            active["parameters_by_rank"] = [int(size) for size in found]
            if whole or max(active["parameters_by_rank"]) >= self._total:
                raise RunError(f"zero3 was asked for, but {len(whole)} weights aren't cut")
        return active

    def gradients(self, batches: Sequence[Batch], share: Tensor, backward: Callable[[Tensor], None]) -> Tensor:
        """As for every plan; DeepSpeed takes the backward pass."""

        def take(loss: Tensor) -> None:
            self._engine.backward(loss, scale_wrt_gas=False)

        return super().gradients(batches, share, take)

    def accumulating(self, more: bool) -> AbstractContextManager[None]:
        """Says whether the step ends with this micro-batch."""
        self._engine.set_gradient_accumulation_boundary(not more)
        return contextlib.nullcontext()

    def zero_grad(self, optimizers: Optimizers) -> None:
        """DeepSpeed drops them with its step."""

    def step(self, optimizers: Optimizers, limit: float | None) -> float:
        """One step of DeepSpeed, which clips; it takes none where the gradient isn't finite."""
        self._engine.step()
        norm = self._engine.get_global_grad_norm()
        return math.inf if norm is None or float(norm) < 0 else float(norm)

    def whole_model(self) -> PreTrainedModel | None:
        """On rank 0 a model with all weights; None elsewhere. A collective call."""
        weights = {}
        for name, weight in self.inner.model.named_parameters(remove_duplicate=False):
            whole = self._whole(weight)
            if self.rank == 0:
                weights[name] = whole
        if self._empty is None:
            return None
        return fill(self._empty, weights).train(self.inner.model.training)

    def _whole(self, weight: nn.Parameter) -> Tensor:
        if self.stage == 2:
            return weight.detach()
        with self._deepspeed.zero.GatheredParameters([weight]):
            return weight.detach().clone()

    def state_of(self, optimizers: Optimizers, member: str) -> dict[str, Tensor]:
        """Optimizer state, whole, on rank 0; nothing elsewhere. A collective call."""
        from deepspeed.utils import safe_get_full_optimizer_state

        found = {}
        step = self._member_state(optimizers, self._flat[0])["step"]
        for name, weight in self._trained.items():
            for field in _STATE:
                whole = safe_get_full_optimizer_state(weight, field)
                if self.rank == 0:
                    found[f"{name}|{field}"] = whole.detach().cpu().reshape(_shape(weight))
            found[f"{name}|step"] = step.detach().cpu().clone()
        return found if self.rank == 0 else {}

    def give_state(self, optimizers: Optimizers, member: str, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Takes over optimizer state by the parameters' names; of each tensor its piece."""
        from deepspeed.utils import safe_set_full_optimizer_state

        step = torch.zeros(())
        for name, fields in state.items():
            for field in _STATE:
                safe_set_full_optimizer_state(self._trained[name], fields[field].to(self.device), field)
            step = fields["step"]
        for flat in self._flat:
            self._member_state(optimizers, flat)["step"].copy_(step)

    def forget(self, optimizers: Optimizers) -> None:
        """Optimizer state as before the first step: there, and zero, so that it can be read and set at any time."""
        for flat in self._flat:
            state = self._member_state(optimizers, flat)
            state["step"] = torch.zeros((), dtype=torch.float32, device=flat.device)
            for field in _STATE:
                if field not in state:
                    state[field] = torch.zeros_like(flat)
                state[field].zero_()
        if self.stage == 2:
            self._engine.optimizer._lazy_init_hp_params_optimizer_state()

    @staticmethod
    def _member_state(optimizers: Optimizers, flat: Tensor) -> dict[str, Tensor]:
        return optimizers.members[_MEMBER].state[flat]


def _shape(weight: nn.Parameter) -> torch.Size:
    return getattr(weight, "ds_shape", weight.shape)


def _load(device_type: str) -> Any:
    """The package, ready over the process group that has been joined."""
    if importlib.util.find_spec("deepspeed") is None:
        raise UsageError("--parallel zero2 and zero3 need DeepSpeed", next='pip install "nbllm[deepspeed]"')
    if device_type == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    with _quiet():
        import deepspeed
        import deepspeed.comm
        import deepspeed.ops

        # gloo does it; this one would be compiled for half a minute at the first start
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        deepspeed.init_distributed(auto_mpi_discovery=False, verbose=False)
    return deepspeed


@contextlib.contextmanager
def _quiet() -> Any:
    """Without DeepSpeed's information in the run's log."""
    logger = logging.getLogger("DeepSpeed")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(max(before, logging.WARNING))
