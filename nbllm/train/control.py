"""Commands to a running training, through two small files in its folder.

`control.json` holds the last command, its sequence number and the learning-rate factor; `commands` repeats, oldest
first, every command that wasn't acknowledged yet, so that two in quick succession both count. Rank 0 reads it between
steps and answers with `acknowledged.json`. Writers (notebook, panel, terminal) take turns by a lock; each file is
replaced as a whole. Knows nothing of processes.

    {"sequence": 5, "command": "checkpoint", "lr_factor": 0.5, "paused": false,
     "commands": [{"sequence": 4, "command": "resume"}, {"sequence": 5, "command": "checkpoint"}]}
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nbllm.errors import RunError, UsageError
from nbllm.store import read_json, write_json
from nbllm.train import locks

Command = Literal["pause", "resume", "stop", "checkpoint"]
CONTROL = "control.json"
ACKNOWLEDGED = "acknowledged.json"
_LOCK = "control.lock"
_WAIT_S = 10.0
_LARGEST_FACTOR = 10.0


@dataclass(frozen=True, kw_only=True)
class Control:
    """What has been asked of a run so far."""

    sequence: int = 0
    """Number of the last request, counted from 1; 0: nothing was asked."""
    command: Command | None = None
    """The last command; None before the first one."""
    lr_factor: float = 1.0
    """What the scheduled learning rate is multiplied by."""
    paused: bool = False
    """Whether the last of all pauses and resumes was a pause."""
    commands: tuple[tuple[int, Command], ...] = ()
    """Sequence number and command of the requests that weren't acknowledged when the last one was written."""

    def after(self, sequence: int) -> tuple[tuple[int, Command], ...]:
        """The commands with a higher sequence number than that, oldest first."""
        return tuple((number, command) for number, command in self.commands if number > sequence)


def read_control(folder: Path) -> Control:
    """What was asked of the run in `folder`; nothing where the file isn't there yet."""
    try:
        value = read_json(folder / CONTROL)
    except FileNotFoundError:
        return Control()
    return Control(
        sequence=int(value["sequence"]),
        command=value.get("command"),
        lr_factor=float(value.get("lr_factor", 1.0)),
        paused=bool(value.get("paused", False)),
        commands=tuple((int(item["sequence"]), item["command"]) for item in value.get("commands", ())),
    )


def send(folder: Path, command: Command) -> int:
    """Asks for a command; returns the sequence number that its acknowledgement will carry at least."""
    with _turn(folder):
        control = read_control(folder)
        paused = command == "pause" or (control.paused and command == "checkpoint")
        return _write(folder, control, command=command, paused=paused, lr_factor=control.lr_factor)


def send_lr_factor(folder: Path, factor: float) -> int:
    """Asks for another learning-rate factor, and nothing else; returns the sequence number.

    Raises:
        UsageError: the factor isn't a number from 0 to 10.
    """
    if not 0 <= factor <= _LARGEST_FACTOR or math.isnan(factor):
        raise UsageError(f"A learning-rate factor is from 0 to {_LARGEST_FACTOR:g}", received=factor)
    with _turn(folder):
        control = read_control(folder)
        # A request always carries a command; repeating the state that the run is in changes only the factor.
        command: Command = "pause" if control.paused else "resume"
        if control.command == "stop":
            command = "stop"
        return _write(folder, control, command=command, paused=control.paused, lr_factor=float(factor))


def settle(folder: Path) -> None:
    """Before a run starts again: what was asked of the one before counts as done, the learning-rate factor stays."""
    if not (folder / CONTROL).exists():
        return
    with _turn(folder):
        control = read_control(folder)
        sequence = control.sequence + 1
        acknowledge(folder, sequence)
        _replace(folder, Control(sequence=sequence, command="resume", lr_factor=control.lr_factor))


def acknowledged(folder: Path) -> int:
    """Sequence number of the last request that the run has acted on; 0 before the first."""
    try:
        return int(read_json(folder / ACKNOWLEDGED)["sequence"])
    except FileNotFoundError:
        return 0


def acknowledge(folder: Path, sequence: int) -> None:
    """Says that everything up to that sequence number has been acted on."""
    write_json(folder / ACKNOWLEDGED, {"sequence": sequence})


def _write(folder: Path, control: Control, *, command: Command, paused: bool, lr_factor: float) -> int:
    sequence = control.sequence + 1
    waiting = (*control.after(acknowledged(folder)), (sequence, command))
    _replace(
        folder,
        Control(sequence=sequence, command=command, lr_factor=lr_factor, paused=paused, commands=waiting),
    )
    return sequence


def _replace(folder: Path, control: Control) -> None:
    value: dict[str, Any] = {
        "sequence": control.sequence,
        "command": control.command,
        "lr_factor": control.lr_factor,
        "paused": control.paused,
        "commands": [{"sequence": number, "command": command} for number, command in control.commands],
    }
    write_json(folder / CONTROL, value)


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    lock = locks.take(folder / _LOCK, wait_s=_WAIT_S)
    if lock is None:
        raise RunError(f"Another process has been writing {folder / CONTROL} for {_WAIT_S:.0f} s", next="Try again")
    try:
        yield
    finally:
        lock.release()
