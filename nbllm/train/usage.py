"""What a live run's workers hold and how busy they are, by rank, seen from outside: they needn't do anything for it.

Memory and processor time come from psutil; memory and use of a GPU from nvidia-ml-py where that is installed (extra
`gpu`) and the worker computes on one of this machine's. Imports no torch.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from nbllm.train.phase import ProcessId


@dataclass(frozen=True, kw_only=True)
class RankUse:
    """One worker."""

    rank: int
    """Of all machines; only those of this machine are seen."""
    memory_bytes: int
    """Of the machine."""
    cores: float | None
    """Cores kept busy since the last look; None at the first."""
    gpu_bytes: int | None = None
    """Of its GPU, by this process; None without one."""
    gpu_share: float | None = None
    """Share of time in which its GPU, whoever uses it, does something, 0 to 1."""


class UsageMeter:
    """Looks at the workers of a run; keeps what it needs to tell how busy they were since its last look."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[float, float]] = {}
        self._ranks: dict[int, int] = {}

    def look(self, workers: Sequence[ProcessId | None]) -> list[RankUse]:
        """The workers that live, by rank."""
        found = []
        gpus = _gpu_use()
        for number, worker in enumerate(workers):
            process = worker.process() if worker is not None else None
            if process is None:
                continue
            with contextlib.suppress(psutil.Error):
                now, spent = time.monotonic(), sum(process.cpu_times()[:2])
                before = self._before.get(process.pid)
                self._before[process.pid] = now, spent
                memory, share = gpus.get(process.pid, (None, None))
                found.append(
                    RankUse(
                        rank=self._rank(process, number),
                        memory_bytes=int(process.memory_info().rss),
                        cores=(spent - before[1]) / (now - before[0]) if before and now > before[0] else None,
                        gpu_bytes=memory,
                        gpu_share=share,
                    )
                )
        return sorted(found, key=lambda use: use.rank)

    def _rank(self, process: psutil.Process, number: int) -> int:
        """As the launcher told the worker; else its place in the list."""
        if process.pid not in self._ranks:
            rank = number
            with contextlib.suppress(psutil.Error, KeyError, ValueError):
                rank = int(process.environ()["RANK"])
            self._ranks[process.pid] = rank
        return self._ranks[process.pid]


def _gpu_use() -> dict[int, tuple[int | None, float | None]]:
    """By process: bytes of GPU memory, and how much of the time the GPU is busy. Not yet measured on a GPU."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return {}
    found: dict[int, tuple[int | None, float | None]] = {}
    try:
        nvml.nvmlInit()
        for index in range(nvml.nvmlDeviceGetCount()):
            device = nvml.nvmlDeviceGetHandleByIndex(index)
            share = nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100
            for process in nvml.nvmlDeviceGetComputeRunningProcesses(device):
                found[process.pid] = process.usedGpuMemory, share
    except nvml.NVMLError:  # no driver, or one that doesn't say
        return {}
    return found
