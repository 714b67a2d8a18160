"""One run over several machines: every machine starts its own part, and the first one's run folder is everybody's.

The machines share the store (a network file system, named by NBLLM_HOME): checkpoints are written and read in the first
machine's run folder, and so are its orders. A run that was started on another machine only says that it takes part,
and its folder holds its log. Knows processes that have joined already; `launch` says how they meet.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from nbllm.errors import RunError, UsageError
from nbllm.train.config import TrainConfig

_OWN = ("rank", "store_root", "max_restarts", "log_with", "adapter_name", "held_out")


@dataclass(frozen=True, kw_only=True)
class Home:
    """Where a run over several machines lives."""

    folder: Path
    """The first machine's run folder."""
    resume: bool
    """Whether it goes on from its newest checkpoint."""


def join(folder: Path, config: TrainConfig, *, resume: bool, data: str) -> Home:
    """What the first machine says, on every process. A collective call where there are several machines.

    Args:
        folder: this machine's run folder.
        config: what this machine was asked to do.
        resume: what its launcher was told.
        data: content hash of its shards.

    Raises:
        UsageError: this machine was asked for something else than the first one.
        RunError: this machine doesn't see the first one's folder.
    """
    if config.machines == 1:
        return Home(folder=folder, resume=resume)
    wishes = {name: value for name, value in config.as_json().items() if name not in _OWN} | {"data": data}
    said: list[Any] = [{"folder": str(folder.absolute()), "resume": resume, "wishes": wishes}]
    dist.broadcast_object_list(said, src=0)
    first = said[0]
    for name, value in first["wishes"].items():
        if wishes.get(name) != value:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"Machine {config.rank} was asked for another {option} than the first one ({value})",
                received=wishes.get(name),
                next="Start every machine with the same options but --rank",
            )
    home = Path(first["folder"])
    if not (home / "config.json").is_file():
        raise RunError(
            f"Machine {config.rank} doesn't see the first one's run folder {home}",
            next="Put the store where all machines see it under the same path: NBLLM_HOME=/shared/.nbllm",
        )
    return Home(folder=home, resume=bool(first["resume"]))
