"""From wishes to numbers: what a run does, once model, device and data are known. Written as `plan.json`, so that a
resumed run goes on with the same numbers. Knows the config; measures nothing and starts nothing.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from nbllm.train.config import TrainConfig

AUTO_SECONDS = 110.0
"""Training time that a run may take where no length was given; one pass if that is shorter."""
EVALUATION_TOKENS = 131_072
"""Held-out tokens that an evaluation reads at most."""
_EVALUATIONS = 8
_CHECKPOINTS = 4


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The numbers of a run."""

    total_steps: int
    """Optimizer steps."""
    epochs: float | None
    """Passes after which the data ends; None: it goes on."""
    lr: float
    """Peak learning rate."""
    warmup: int
    """Steps of warm-up."""
    optimizer: str
    """`muon` or `adamw`."""
    eval_every: int
    """Steps between evaluations; 0: only at the end."""
    save_every: int
    """Steps between checkpoints; 0: only at the end."""
    eval_rows: int
    """Held-out rows an evaluation reads at most."""
    global_batch: int
    """Rows an optimizer step."""
    world_size: int
    """Processes at the start of the run."""

    def as_json(self) -> dict[str, Any]:
        """The plan as JSON values."""
        return asdict(self)


def steps_wanted(config: TrainConfig, *, steps_per_epoch: int, rows: int) -> int | None:
    """Steps that the config asks for; None where it leaves the length open.

    Args:
        config: the run's.
        steps_per_epoch: optimizer steps of one pass.
        rows: rows of one pass.
    """
    if config.steps is not None:
        return config.steps
    if config.tokens is not None:
        tokens_a_step = config.seq_len * rows / steps_per_epoch
        return max(1, math.ceil(config.tokens / tokens_a_step))
    return None


def fit_steps(*, steps_per_epoch: int, seconds_a_step: float, budget_s: float = AUTO_SECONDS) -> int:
    """One pass, or as many steps as fit into the budget; at least 1."""
    return max(1, min(steps_per_epoch, int(budget_s / max(seconds_a_step, 1e-6))))


def make_plan(
    config: TrainConfig,
    *,
    total_steps: int,
    epochs: float | None,
    optimizer: str,
    lr: float,
    world_size: int,
) -> Plan:
    """The plan once the length, the optimizer and the learning rate are settled."""
    eval_every = max(1, math.ceil(total_steps / _EVALUATIONS)) if config.eval_every is None else config.eval_every
    # a checkpoint right after an evaluation carries its result
    save_every = max(1, math.ceil(total_steps / _CHECKPOINTS))
    if eval_every:
        save_every = eval_every * max(1, round(save_every / eval_every))
    return Plan(
        total_steps=total_steps,
        epochs=epochs,
        lr=lr,
        warmup=min(500, max(10, total_steps // 20)) if config.warmup is None else config.warmup,
        optimizer=optimizer,
        eval_every=eval_every,
        save_every=save_every if config.save_every is None else config.save_every,
        eval_rows=max(1, EVALUATION_TOKENS // config.seq_len),
        global_batch=config.batch_size * config.grad_accum * world_size,
        world_size=world_size,
    )
