"""What a run's supervisor last said of it: `state.json` in the run's folder, replaced as a whole.

It may be older than the truth: a killed supervisor says nothing more, so whether a run lives is asked of its locks.
Knows nothing of how workers are started or watched.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

import psutil

from nbllm.errors import StoreError
from nbllm.files import read_json, write_json
from nbllm.train.control import settle

STATE = "state.json"
Phase = Literal["starting", "running", "paused", "stopping", "done", "stopped", "failed", "died"]
FINISHED: tuple[Phase, ...] = ("done", "stopped", "failed", "died")
_SAME_TIME_S = 0.01


@dataclass(frozen=True, kw_only=True)
class ProcessId:
    """A process, told from a later one with the same number by its creation time."""

    pid: int
    """Its number."""
    created: float
    """When it was created, in Unix seconds as psutil tells it."""

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """The process of that number; None where there is none, or only a zombie."""
        try:
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return None
            return cls(pid=pid, created=process.create_time())
        except psutil.Error:
            return None

    def process(self) -> psutil.Process | None:
        """The living process, or None where it ended, is a zombie, or its number belongs to another by now."""
        now = ProcessId.of(self.pid)
        if now is None or abs(now.created - self.created) > _SAME_TIME_S:
            return None
        try:
            return psutil.Process(self.pid)
        except psutil.Error:
            return None


@dataclass(frozen=True, kw_only=True)
class RunState:
    """The supervisor's word on a run."""

    phase: Phase
    """Where the run is."""
    generation: int = 0
    """How often it was started again."""
    supervisor: ProcessId | None = None
    """The process that watches."""
    launcher: ProcessId | None = None
    """The process that starts the workers; None before and after."""
    workers: tuple[ProcessId, ...] = ()
    """Everything that the launcher started and that lived at the last look."""
    heartbeat: float = 0.0
    """Unix time of the last look."""
    exit_code: int | None = None
    """What the launcher returned; negative: the signal that ended it."""
    error: str | None = None
    """Why it failed, in one line."""
    directory: str | None = None
    """The working directory that relative paths of the config start from."""

    @property
    def finished(self) -> bool:
        """Whether the supervisor saw the run end."""
        return self.phase in FINISHED


def write_state(folder: Path, state: RunState) -> None:
    """Replaces the state of the run in `folder`."""
    write_json(folder / STATE, asdict(state))


def read_state(folder: Path) -> RunState:
    """The state of the run in `folder`; raises StoreError where it is damaged or of another version."""
    value = read_json(folder / STATE)
    try:
        if value["phase"] not in get_args(Phase):
            raise ValueError(f"phase {value['phase']!r}")
        for name in ("supervisor", "launcher"):
            value[name] = ProcessId(**value[name]) if value.get(name) else None
        value["workers"] = tuple(ProcessId(**item) for item in value.get("workers", ()))
        return RunState(**value)
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{folder / STATE} isn't the state of a run: {error}") from error


def begin(folder: Path, *, resume: bool) -> RunState:
    """What the holder of the supervisor's lock does before a start: old commands are settled, a generation begins."""
    directory, generation = str(Path.cwd()), 0
    if resume:
        before = read_state(folder)
        directory, generation = before.directory or directory, before.generation + 1
    settle(folder)
    state = RunState(phase="starting", generation=generation, heartbeat=time.time(), directory=directory)
    write_state(folder, state)
    return state
