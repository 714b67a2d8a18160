"""The small process that outlives the notebook and watches one training: `python -m nbllm.train.supervisor FOLDER`.

It starts the workers, says in `state.json` how they are, sees that a stop ends in a stop (first the checkpoint that
`control.json` asks for, then TERM, then KILL), reaps, and writes down why a run failed. Where the config allows
restarts, workers that end in an error after their first step are all brought back from the last checkpoint, as
torchrun's elastic agent does it; each time is a generation of its own. It holds `supervisor.lock` for
its life. It knows the files of a run's folder, not what a worker computes; it never imports torch.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from nbllm.errors import NbllmError, RunError
from nbllm.files import read_json, write_json
from nbllm.train import control, launch, locks, log
from nbllm.train.metrics import METRICS, MetricsReader, trim_torn_line
from nbllm.train.phase import Phase, ProcessId, begin, read_state, write_state

_PORT_ATTEMPTS = 3


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long the supervisor waits, in seconds."""

    look: float = 0.2
    """Between two looks at the workers."""
    descendants: float = 1.0
    """Between two looks for the launcher's descendants."""
    heartbeat: float = 5.0
    """Between two heartbeats while nothing changes."""
    stop: float = 300.0
    """For the workers' own end after a stop, which writes a checkpoint; then comes TERM."""
    term: float = 30.0
    """Between TERM and KILL."""


