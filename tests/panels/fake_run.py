"""A run that only seems to train: it keeps to what the panels ask of a run, and writes its events at a chosen pace."""

from __future__ import annotations

import math
import random
import threading
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


@dataclass
class FakeCheckpoint:
    step: int


@dataclass
class FakeConfig:
    parallel: str = "ddp"


class FakeReader:
    def __init__(self, run: FakeRun) -> None:
        self._run, self._offset = run, 0

    def poll(self) -> list[dict[str, Any]]:
        events = self._run.events[self._offset :]
        self._offset += len(events)
        return events


@dataclass
class FakeRun:
    """Trains `total_steps` steps, `pace` a second on a thread once `begin()` is called; `steps_now` writes at once."""

    name: str = "pydocs-nano"
    total_steps: int = 600
    pace: float = 100.0
    start_event: bool = True
    status: str = "starting"
    error: str | None = None
    lr_factor: float = 1.0
    config: FakeConfig = field(default_factory=FakeConfig)

    def __post_init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.commands: list[Any] = []
        self.checkpoints: list[FakeCheckpoint] = []
        self.step = 0
        self.fail_next: Exception | None = None
        self._random = random.Random(7)
        self._thread: threading.Thread | None = None
        if self.start_event:
            self.restart(0, 0)

    def restart(self, generation: int, step: int) -> None:
        self.step = step
        self.events.append(
            {
                "kind": "start",
                "generation": generation,
                "step": step,
                "world_size": 2,
                "wrapper": "DistributedDataParallel",
                "precision": "bf16",
                "device": "cpu",
                "total_steps": self.total_steps,
            }
        )

    def begin(self) -> FakeRun:
        self.status = "running"
        self._thread = threading.Thread(target=self._train, daemon=True)
        self._thread.start()
        return self

    def steps_now(self, n: int) -> FakeRun:
        for _ in range(n):
            self._step()
        return self

    def finish(self, status: str = "done", error: str | None = None) -> FakeRun:
        self.error, self.status = error, status
        return self

    def reader(self) -> FakeReader:
        return FakeReader(self)

    def usage(self) -> list[Any]:
        if self.status not in ("running", "paused"):
            return []
        return [
            SimpleNamespace(rank=rank, memory_bytes=1.1e9, cores=1.0, gpu_bytes=None, gpu_share=None) for rank in (0, 1)
        ]

    def pause(self, wait: bool = True) -> None:
        self._obey("pause")
        self.status = "paused"

    def resume(self, wait: bool = True) -> None:
        self._obey("resume")
        self.status = "running"
        if self._thread is not None and not self._thread.is_alive() and self.step < self.total_steps:
            self.begin()

    def checkpoint(self, wait: bool = True) -> None:
        self._obey("checkpoint")
        self._save()

    def stop(self, wait: bool = True) -> None:
        self._obey("stop")
        self._save()
        self.status = "stopped"

    def set_lr_factor(self, factor: float) -> None:
        self._obey(("lr_factor", factor))
        self.lr_factor = factor

    def _obey(self, command: Any) -> None:
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            raise error
        self.commands.append(command)

    def _save(self) -> None:
        self.checkpoints.append(FakeCheckpoint(self.step))
        self.events.append({"kind": "checkpoint", "step": self.step, "path": f"step-{self.step:08d}"})

    def _train(self) -> None:
        while self.step < self.total_steps and self.status in ("running", "paused"):
            if self.status == "running":
                self._step()
            time.sleep(1 / self.pace)
        if self.status == "running":
            self.status = "done"

    def _step(self) -> None:
        self.step = step = self.step + 1
        truth = 4.45 + 3.3 * math.exp(-step / 90)
        warm = min(1.0, step / (0.06 * self.total_steps))
        self.events.append(
            {
                "kind": "step",
                "step": step,
                "loss": truth + (self._random.random() - 0.5) * 0.45,
                "lr": 2.1e-3 * warm * (0.55 + 0.45 * math.cos(math.pi * step / self.total_steps)) * self.lr_factor,
                "grad_norm": 4.0 if step == 245 else 0.6 + 0.25 * self._random.random(),
                "tokens": step * 2048,
                "tokens_per_s": 3180.0,
                "seconds": step * 0.14,
                "memory_bytes": 1.1e9,
            }
        )
        if step % 50 == 0:
            self.events.append({"kind": "eval", "step": step, "eval_loss": truth + 0.1, "bits_per_byte": truth / 2.25})
            text = "Return the queue. This function is used to the current value of the file and <b>it</b> is"
            self.events.append({"kind": "sample", "step": step, "text": text})
        if step % 200 == 0:
            self._save()
