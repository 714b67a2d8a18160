"""What a run would take, before it starts: memory a device by kind, steps, tokens, time, and how it would be launched.

Worked out in a process of its own (`nbllm.train.rehearsal`), so that neither torch nor a model gets into the one that
asks. Imports no torch.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from nbllm import errors
from nbllm.errors import NbllmError, RunError
from nbllm.train import launch
from nbllm.train.config import TrainConfig
from nbllm.train.launch import Launch

KINDS = ("weights", "gradients", "optimizer", "activations", "logits", "rest")
"""Of memory, in the order in which a step needs them."""
_TIMEOUT_S = 300


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on the fullest device."""

    base: int
    """The process before it has a model; 0 on a GPU, whose context isn't counted."""
    weights: int
    """In fp32."""
    gradients: int
    """With the buckets in which they are exchanged."""
    optimizer: int
    """Its state."""
    activations: int
    """Kept for the backward pass of a micro-step, weights in half precision included."""
    logits: int
    """The part of them that is there at once."""
    rest: int = 0
    """What the allocator holds besides: freed pieces that it keeps, and what matrix products work in."""
    gradients_first: bool = False
    """Whether gradients of earlier micro-steps are there while activations are."""

    @property
    def peak(self) -> int:
        """The most that is there at once: when the loss is made, or when all gradients are."""
        forward = self.activations + self.logits + self.rest + (self.gradients if self.gradients_first else 0)
        return self.base + self.weights + self.optimizer + max(forward, self.gradients + self.rest)


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What a run would take."""

    parameters: int
    """All of them."""
    optimizer: str
    """`adamw` or `muon`."""
    lr: float
    """Peak learning rate."""
    precision: str
    """`fp32`, `bf16` or `fp16`."""
    fused: bool
    """Whether the loss is made without logits."""
    total_steps: int
    """Optimizer steps."""
    tokens: int
    """Read over the run."""
    epochs: float
    """Passes over the training part."""
    seconds_a_step: float
    """On this machine, evaluations and checkpoints left out."""
    timed: bool
    """Whether a step was timed; else it is worked out from the speed of a matrix product."""
    memory: Memory
    """A device."""
    available_bytes: int
    """What a device has free for one process."""
    suggestion: str
    """The cheapest change that makes it fit; empty where it fits."""

    @property
    def fits(self) -> bool:
        """Whether the peak is below what is free."""
        return self.memory.peak <= self.available_bytes

    @property
    def seconds(self) -> float:
        """Of all steps."""
        return self.total_steps * self.seconds_a_step

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Forecast:
        """What `rehearsal` printed."""
        known = {item.name for item in fields(cls)}
        return cls(**{**{name: value[name] for name in known}, "memory": Memory(**value["memory"])})

    def as_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def forecast(config: TrainConfig, folder: Path) -> tuple[Forecast, Launch]:
    """Works out what the run would take; takes seconds, and starts nothing that stays.

    Args:
        config: with its shards.
        folder: where the run's folder would be.

    Returns:
        The forecast and how the run would be launched.

    Raises:
        NbllmError: what the worker would say of this config.
        RunError: it can't be worked out.
    """
    plan = launch.plan(
        folder,
        processes=config.processes,
        machines=config.machines,
        rank=config.rank,
        main=config.main,
    )
    given = {"config": config.as_json(), "processes": plan.processes * config.machines, "local": plan.processes}
    command = [sys.executable, "-m", "nbllm.train.rehearsal"]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(given),
            env=plan.environment,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RunError(f"The dry run took more than {_TIMEOUT_S} s") from error
    except OSError as error:
        raise RunError(f"The dry run's process can't be started: {error}") from error
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines:
        return Forecast.from_json(json.loads(lines[-1])), plan
    said = (done.stderr.strip().splitlines() or ["no word"])[-1]
    kind, _, words = said.partition(": ")
    known = getattr(errors, kind, None)
    if isinstance(known, type) and issubclass(known, NbllmError):
        raise known(words)  # what the worker would say
    raise RunError(f"The dry run failed: {said}")
