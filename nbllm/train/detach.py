"""Starts a run's supervisor so that it is nobody's child: neither a kernel's interrupt nor its end reaches it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from nbllm.errors import RunError
from nbllm.train import launch, locks, log
from nbllm.train.phase import read_state


def start_supervisor(folder: Path, lock: locks.Lock, *, resume: bool, worker: Sequence[str]) -> None:
    """Starts the supervisor, which inherits the lock, in a session of its own; returns when it is on its own feet."""
    command = [sys.executable, "-m", "nbllm.train.supervisor", str(folder), "--detach", "--lock", str(lock.descriptor)]
    if resume:
        command.append("--resume")
    if worker:
        command += ["--worker", json.dumps(list(worker))]
    environment = launch.clean_environment(os.environ)
    environment.update(launch.python_settings(environment))
    directory = read_state(folder).directory
    with (folder / log.LOG).open("ab") as output:
        began = output.tell()
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            cwd=directory if directory and Path(directory).is_dir() else None,
            start_new_session=True,
            pass_fds=(lock.descriptor,),
        )
        code = child.wait()
    if code != 0:
        said = log.last_error(folder / log.LOG, start=began)
        raise RunError(f"The supervisor of run {folder.name} didn't start: {said or log.describe_exit(code)}")
