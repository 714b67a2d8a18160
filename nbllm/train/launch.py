"""The exact command, environment and accelerate configuration that start a run's worker processes on this machine.

Starts nothing itself. It leaves precision to the worker, and takes out of the environment whatever another launcher,
a user's own accelerate configuration or the notebook's colours would change. Never imports torch: where there are signs
of a GPU, a short-lived process is asked for what torch sees.

Sources: `accelerate launch` 1.15 (`--cpu` always starts one process; several on a CPU need `--multi_gpu` with
ACCELERATE_USE_CPU) and torch.distributed.run.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import psutil

import nbllm
from nbllm.errors import RunError

ACCELERATE_CONFIG = "accelerate.json"
_WORKER = ("-m", "nbllm.train.worker")
_ASK_TORCH = """
import json, torch
kind = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
print(json.dumps({"kind": kind, "count": torch.cuda.device_count() if kind == "cuda" else 1}))
"""
_ASK_TIMEOUT_S = 120
# What another launcher leaves behind would make a single worker believe that it is one of several.
_FOREIGN = {
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("PMI_RANK", "PMI_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"),
    # set by notebook kernels: colours in the log, and a plotting back end that needs the kernel
    *("FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "MPLBACKEND"),
}
_FOREIGN_PREFIXES = ("ACCELERATE_", "TORCHELASTIC_", "FSDP_", "PARALLELISM_CONFIG_")


@dataclass(frozen=True, kw_only=True)
class Devices:
    """What a run can compute on."""

    kind: Literal["cuda", "mps", "cpu"]
    """As torch names it."""
    count: int
    """How many there are; 1 for a CPU, whatever its cores."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How a run's workers are started."""

    processes: int
    """Worker processes."""
    devices: Devices
    """What they compute on."""
    threads: int
    """CPU threads of each."""
    port: int
    """Where they meet: on the loopback interface, or on the first of several machines."""
    command: tuple[str, ...]
    """Program and arguments."""
    environment: dict[str, str] = field(repr=False)
    """The whole environment, ready for `subprocess`."""
    settings: dict[str, str]
    """The part of the environment that is set on purpose."""
    accelerate: dict[str, Any]
    """The accelerate configuration, to be written beside the run's config before the start."""

    def shell(self) -> str:
        """The same as one line for a terminal."""
        settings = [f"{name}={shlex.quote(value)}" for name, value in sorted(self.settings.items())]
        return " ".join([*settings, shlex.join(self.command)])


