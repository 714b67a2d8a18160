"""Runs over several gloo processes, for the tests of the parallel plans."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from worker_kit import Kit, events, losses, train

from nbllm.files import read_json, write_json
from nbllm.train import launch

STEPS, HALF = 20, 10
SETTING = {
    "steps": STEPS, "save_every": HALF, "eval_every": HALF, "optimizer": "adamw", "lr": 3e-3, "clip": 0.5, "keep": 9,
}  # fmt: skip


def train_group(tasks, processes=2):
    """Trains (folder, resume) one after the other by a group of processes; returns their error output."""
    port = str(launch.free_port())
    command = [sys.executable, str(Path(__file__).with_name("group_worker.py"))]
    command.append(json.dumps([[str(folder), resume] for folder, resume in tasks]))
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    children = []
    for rank in range(processes):
        environment = {
            **launch.clean_environment(os.environ), "RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_PORT": port,
            "WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1",
            "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE",
            "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": os.pathsep.join(paths),
        }  # fmt: skip
        children.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    try:
        said = [child.communicate(timeout=400)[1] for child in children]
    finally:
        for child in children:
            child.kill()
    assert [child.returncode for child in children] == [0] * processes, "\n".join(said)[-4000:]
    return said


def half(folder, name, step=STEPS, **changes):
    """The run as it was at its checkpoint in the middle, under another name and with other wishes."""
    other = folder.with_name(name)
    shutil.copytree(folder, other)
    shutil.rmtree(other / "checkpoints" / f"step-{step:08d}")
    write_json(other / "config.json", {**read_json(other / "config.json"), **changes})
    return other


def check_plan(kit: Kit, parallel, *, processes=2, model="llama-nano", batch_size=4, one_batch=8):
    """The whole promise of a plan: equal losses, an exact resume, and checkpoints that any plan goes on with.

    Returns the run's `start` event.
    """
    name = f"{parallel.replace(',', '-')}-{model}"
    setting = {**SETTING, "model": model}
    one = kit.train(f"{name}-one", batch_size=one_batch, grad_accum=1, **setting)
    cut = {"parallel": parallel, "processes": processes, "batch_size": batch_size // 2, "grad_accum": 2}
    whole = kit.run_folder(f"{name}-whole", **{**setting, **cut})
    taken_over = half(one, f"{name}-taken-over", **cut)
    train_group([(whole, False), (taken_over, True)], processes)
    assert len(losses(one)) == STEPS
    assert losses(whole) == pytest.approx(losses(one), rel=1e-4)
    assert losses(taken_over) == pytest.approx(losses(one), rel=1e-4)
    for key in ("eval_loss", "bits_per_byte"):
        assert events(whole, "eval")[-1][key] == pytest.approx(events(one, "eval")[-1][key], rel=1e-4)
    assert [event["text"] for event in events(whole, "sample")] == [event["text"] for event in events(one, "sample")]

    again = half(whole, f"{name}-again")
    alone = half(whole, f"{name}-alone", parallel="ddp", processes=1)
    train_group([(again, True)], processes)
    assert losses(again) == losses(whole)
    assert train(alone, resume=True) == "done"
    assert losses(alone) == pytest.approx(losses(one), rel=1e-4)
    assert events(alone, "start")[-1]["global_batch"] == one_batch
    return events(whole, "start")[0]
