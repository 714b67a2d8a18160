"""The supervisor alone: pressing a deaf worker, TERM, a taken port, a removed folder, two supervisors for one run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from stand_in import fake, kill, until

from nbllm.files import write_json
from nbllm.train import control, locks
from nbllm.train.metrics import MetricsReader
from nbllm.train.phase import begin, read_state
from nbllm.train.supervisor import main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run's folder as the handle leaves it before a start."""
    folder = tmp_path / "run"
    folder.mkdir()
    write_json(folder / "config.json", {"processes": 1})
    begin(folder, resume=False)
    return folder


def supervise(folder: Path, *options: object, patience: dict[str, float] | None = None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "nbllm.train.supervisor", str(folder), "--worker", json.dumps(fake(*options))]
    if patience:
        command += ["--patience", json.dumps(patience)]
    return subprocess.Popen(command, stdout=(folder / "worker.log").open("ab"), stderr=subprocess.STDOUT)


def started(folder: Path) -> bool:
    return read_state(folder).phase == "running"


def test_a_deaf_worker_is_killed_in_the_end(folder):
    watcher = supervise(
        folder, "--deaf", "--launcher", "--steps", 9999, patience={"stop": 0.5, "term": 0.5, "descendants": 0.1}
    )
    until(lambda: started(folder) and read_state(folder).workers)
    workers = read_state(folder).workers
    control.send(folder, "stop")
    until(lambda: read_state(folder).phase == "stopping")
    watcher.wait(20)
    state = read_state(folder)
    assert (state.phase, state.workers, state.error) == ("stopped", (), None)
    assert not any(worker.process() for worker in workers)
    assert locks.held_workers(folder) == []


def test_term_to_the_supervisor_is_a_stop(folder):
    watcher = supervise(folder, "--steps", 100000)
    until(lambda: started(folder))
    watcher.send_signal(signal.SIGHUP)
    watcher.send_signal(signal.SIGTERM)
    assert watcher.wait(20) == 0
    assert read_state(folder).phase == "stopped"
    assert list((folder / "checkpoints").glob("step-*"))


def test_a_stop_that_another_command_follows_at_once_is_a_stop(folder):
    watcher = supervise(folder, "--steps", 100000)
    until(lambda: started(folder))
    control.send(folder, "checkpoint")
    control.send(folder, "stop")
    control.send_lr_factor(folder, 0.5)
    watcher.wait(20)
    assert read_state(folder).phase == "stopped"


def test_a_taken_port_is_tried_again(folder):
    assert supervise(folder, "--port-taken", 2).wait(30) == 0
    assert read_state(folder).phase == "done"
    assert (folder / "tries").read_text() == "xxx"


def test_a_port_that_stays_taken_is_a_failure(folder):
    assert supervise(folder, "--port-taken", 9).wait(30) == 1
    state = read_state(folder)
    assert state.phase == "failed"
    assert state.error == "OSError: [Errno 98] EADDRINUSE: address already in use"
    assert (folder / "tries").read_text() == "xxx"


def test_a_killed_worker_is_brought_back_from_the_last_checkpoint(folder):
    write_json(folder / "config.json", {"processes": 1, "max_restarts": 1})
    watcher = supervise(folder, "--steps", 30, "--step-s", 0.05)
    until(lambda: (folder / "checkpoints" / "step-00000005").exists())
    kill(read_state(folder).launcher)
    assert watcher.wait(30) == 0
    state = read_state(folder)
    assert (state.phase, state.generation, state.error) == ("done", 1, None)
    events = MetricsReader(folder / "metrics.jsonl").poll()
    starts = [event for event in events if event["kind"] == "start"]
    assert [event["generation"] for event in starts] == [0, 1]
    assert starts[1]["step"] in (5, 10, 15, 20, 25)
    assert "all start again from the last checkpoint" in (folder / "worker.log").read_text()


def test_no_more_restarts_than_allowed(folder):
    write_json(folder / "config.json", {"processes": 1, "max_restarts": 2})
    assert supervise(folder, "--steps", 9, "--crash-at", 7).wait(30) == 1
    state = read_state(folder)
    assert (state.phase, state.generation, state.error) == ("failed", 2, "ValueError: step 7 went wrong")


def test_what_fails_before_its_first_step_is_not_started_again(folder):
    write_json(folder / "config.json", {"processes": 1, "max_restarts": 2})
    assert supervise(folder, "--refuse").wait(30) == 1
    assert read_state(folder).generation == 0


def test_a_removed_folder_ends_everything_and_stays_removed(folder):
    watcher = supervise(folder, "--deaf", "--steps", 99999, "--save-every", 99999, patience={"term": 0.3})
    until(lambda: started(folder))
    launcher = read_state(folder).launcher
    os.rename(folder, folder.with_name("removed"))
    assert watcher.wait(20) == 1
    assert launcher.process() is None
    assert not folder.exists()


def test_a_second_supervisor_is_refused(folder, capsys):
    watcher = supervise(folder, "--steps", 100000)
    until(lambda: started(folder))
    assert main([str(folder), "--resume"]) == 1
    assert "runs already" in capsys.readouterr().err
    assert read_state(folder).generation == 0
    kill(read_state(folder).supervisor)
    watcher.wait(10)
    assert locks.held_workers(folder) == [0]
    until(lambda: not locks.held_workers(folder))


def test_a_start_by_hand_forgets_an_old_stop(folder):
    control.send(folder, "stop")
    command = [sys.executable, "-m", "nbllm.train.supervisor", str(folder)]
    subprocess.run([*command, "--worker", json.dumps(fake("--steps", 3))], timeout=30, check=True)
    assert read_state(folder).phase == "done"
    control.send(folder, "stop")
    subprocess.run([*command, "--resume", "--worker", json.dumps(fake("--steps", 6))], timeout=30, check=True)
    assert read_state(folder).phase == "done"
    assert read_state(folder).generation == 1
    assert MetricsReader(folder / "metrics.jsonl").poll()[-1]["step"] == 6


def test_heartbeats_go_on_and_the_log_takes_all_output(folder):
    watcher = supervise(folder, "--steps", 100000, patience={"heartbeat": 0.2})
    until(lambda: started(folder))
    first = read_state(folder).heartbeat
    until(lambda: read_state(folder).heartbeat > first)
    assert abs(read_state(folder).heartbeat - time.time()) < 60
    watcher.terminate()
    watcher.wait(20)


def test_an_unreadable_control_file_does_not_end_the_training(folder):
    watcher = supervise(folder, "--deaf", "--steps", 60)
    until(lambda: started(folder))
    (folder / "control.json").write_text("{")
    assert watcher.wait(20) == 0
    assert read_state(folder).phase == "done"
    assert "The supervisor goes on after" in (folder / "worker.log").read_text()


def test_a_fork_in_a_worker_does_not_keep_its_lock(tmp_path):
    script = (
        "import os, sys, time; from pathlib import Path; from nbllm.train import locks\n"
        f"lock = locks.take(Path({str(tmp_path / 'worker-0.lock')!r}))\n"
        "child = os.fork()\n"
        "if child == 0: time.sleep(60)\n"
        f"Path({str(tmp_path / 'child')!r}).write_text(str(child)); os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", script], timeout=20, check=True)
    child = psutil.Process(int((tmp_path / "child").read_text()))
    try:
        until(lambda: locks.held_workers(tmp_path) == [], 5)
        assert child.is_running()
    finally:
        child.kill()