def plan(
    folder: Path,
    *,
    processes: int | Literal["auto"] = "auto",
    resume: bool = False,
    devices: Devices | None = None,
    port: int | None = None,
    machines: int = 1,
    rank: int = 0,
    main: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Launch:
    """Works out how the run in `folder` starts.

    Args:
        folder: the run's folder, with its `config.json`.
        processes: worker processes on this machine; `auto`: one a GPU, one on a CPU.
        resume: whether the worker goes on from its last checkpoint.
        devices: None: look.
        port: None: a free one.
        machines, rank, main: how many machines there are, which this is, and HOST:PORT of the first.
        environment: what to start from; None: this process's.

    Raises:
        RunError: more processes than devices.
    """
    devices = devices or visible_devices()
    if processes == "auto":
        processes = devices.count if devices.kind == "cuda" else 1
    if devices.kind != "cpu" and processes > devices.count:
        raise RunError(
            f"{processes} processes need as many devices, and this machine shows {devices.count} ({devices.kind})",
            next=f"Use --processes {devices.count}",
        )
    on_cpu = devices.kind == "cpu"
    host, _, given_port = (main or "127.0.0.1:").rpartition(":")
    port = port or int(given_port or free_port())
    source = dict(os.environ if environment is None else environment)
    threads = _threads(source, processes)
    settings = {
        "ACCELERATE_USE_CPU": str(on_cpu).lower(),
        "OMP_NUM_THREADS": str(threads),
        **python_settings(source),
    }
    if on_cpu:
        # Spinning threads of two busy processes (a second run, sampling in the notebook) starve each other: with two
        # of them on two busy cores a small model's step took 1.7 to 3.1 s, and 0.06 s with threads that sleep instead.
        settings["OMP_WAIT_POLICY"] = source.get("OMP_WAIT_POLICY", "PASSIVE")
    if on_cpu and sys.platform == "linux" and (machines == 1 or host in ("127.0.0.1", "localhost")):
        # all workers are on this machine; without it gloo needs a host name that resolves
        settings["GLOO_SOCKET_IFNAME"] = source.get("GLOO_SOCKET_IFNAME", "lo")
    return Launch(
        processes=processes,
        devices=devices,
        threads=threads,
        port=port,
        command=_command(
            folder,
            processes=processes,
            threads=threads,
            machines=machines,
            rank=rank,
            host=host if machines > 1 else None,
            port=port,
            on_cpu=on_cpu,
            resume=resume,
        ),
        environment={**clean_environment(source), **settings},
        settings=settings,
        accelerate={
            "compute_environment": "LOCAL_MACHINE",
            "distributed_type": "NO" if processes * machines == 1 else "MULTI_CPU" if on_cpu else "MULTI_GPU",
            "mixed_precision": "no",
            "use_cpu": on_cpu,
            "num_processes": processes * machines,
            "num_machines": machines,
            "machine_rank": rank,
            **({"main_process_ip": host} if machines > 1 else {}),
            "main_process_port": port,
            "debug": False,
        },
    )


def visible_devices() -> Devices:
    """What torch would compute on here; takes seconds where there are signs of a GPU, else no time."""
    signs = sys.platform == "darwin" or any(Path(path).exists() for path in ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg"))
    if not signs or os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return Devices(kind="cpu", count=1)
    try:
        answer = subprocess.run(
            [sys.executable, "-P", "-c", _ASK_TORCH],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ASK_TIMEOUT_S,
            check=True,
        )
        return Devices(**json.loads(answer.stdout.strip().splitlines()[-1]))
    except (subprocess.SubprocessError, ValueError, IndexError) as error:
        raise RunError(
            f"torch can't say which devices it sees: {error}",
            next="Type CUDA_VISIBLE_DEVICES= before the command to train on the CPU",
        ) from error


def free_port() -> int:
    """A TCP port that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def cores() -> int:
    """Physical cores that this process may use: by affinity, and by a container's quota."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    counts = [usable, psutil.cpu_count(logical=False) or usable]
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            counts.append(int(quota) // int(period))
    except (OSError, ValueError):
        pass
    return max(1, min(counts))


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without what other launchers and a notebook's kernel put there."""
    return {
        name: value
        for name, value in environment.items()
        if name not in _FOREIGN and not name.startswith(_FOREIGN_PREFIXES)
    }


def python_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """What every Python process of a run is started with: unbuffered plain output, and modules found as here."""
    settings = {
        "PYTHONUNBUFFERED": "1",
        "NO_COLOR": "1",
        # a `random.py` or `tokenizers.py` beside the notebook mustn't shadow a module of the worker
        "PYTHONSAFEPATH": "1",
    }
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    parent = Path(nbllm.__file__).resolve().parent.parent
    if parent.name not in ("site-packages", "dist-packages") and str(parent) not in paths:
        paths.append(str(parent))  # a checkout that isn't installed
    if paths:
        settings["PYTHONPATH"] = os.pathsep.join(paths)
    return settings


def _threads(environment: Mapping[str, str], processes: int) -> int:
    asked = environment.get("OMP_NUM_THREADS", "")
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    return max(1, cores() // processes)


def _command(
    folder: Path,
    *,
    processes: int,
    threads: int,
    machines: int,
    rank: int,
    host: str | None,
    port: int,
    on_cpu: bool,
    resume: bool,
) -> tuple[str, ...]:
    # Without a configuration of ours, accelerate would read the user's own.
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(folder / ACCELERATE_CONFIG)]
    if processes * machines > 1:
        command += ["--multi_gpu", "--main_process_port", str(port)]
    elif on_cpu:
        command += ["--cpu"]
    if host is not None:
        command += ["--main_process_ip", host, "--machine_rank", str(rank)]
    command += ["--num_processes", str(processes * machines), "--num_machines", str(machines)]
    command += ["--num_cpu_threads_per_process", str(threads)]
    command += ["--mixed_precision", "no", "--dynamo_backend", "no"]
    command += [*_WORKER, str(folder)]
    if resume:
        command.append("--resume")
    return tuple(command)
