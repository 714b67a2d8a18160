"""What has been asked of a running training, agreed on by all its processes: rank 0 looks, everybody acts alike.

Rank 0 reads the control file between steps (only when it changed), checks that the supervisor lives and whether it was
told to terminate, and broadcasts. Knows nothing of training itself.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist

from nbllm.train import locks
from nbllm.train.control import CONTROL, acknowledge, acknowledged, read_control

_SUPERVISOR_CHECK_S = 1.0
PAUSE_POLL_S = 0.2
"""Seconds between looks while paused; each look is a broadcast, so that no process waits into a timeout."""


@dataclass(frozen=True, kw_only=True)
class Orders:
    """What to do before the next step."""

    stop: bool = False
    """Write a checkpoint and leave."""
    checkpoint: bool = False
    """Write a checkpoint and go on."""
    paused: bool = False
    """Wait and ask again."""
    lr_factor: float = 1.0
    """What the scheduled learning rate is multiplied by."""
    orphaned: bool = False
    """The reason to stop is that the supervisor is gone."""
    terminated: bool = False
    """The reason to stop is a TERM signal, to this process or another of the run."""

    @property
    def reason(self) -> str:
        """Why the run stops, in words."""
        if self.orphaned:
            return "the supervisor is gone"
        return "the process was told to terminate" if self.terminated else "asked to stop"


class OrderDesk:
    """One a process; `next` is a collective call, `done` is for rank 0.

    Args:
        folder: the run's folder.
        rank: of this process.
        world_size: processes.
        device: where a broadcast tensor must live.
    """

    def __init__(self, folder: Path, *, rank: int, world_size: int, device: torch.device) -> None:
        self.folder = folder
        self.rank = rank
        self.world_size = world_size
        self.device = device
        self.supervised = locks.is_held(folder / locks.SUPERVISOR_LOCK)
        self._orders = Orders()
        self._seen = acknowledged(folder) if rank == 0 else 0
        self._stamp: tuple[int, int] | None = None
        self._checked = 0.0
        self._terminate = False
        self._before = signal.signal(signal.SIGTERM, self._on_terminate)

    def _on_terminate(self, number: int, frame: FrameType | None) -> None:
        self._terminate = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one doesn't wait for the step

    def next(self) -> Orders:
        """The orders for all processes; to be called by each of them at the same step."""
        if self.rank == 0:
            self._look()
        if self.world_size > 1:
            now = self._orders
            # any process may have been told to terminate
            told = torch.tensor([float(self._terminate)], device=self.device)
            dist.all_reduce(told, op=dist.ReduceOp.MAX)
            flags = torch.tensor(
                [now.stop, now.checkpoint, now.paused, now.lr_factor, now.orphaned], dtype=torch.float64
            ).to(self.device, torch.float32 if self.device.type == "mps" else torch.float64)
            dist.broadcast(flags, src=0)
            stop, checkpoint, paused, factor, orphaned = flags.tolist()
            return Orders(
                stop=bool(stop) or bool(told.item()),
                terminated=bool(told.item()),
                checkpoint=bool(checkpoint),
                paused=bool(paused),
                lr_factor=factor,
                orphaned=bool(orphaned),
            )
        return replace(self._orders, stop=self._orders.stop or self._terminate, terminated=self._terminate)

    def done(self) -> None:
        """Acknowledges everything seen so far; the checkpoint that was asked for has been written."""
        self._orders = replace(self._orders, checkpoint=False)
        if self.rank == 0 and self._seen > acknowledged(self.folder):
            acknowledge(self.folder, self._seen)

    def close(self) -> None:
        """Gives the signal back to whoever had it."""
        signal.signal(signal.SIGTERM, self._before)

    def _look(self) -> None:
        if self.supervised and time.monotonic() - self._checked > _SUPERVISOR_CHECK_S:
            self._checked = time.monotonic()
            if not locks.is_held(self.folder / locks.SUPERVISOR_LOCK):
                self._orders = replace(self._orders, stop=True, orphaned=True)
        try:
            status = os.stat(self.folder / CONTROL)
        except FileNotFoundError:
            return
        stamp = (status.st_mtime_ns, status.st_ino)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        control = read_control(self.folder)
        orders = replace(self._orders, lr_factor=control.lr_factor)
        for _, command in control.after(self._seen):
            if command == "stop":
                orders = replace(orders, stop=True)
            elif command == "checkpoint":
                orders = replace(orders, checkpoint=True)
            else:
                orders = replace(orders, paused=command == "pause")
        self._orders = orders
        self._seen = max(self._seen, control.sequence)
