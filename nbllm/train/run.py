"""The handle on a training: watch it, steer it, go on with it. The training itself lives in other processes.

Everything a handle knows it reads from the run's folder, so that any process with the store has the same view, and none
of them matters to the run. Whether a run lives is asked of its locks, never of a pid. Imports no torch; knows nothing
of notebooks.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from nbllm.errors import RunError
from nbllm.files import read_json, write_json
from nbllm.store import Store
from nbllm.train import control, locks, log
from nbllm.train.checkpoint import Checkpoint, list_checkpoints
from nbllm.train.config import TrainConfig
from nbllm.train.detach import start_supervisor
from nbllm.train.metrics import METRICS, History, MetricsReader
from nbllm.train.phase import ProcessId, RunState, begin, read_state
from nbllm.train.usage import RankUse, UsageMeter

if TYPE_CHECKING:
    import pyarrow as pa

    from nbllm.doctor import Diagnosis

Status = Literal["starting", "running", "paused", "done", "stopped", "failed", "died"]
LIVE: tuple[Status, ...] = ("starting", "running", "paused")
"""The states of a run that lives."""
CONFIG = "config.json"

_POLL_S = 0.2
_ACKNOWLEDGE_S = 60.0
_ORPHANS_S = 120.0
_ORPHANS_KILL_S = 10.0
_LAST_BREATH_S = 5.0


class Run:
    """One training run of a store, alive or over.

    Args:
        store: where it is.
        name: its name.

    Raises:
        NotFoundError: there is no run of that name.
    """

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.manifest = store.get("run", name)
        self.name = name
        self.folder = store.path("run", name)
        self._reader = MetricsReader(self.folder / METRICS)
        self._history = History()
        self._meter = UsageMeter()

    def __repr__(self) -> str:
        status = self.status
        parts = [f"{self.name}: {status}"]
        last, total = self._refresh().last("step"), self.total_steps
        if last is not None:
            parts.append(f"step {last['step']}" + (f" of {total}" if total else ""))
            if isinstance(last.get("loss"), float):
                parts.append(f"loss {last['loss']:.3f}")
        evaluated = self._history.last("eval")
        if evaluated is not None and isinstance(evaluated.get("eval_loss"), float):
            parts.append(f"held-out {evaluated['eval_loss']:.3f}")
        started = self._history.last("start")
        if started is not None and int(started.get("world_size") or 1) > 1:
            parts.append(f"{started['world_size']} processes by {started.get('parallel') or started.get('wrapper')}")
        return f"<Run {', '.join(parts)}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and self.folder == other.folder

    def __hash__(self) -> int:
        return hash(self.folder)

    @property
    def config(self) -> TrainConfig:
        """What it was asked to do, with the store where it lies now."""
        return TrainConfig.from_json(read_json(self.folder / CONFIG)).moved_to(self.store.root)

    @property
    def status(self) -> Status:
        """`starting`, `running`, `paused`, `done`, `stopped`, `failed`, or `died`: killed before it could say why."""
        state = self._state()
        if not state.finished and not self._lives():
            state = self._state()  # it may have ended between the two looks
            if not state.finished:
                return "died"
        if state.phase in ("done", "stopped", "failed", "died"):
            return state.phase
        # Asked of the files, since the supervisor may not have looked yet.
        if control.read_control(self.folder).paused_at(control.acknowledged(self.folder)):
            return "paused"
        return "starting" if state.phase == "starting" else "running"

    @property
    def alive(self) -> bool:
        """Whether a process of it lives, whatever it says of itself."""
        return self._lives()

    @property
    def state(self) -> RunState:
        """The supervisor's last word, which is older than the truth where the supervisor was killed."""
        return self._state()

    @property
    def processes(self) -> list[ProcessId]:
        """Its living processes: supervisor, launcher and workers; a zombie or a pid that was given anew isn't one."""
        state = self._state()
        return [one for one in (state.supervisor, state.launcher, *state.workers) if one and one.process()]

    def usage(self) -> list[RankUse]:
        """Memory and use of each worker on this machine, by rank, since the last look; empty where none lives."""
        return self._meter.look(self._state().workers)

    @property
    def error(self) -> str | None:
        """Why it failed or that it died, in one line that says what to type next; None for any other status."""
        status = self.status
        if status not in ("failed", "died"):
            return None
        return str(self._failure(status))

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """The complete checkpoints, oldest first."""
        return list_checkpoints(self.folder)

    @property
    def total_steps(self) -> int | None:
        """Steps that the whole run takes; None before its workers have said so."""
        start = self._refresh().last("start")
        return start.get("total_steps") if start else None

    @property
    def lr_factor(self) -> float:
        """What was last asked for by `set_lr_factor`."""
        return control.read_control(self.folder).lr_factor

    def metrics(self) -> pa.Table:
        """One row a step: `step`, `loss`, `eval_loss`, `bits_per_byte`, `lr`, `grad_norm`, `tokens`, `tokens_per_s`,
        `seconds`; losses in nats a token, null where nothing was measured at that step."""
        return self._refresh().table()

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The events of a kind (`step`, `eval`, `checkpoint`, `sample`, `start`, `end`), or all, oldest first."""
        return self._refresh().events(kind)

    def reader(self) -> MetricsReader:
        """A reader of its own, which begins with the run's whole history."""
        return MetricsReader(self.folder / METRICS)

    def diagnose(self) -> Diagnosis:
        """Findings about it, with evidence and a remedy each: from its log, its data and its tokenizer."""
        from nbllm.doctor.run import diagnose_run

        return diagnose_run(self)

    def log(self, lines: int = 40) -> str:
        """The last lines that its processes printed."""
        return log.tail(self.folder / log.LOG, lines)

    def wait(
        self, timeout: float | None = None, progress: Callable[[Run, list[dict[str, Any]]], object] | None = None
    ) -> Status:
        """Waits until the run is over. An interrupt ends the waiting, not the run.

        Args:
            timeout: seconds to wait at most; then the status is one of a live run.
            progress: called at every look, a few times a second, with the run and the events since the last look; the
                first call brings the whole history.

        Returns:
            The status: `done` or `stopped`, or that of a live run where the time was up.

        Raises:
            RunError: it failed or died; the line names the last checkpoint and how to go on.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        reader = self.reader()
        while True:
            status = self.status
            if progress is not None:
                progress(self, reader.poll())
            if status in ("failed", "died"):
                raise self._failure(status)
            if status not in LIVE:
                self._until_gone()
                return status
            if deadline is not None and time.monotonic() >= deadline:
                return status
            left = _POLL_S if deadline is None else deadline - time.monotonic()
            time.sleep(max(0.0, min(_POLL_S, left)))

    def stop(self, wait: bool = True) -> Status:
        """Ends the run after its current step, with a checkpoint; a run that is over stays as it is.

        Args:
            wait: return when it has stopped; else at once.
        """
        if self.status in LIVE:
            control.send(self.folder, "stop")
            while wait and (self.status in LIVE or self._lives()):
                time.sleep(_POLL_S)
        return self.status

    def pause(self, wait: bool = True) -> Status:
        """Holds the run between two steps; its processes keep their memory, so that `resume` goes on at once.

        Args:
            wait: return when it is paused (after a minute at the latest); else at once.
        """
        return self._ask("pause", wait)

    def checkpoint(self, wait: bool = True) -> Status:
        """Writes a checkpoint after the current step.

        Args:
            wait: return when the run has acted on it (after a minute at the latest); else at once.
        """
        return self._ask("checkpoint", wait)

    def set_lr_factor(self, factor: float) -> None:
        """Multiplies the scheduled learning rate by `factor` (0 to 10) from the next step on."""
        self._must_live("the learning rate can't be changed")
        control.send_lr_factor(self.folder, factor)

    def resume(
        self,
        wait: bool = True,
        *,
        processes: int | Literal["auto"] | None = None,
        parallel: str | None = None,
        batch_size: int | None = None,
        worker: Sequence[str] = (),
    ) -> Status:
        """Goes on: from a pause, and else from the last checkpoint (from the beginning where there is none).

        Workers whose supervisor was killed are waited for, since they write a last checkpoint.

        Args:
            wait: for a paused run, return when it runs (after a minute at the latest); else at once.
            processes, parallel, batch_size: go on with these instead of the run's own; the global batch stays what it
                was, by more or fewer micro-steps.
            worker: as in `start`.

        Raises:
            RunError: it runs, or it is done.
            UsageError: a plan that the run can't go on under.
        """
        status = self.status
        if status == "paused":
            return self._ask("resume", wait)
        if status == "done":
            raise RunError(f"Run {self.name} is done, there is nothing left to go on with")
        if status in LIVE and locks.is_held(self.folder / locks.SUPERVISOR_LOCK):
            raise RunError(
                f"Run {self.name} is {status} already", next=f"Watch it with %llm_train --attach {self.name}"
            )
        self._wait_for_orphans()
        deadline = time.monotonic() + _LAST_BREATH_S
        # The supervisor of a run that has just ended lets go in a moment; one that was just started doesn't.
        while (lock := locks.take(self.folder / locks.SUPERVISOR_LOCK, wait_s=_POLL_S)) is None:
            if self.status in LIVE or time.monotonic() > deadline:
                break
        if lock is None:
            raise RunError(
                f"Run {self.name} was started again by another process",
                next=f"Watch it with %llm_train --attach {self.name}",
            )
        try:
            wishes = {"processes": processes, "parallel": parallel, "batch_size": batch_size}
            if changes := {name: value for name, value in wishes.items() if value is not None}:
                changed: dict[str, Any] = read_json(self.folder / CONFIG) | changes
                write_json(self.folder / CONFIG, TrainConfig.from_json(changed).as_json())
            begin(self.folder, resume=True)
            start_supervisor(self.folder, lock, resume=bool(self.checkpoints), worker=worker)
        finally:
            lock.release()
        return self.status

    def _ask(self, command: control.Command, wait: bool) -> Status:
        self._must_live(f"there is nothing to {command}")
        sequence = control.send(self.folder, command)
        deadline = time.monotonic() + _ACKNOWLEDGE_S
        while wait and control.acknowledged(self.folder) < sequence and time.monotonic() < deadline:
            if self.status not in LIVE:
                break
            time.sleep(_POLL_S / 4)
        return self.status

    def _must_live(self, consequence: str) -> None:
        status = self.status
        if status not in LIVE:
            raise RunError(
                f"Run {self.name} is {status}: {consequence}",
                next=None if status == "done" else f"Go on with %llm_train --resume {self.name}",
            )

    def _failure(self, status: Status) -> RunError:
        state, checkpoints = self._state(), self.checkpoints
        if status == "died" and state.phase != "died":
            what = f"Run {self.name} died without a word: its processes were killed or the machine restarted"
        else:
            what = f"Run {self.name} {status}: {(state.error or 'for an unknown reason').rstrip('.')}"
        if not checkpoints and status == "failed":
            return RunError(what)  # the same configuration would fail again
        if not checkpoints:
            return RunError(
                f"{what}. It has no checkpoint yet", next=f"Start over with %llm_train --resume {self.name}"
            )
        last = checkpoints[-1].step
        return RunError(
            f"{what}. Its last good checkpoint is step {last}", next=f"Go on with %llm_train --resume {self.name}"
        )

    def _state(self) -> RunState:
        return read_state(self.folder)

    def _lives(self) -> bool:
        return locks.is_held(self.folder / locks.SUPERVISOR_LOCK) or bool(locks.held_workers(self.folder))

    def _until_gone(self) -> None:
        """Gives the supervisor of a finished run the moment that it needs to end."""
        deadline = time.monotonic() + _LAST_BREATH_S
        while self._lives() and time.monotonic() < deadline:
            time.sleep(_POLL_S / 10)

    def _refresh(self) -> History:
        self._history.add(self._reader.poll())
        return self._history

    def _wait_for_orphans(self) -> None:
        """Returns when no process of a dead supervisor is left; those that don't end by themselves are killed."""
        state = self._state()
        recorded = [one for one in (state.launcher, *state.workers) if one is not None]
        deadline = time.monotonic() + _ORPHANS_S
        while locks.held_workers(self.folder) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        # A worker that hadn't come as far as taking its lock must not wake up beside the new ones.
        for process in filter(None, (one.process() for one in recorded)):
            with contextlib.suppress(Exception):
                process.kill()
        deadline = time.monotonic() + _ORPHANS_KILL_S
        while (left := locks.held_workers(self.folder)) or any(one.process() for one in recorded):
            if time.monotonic() > deadline:
                raise RunError(
                    f"Workers of an earlier start of run {self.name} still live (ranks {left})",
                    next=f"End them, then type %llm_train --resume {self.name}",
                )
            time.sleep(_POLL_S)