class Supervisor:
    """Watches one run, from the start of its workers to their end, and starts them again as often as it may.

    Args:
        folder: the run's folder, with `config.json`.
        resume: whether the workers go on from the last checkpoint.
        worker: program and arguments to run in place of `accelerate launch …`; the folder, and `--resume` where it
            applies, are appended.
        patience: how long to wait for what.
    """

    def __init__(
        self, folder: Path, *, resume: bool = False, worker: Sequence[str] = (), patience: Patience | None = None
    ) -> None:
        self.folder = folder
        self.resume = resume
        self.worker = tuple(worker)
        self.patience = patience or Patience()
        self.state = replace(
            read_state(folder),
            phase="starting",
            supervisor=ProcessId.of(os.getpid()),
            launcher=None,
            workers=(),
            exit_code=None,
            error=None,
        )
        self._log_start = _size(folder / log.LOG)
        self._reader = MetricsReader(folder / METRICS)
        self._started = False
        self._end: dict[str, Any] = {}
        self._stop_since: float | None = None
        self._stop_patience = self.patience.stop
        self._term_since: float | None = None
        self._killed = False
        self._written = 0.0
        self._looked = 0.0
        self._acknowledged = control.acknowledged(folder)
        self._control_changed = -1
        self._asked = False
        self._complaint = ""

    def run(self) -> int:
        """Starts the workers and returns once all have ended: 0 when the run is done or stopped, 1 when it failed."""
        trim_torn_line(self.folder / METRICS)
        self._reader.offset = _size(self.folder / METRICS)
        self._save()
        try:
            restarts = int(read_json(self.folder / "config.json").get("max_restarts", 0))
            code = self._run_once()
            # what fails before its first step would only fail again
            while code != 0 and restarts > 0 and self._started and self._stop_since is None:
                restarts -= 1
                self._begin_again(code)
                code = self._run_once()
            self._finish(code)
        except Exception as error:
            if not isinstance(error, NbllmError):
                traceback.print_exc()
            self._end_all()
            self._save(phase="failed", exit_code=1, error=" ".join(str(error).split()) or type(error).__name__)
            return 1
        return 1 if self.state.phase in ("failed", "died") else 0

    def ask_to_stop(self, *_: object) -> None:
        """What TERM does: at the next look, the same as a stop from the notebook."""
        self._asked = True

    def _run_once(self) -> int:
        """Starts the workers, again with another port where theirs was taken; returns the launcher's exit code."""
        for attempt in range(_PORT_ATTEMPTS):
            code = self._watch(self._start())
            taken = code != 0 and not self._started and self._stop_since is None
            if not (taken and log.says_port_taken(self.folder / log.LOG, start=self._log_start)):
                break
            if attempt + 1 < _PORT_ATTEMPTS:
                print("The port was taken meanwhile; starting again with another", flush=True)
                self._log_start = _size(self.folder / log.LOG)
        return code

    def _begin_again(self, code: int) -> None:
        """A new generation that goes on from the last checkpoint."""
        why = log.last_error(self.folder / log.LOG, start=self._log_start) or log.describe_exit(code)
        print(f"A worker ended ({why}); all start again from the last checkpoint", flush=True)
        trim_torn_line(self.folder / METRICS)
        self._log_start = _size(self.folder / log.LOG)
        self._started = False
        self.resume = True
        self._save(phase="starting", generation=self.state.generation + 1, launcher=None, workers=())

    def _start(self) -> subprocess.Popen[bytes]:
        resume = ("--resume",) if self.resume else ()
        if self.worker:
            command: Sequence[str] = (*self.worker, str(self.folder), *resume)
            environment = launch.clean_environment(os.environ)
        else:
            config = read_json(self.folder / "config.json")
            plan = launch.plan(
                self.folder,
                processes=config.get("processes", "auto"),
                resume=self.resume,
                machines=config.get("machines", 1),
                rank=config.get("rank", 0),
                main=config.get("main"),
            )
            write_json(self.folder / launch.ACCELERATE_CONFIG, plan.accelerate)
            command, environment = plan.command, plan.environment
            print(plan.shell(), flush=True)
        # Output and errors go where this process's go; the lock's descriptor isn't inherited.
        child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
        self._save(launcher=ProcessId.of(child.pid))
        return child

    def _watch(self, child: subprocess.Popen[bytes]) -> int:
        """Looks after the workers until the launcher has ended, then ends what it left behind."""
        while (code := child.poll()) is None:
            if not (self.folder / "config.json").exists():
                raise RunError(f"The folder of run {self.folder.name} was removed while it ran")
            self._look(child)
            time.sleep(self.patience.look)
        self._look(child)
        self._end_all()
        return code

    def _look(self, child: subprocess.Popen[bytes]) -> None:
        """One round; a file system that doesn't answer for a moment is no reason to end a training."""
        try:
            if self._asked:
                self._asked = False
                control.send(self.folder, "stop")
            self._read_metrics()
            self._read_control()
            self._look_for_workers(child)
        except (OSError, NbllmError) as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                print(f"The supervisor goes on after: {error}", flush=True)
        self._press(child)
        if time.time() - self._written >= self.patience.heartbeat:
            self._save()

    def _read_metrics(self) -> None:
        for event in self._reader.poll():
            if event.get("kind") == "start":
                self._started = True
            elif event.get("kind") == "end":
                self._end = event
        if self._started and self.state.phase == "starting":
            self._save(phase="running")

    def _read_control(self) -> None:
        try:
            changed = max(
                (self.folder / name).stat().st_mtime_ns
                for name in (control.CONTROL, control.ACKNOWLEDGED)
                if (self.folder / name).exists()
            )
        except (ValueError, OSError):
            return
        if changed == self._control_changed:
            return
        asked, done = control.read_control(self.folder), control.acknowledged(self.folder)
        self._control_changed = changed
        wanted = [command for _, command in asked.after(self._acknowledged)]
        if "stop" in wanted and self._stop_since is None:
            self._stop_since = time.monotonic()
            self._save(phase="stopping")
        if self.state.phase in ("running", "paused"):
            phase: Phase = "paused" if asked.paused_at(done) else "running"
            if phase != self.state.phase:
                self._save(phase=phase)

    def _press(self, child: subprocess.Popen[bytes]) -> None:
        """Sees to it that a stop ends in a stop."""
        if self._stop_since is None:
            return
        now = time.monotonic()
        if self._term_since is None:
            # Before its first step a worker has nothing to save.
            if not self._started or now - self._stop_since > self._stop_patience:
                self._term_since = now
                self._terminate(child)
        elif now - self._term_since > self.patience.term and not self._killed:
            self._killed = True
            _signal([ProcessId.of(child.pid), *self._workers(child.pid)], signal.SIGKILL)

    def _terminate(self, child: subprocess.Popen[bytes]) -> None:
        """TERM to the workers, so that the launcher ends because they did; to the launcher where it has none yet."""
        try:
            workers = [] if self.worker else psutil.Process(child.pid).children()
        except psutil.Error:
            workers = []
        _signal([ProcessId.of(process.pid) for process in workers] or [ProcessId.of(child.pid)], signal.SIGTERM)

    def _look_for_workers(self, child: subprocess.Popen[bytes]) -> None:
        """Notes the launcher's descendants now and then, since those of a dead launcher can't be found any more."""
        if time.monotonic() - self._looked >= self.patience.descendants:
            self._looked = time.monotonic()
            workers = self._workers(child.pid)
            if workers != self.state.workers:
                self._save(workers=workers)

    def _workers(self, pid: int) -> tuple[ProcessId, ...]:
        """The launcher's living descendants, and those of the last look that it no longer has."""
        known = {worker.pid: worker for worker in self.state.workers if worker.process()}
        try:
            for process in psutil.Process(pid).children(recursive=True):
                if found := ProcessId.of(process.pid):
                    known[found.pid] = found
        except psutil.Error:
            pass
        return tuple(known[number] for number in sorted(known))

    def _end_all(self) -> None:
        """Ends the workers that outlived their launcher: nobody would look after them."""
        launcher = () if self.state.launcher is None else (self.state.launcher,)
        for one in launcher:
            self.state = replace(self.state, workers=self._workers(one.pid))
        for number, patience in ((signal.SIGTERM, self.patience.term), (signal.SIGKILL, 5.0)):
            left = [one for one in (*launcher, *self.state.workers) if one.process()]
            if not left:
                return
            _signal(left, number)
            deadline = time.monotonic() + patience
            while any(one.process() for one in left) and time.monotonic() < deadline:
                time.sleep(self.patience.look)

    def _finish(self, code: int) -> None:
        if code == 0:
            said = self._end.get("status")  # a stop may have come after the last step
            stopped = said == "stopped" or (said is None and self._stop_since is not None)
            self._save(phase="stopped" if stopped else "done", exit_code=code, launcher=None, workers=())
        elif self._term_since is not None:
            self._save(phase="stopped", exit_code=code, launcher=None, workers=())
        else:
            error = log.last_error(self.folder / log.LOG, start=self._log_start) or log.describe_exit(code)
            phase: Phase = "died" if log.says_killed(self.folder / log.LOG, code, start=self._log_start) else "failed"
            self._save(phase=phase, exit_code=code, error=error, launcher=None, workers=())

    def _save(self, **changes: Any) -> None:
        """Writes the state; a full disk must not end the watch, and a removed folder must not come back."""
        self.state = replace(self.state, **changes, heartbeat=time.time())
        self._written = self.state.heartbeat
        if not self.folder.is_dir():
            return
        try:
            write_state(self.folder, self.state)
        except OSError as error:
            print(f"state.json can't be written: {error}", flush=True)


