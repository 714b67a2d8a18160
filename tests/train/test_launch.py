"""The command, environment and configuration that start workers; and what accelerate makes of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nbllm.errors import RunError
from nbllm.train import launch
from nbllm.train.launch import Devices, clean_environment, cores, free_port, plan

CPU = Devices(kind="cpu", count=1)


def tail(one):
    """The arguments after those that every command has."""
    return list(one.command[5:])


def test_one_process_on_a_cpu(tmp_path):
    one = plan(tmp_path, devices=CPU, environment={"PATH": "/bin"})
    assert one.processes == 1
    assert one.command[:5] == (
        *(sys.executable, "-m", "accelerate.commands.launch"),
        *("--config_file", str(tmp_path / "accelerate.json")),
    )
    assert tail(one) == [
        *("--cpu", "--num_processes", "1", "--num_machines", "1", "--num_cpu_threads_per_process", str(cores())),
        *("--mixed_precision", "no", "--dynamo_backend", "no", "-m", "nbllm.train.worker", str(tmp_path)),
    ]
    assert one.environment["ACCELERATE_USE_CPU"] == "true"
    assert one.environment["OMP_NUM_THREADS"] == str(cores())
    assert one.environment["OMP_WAIT_POLICY"] == "PASSIVE"
    assert one.environment["PATH"] == "/bin"


def test_two_processes_on_a_cpu_do_not_use_the_cpu_flag(tmp_path):
    two = plan(tmp_path, processes=2, devices=CPU, port=4321, resume=True, environment={})
    assert "--cpu" not in two.command
    assert tail(two)[:5] == ["--multi_gpu", "--main_process_port", "4321", "--num_processes", "2"]
    assert two.command[-1] == "--resume"
    assert two.environment["ACCELERATE_USE_CPU"] == "true"
    assert two.threads == max(1, cores() // 2)
    assert two.accelerate["distributed_type"] == "MULTI_CPU"


def test_every_gpu_by_default(tmp_path):
    two = plan(tmp_path, devices=Devices(kind="cuda", count=2), environment={})
    assert two.processes == 2
    assert "--multi_gpu" in two.command
    assert two.environment["ACCELERATE_USE_CPU"] == "false"
    assert "GLOO_SOCKET_IFNAME" not in two.environment
    assert two.accelerate["distributed_type"] == "MULTI_GPU"
    one = plan(tmp_path, processes=1, devices=Devices(kind="cuda", count=2), environment={})
    assert "--multi_gpu" not in one.command
    assert "--cpu" not in one.command
    assert plan(tmp_path, devices=Devices(kind="mps", count=1), environment={}).processes == 1


def test_more_processes_than_devices(tmp_path):
    with pytest.raises(RunError, match=r"4 processes .* shows 2 \(cuda\)\. Use --processes 2"):
        plan(tmp_path, processes=4, devices=Devices(kind="cuda", count=2))


def test_threads_that_the_user_set_stay(tmp_path):
    assert plan(tmp_path, processes=2, devices=CPU, environment={"OMP_NUM_THREADS": "7"}).threads == 7


def test_what_other_launchers_and_the_kernel_left_behind_goes():
    left = {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "MASTER_PORT": "1",
        "ACCELERATE_MIXED_PRECISION": "fp8",
        "TORCHELASTIC_RUN_ID": "x",
        "FORCE_COLOR": "1",
        "MPLBACKEND": "module://ipykernel.pylab",
    }
    assert clean_environment({**left, "HOME": "/h", "NCCL_DEBUG": "INFO"}) == {"HOME": "/h", "NCCL_DEBUG": "INFO"}


def test_the_line_for_a_terminal(tmp_path):
    line = plan(tmp_path / "my run", processes=2, devices=CPU, environment={}).shell()
    assert line.startswith("ACCELERATE_USE_CPU=true ")
    assert f"'{tmp_path}/my run'" in line


def test_ports_differ():
    assert len({free_port() for _ in range(20)}) > 1


def test_devices_of_a_machine_without_a_gpu_need_no_torch(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(launch.subprocess, "run", None)
    assert launch.visible_devices() == CPU


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_accelerate_starts_what_was_asked(tmp_path, monkeypatch, processes):
    (tmp_path / "probe.py").write_text(
        "import json, os, sys, torch\n"
        "from pathlib import Path\n"
        "from accelerate import Accelerator\n"
        "one = Accelerator()\n"
        "said = [one.num_processes, str(one.device.type), one.mixed_precision, torch.get_num_threads()]\n"
        "Path(sys.argv[1], f'said-{one.process_index}').write_text(json.dumps(said))\n"
    )
    (tmp_path / "random.py").write_text("raise SystemExit('a module of the notebook got in the way')\n")
    monkeypatch.setattr(launch, "_WORKER", (str(tmp_path / "probe.py"),))
    # Nothing of these may have an effect: a user's own configuration, a launcher around the notebook.
    own = tmp_path / "home" / "accelerate" / "default_config.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nnum_processes: 5\n")
    source = {**os.environ, "HF_HOME": str(own.parent.parent), "WORLD_SIZE": "3", "RANK": "2", "OMP_NUM_THREADS": "1"}
    asked = plan(tmp_path, processes=processes, devices=CPU, environment=source)
    (tmp_path / "accelerate.json").write_text(json.dumps(asked.accelerate))
    subprocess.run(asked.command, env=asked.environment, cwd=tmp_path, check=True, timeout=120)
    said = sorted(Path(tmp_path).glob("said-*"))
    assert [json.loads(one.read_text()) for one in said] == [[processes, "cpu", "no", 1]] * processes
