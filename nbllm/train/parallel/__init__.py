"""How the processes of a run share the work: one file a plan, all with the methods of `Parallel`.

Importing this room loads no torch: `names` says which plans there are and which wishes can't be met, and `make`
loads the plan that is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbllm.train.parallel.names import PLANS, check_plan, check_processes

if TYPE_CHECKING:
    from accelerate import Accelerator

    from nbllm.train.config import TrainConfig
    from nbllm.train.parallel.replicated import Parallel

__all__ = ["PLANS", "check_plan", "check_processes", "make"]


def make(config: TrainConfig, accelerator: Accelerator) -> Parallel:
    """The plan of the config over the processes that have joined; raises UsageError where they don't fit it."""
    check_processes(config.parallel, accelerator.num_processes)
    if config.parallel == "fsdp":
        from nbllm.train.parallel.sharded import Sharded

        return Sharded(accelerator)
    if config.parallel == "tp":
        from nbllm.train.parallel.tensor import Tensors

        return Tensors(accelerator)
    if config.parallel == "fsdp,tp":
        from nbllm.train.parallel.grid import Grid

        return Grid(accelerator)
    if config.parallel in ("zero2", "zero3"):
        from nbllm.train.parallel.zero import Zero

        stage = int(config.parallel[-1])
        return Zero(accelerator, stage=stage, offload=config.offload, rows=config.batch_size, clip=config.clip)
    if config.parallel == "pp":
        from nbllm.train.parallel.pipeline import Pipeline

        return Pipeline(accelerator)
    from nbllm.train.parallel.replicated import Parallel

    return Parallel(accelerator)
