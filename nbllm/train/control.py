"""Commands to a running training, through two small files in its folder.

`control.json` holds the last command, its sequence number and the learning-rate factor; `commands` repeats, oldest
first, every command that wasn't acknowledged yet, so that two in quick succession both count. Rank 0 reads it between
steps and answers with `acknowledged.json`. Writers (notebook, panel, terminal) take turns by a lock; each file is
replaced as a whole. Knows nothing of processes.

    {"sequence": 6, "command": "checkpoint", "lr_factor": 0.5, "paused_before": true,
     "commands": [{"sequence": 4, "command": "resume"}, {"sequence": 5, "command": "checkpoint"}]}
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from nbllm.errors import RunError, UsageError
from nbllm.files import read_json, write_json
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
    commands: tuple[tuple[int, Command], ...] = ()
    """Sequence number and command of the requests that weren't acknowledged when the last one was written."""
    paused_before: bool = False
    """Whether the run was to be paused before the first of `commands`."""

    def after(self, sequence: int) -> tuple[tuple[int, Command], ...]:
        """The commands with a higher sequence number than that, oldest first."""
        return tuple((number, command) for number, command in self.commands if number > sequence)

    def paused_at(self, sequence: int) -> bool:
        """Whether a run that has followed the commands up to that sequence number is paused."""
        paused = self.paused_before
        for number, command in self.commands:
            if number <= sequence and command in ("pause", "resume"):
                paused = command == "pause"
        return paused


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
        commands=tuple((int(item["sequence"]), item["command"]) for item in value.get("commands", ())),
        paused_before=bool(value.get("paused_before", False)),
    )


def send(folder: Path, command: Command) -> int:
    """Asks for a command; returns the sequence number that its acknowledgement will carry at least."""
    with _turn(folder):
        control = _without_done(folder)
        sequence = control.sequence + 1
        commands = (*control.commands, (sequence, command))
        _replace(folder, replace(control, sequence=sequence, command=command, commands=commands))
        return sequence


def send_lr_factor(folder: Path, factor: float) -> int:
    """Asks for another learning-rate factor, and nothing else; returns the sequence number.

    Raises:
        UsageError: the factor isn't a number from 0 to 10.
    """
    if not 0 <= factor <= _LARGEST_FACTOR:
        raise UsageError(f"A learning-rate factor is from 0 to {_LARGEST_FACTOR:g}", received=factor)
    with _turn(folder):
        control = _without_done(folder)
        _replace(folder, replace(control, sequence=control.sequence + 1, lr_factor=float(factor)))
        return control.sequence + 1


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


def _without_done(folder: Path) -> Control:
    """What was asked, without the commands that have been acknowledged."""
    control, done = read_control(folder), acknowledged(folder)
    return replace(control, commands=control.after(done), paused_before=control.paused_at(done))


def _replace(folder: Path, control: Control) -> None:
    commands = [{"sequence": number, "command": command} for number, command in control.commands]
    write_json(folder / CONTROL, {**asdict(control), "commands": commands})


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    lock = locks.take(folder / _LOCK, wait_s=_WAIT_S)
    if lock is None:
        raise RunError(f"Another process has been writing {folder / CONTROL} for {_WAIT_S:.0f} s", next="Try again")
    try:
        yield
    finally:
        lock.release()