def _signal(processes: Sequence[ProcessId | None], number: signal.Signals) -> None:
    for one in processes:
        process = one.process() if one else None
        if process is not None:
            try:
                process.send_signal(number)
            except psutil.Error:
                continue


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line: `FOLDER [--resume]`; the rest is for the handle that starts it."""
    parser = argparse.ArgumentParser(prog="python -m nbllm.train.supervisor", allow_abbrev=False)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    parser.add_argument("--detach", action="store_true", help="go on in a process of its own and return")
    parser.add_argument("--lock", type=int, help="descriptor of supervisor.lock, already locked")
    parser.add_argument("--patience", type=json.loads, default={}, help="how long to wait, as JSON")
    parser.add_argument("--worker", type=json.loads, default=[], help="command in place of accelerate launch, as JSON")
    options = parser.parse_args(arguments)
    if options.detach and os.fork():
        # Nobody is this one's child then: a kernel that ends all its children leaves it alone, and no zombie stays.
        os._exit(0)
    folder = options.folder.absolute()
    if options.lock is not None:
        lock: locks.Lock | None = locks.Lock(options.lock)
    elif lock := locks.take(folder / locks.SUPERVISOR_LOCK):
        begin(folder, resume=options.resume)
    if lock is None or locks.held_workers(folder):
        print(f"{folder.name} runs already", file=sys.stderr)
        return 1
    supervisor = Supervisor(folder, resume=options.resume, worker=options.worker, patience=Patience(**options.patience))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, supervisor.ask_to_stop)
    try:
        return supervisor.run()
    finally:
        lock.release()


if __name__ == "__main__":
    sys.exit(main())
