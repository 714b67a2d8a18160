"""How much memory a device has, how much of it is free, also in a container; the most that this process held."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import psutil
import torch

_GROUP = Path("/sys/fs/cgroup")


def memory_of(device: torch.device) -> tuple[int, int]:
    """Bytes that are free and bytes in all: of the GPU with what torch holds unused, else of the machine or of the
    container around this process."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + unused), int(total)
    machine = psutil.virtual_memory()
    free, total = int(machine.available), int(machine.total)
    try:
        limit = int((_GROUP / "memory.max").read_text())
        used = int((_GROUP / "memory.current").read_text())
        file = next(
            (int(line.split()[1]) for line in (_GROUP / "memory.stat").read_text().splitlines() if line[:5] == "file "),
            0,
        )  # pages of files, which are given back when they are needed
    except (OSError, ValueError, IndexError):  # no container, no limit, or another system
        return free, total
    return max(0, min(free, limit - used + file)), min(total, limit)


def peak_memory_bytes(device: torch.device) -> int:
    """The most that this process has held since its start, on a GPU or else of the machine."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
