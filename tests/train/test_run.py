"""The handle: start, watch, steer, find again; and what it says of runs that ended in every way a run can end."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time

import psutil
import pytest
from stand_in import fake, held, kill, until

from nbllm.errors import NotFoundError, RunError, StoreError, UsageError
from nbllm.train import Run, control, live_runs, locks, runs
from nbllm.train.phase import read_state


def test_a_run_from_start_to_end(store, begin_run):
    seen = []
    run = begin_run("first")
    assert run.status in ("starting", "running")
    assert [one.name for one in live_runs(store)] == ["first"]
    assert run.wait(60, progress=lambda handle, events: seen.extend(events)) == "done"
    until(lambda: not run.alive)
    table = run.metrics()
    assert table["step"].to_pylist() == list(range(1, 21))
    assert table["loss"][0].as_py() == 5.0
    assert math.isnan(table["loss"][2].as_py())
    assert table["eval_loss"].to_pylist()[4] == 4.0 / 5
    assert table["eval_loss"][0].as_py() is None
    assert table["tokens"].to_pylist()[-1] == 2000
    assert [event["step"] for event in seen if event["kind"] == "step"] == list(range(1, 21))
    assert [checkpoint.step for checkpoint in run.checkpoints] == [5, 10, 15, 20]
    assert run.total_steps == 20
    assert run.error is None
    assert live_runs(store) == []
    assert [one.name for one in runs(store)] == ["first"]
    assert repr(run) == "<Run first: done, step 20 of 20, loss 0.250, held-out 0.200>"
    state = read_state(run.folder)
    assert (state.phase, state.exit_code, state.launcher, state.generation) == ("done", 0, None, 0)
    assert run.stop() == "done"
    with pytest.raises(RunError, match="done"):
        run.resume()
    with pytest.raises(RunError, match="nothing to pause"):
        run.pause()


def test_starting_returns_at_once_and_leaves_no_child(begin_run):
    run = begin_run("quick", "--steps", 1000)
    assert run.status in ("starting", "running")
    until(lambda: run.status == "running")
    mine = {process.pid for process in psutil.Process().children(recursive=True)}
    state = read_state(run.folder)
    assert state.supervisor.pid not in mine
    assert os.getsid(state.supervisor.pid) != os.getsid(0)
    assert run.stop() == "stopped"


def test_names(store, begin_run):
    run = begin_run(None, "--steps", 1)
    assert len(run.name.split("-")) == 2
    assert begin_run(None, "--steps", 1, base="nano").name == "nano"
    assert begin_run(None, "--steps", 1, base="nano").name == "nano-2"
    with pytest.raises(StoreError, match=r"already named 'nano'.*--name"):
        begin_run("nano")
    with pytest.raises(UsageError):
        begin_run("../up")
    with pytest.raises(NotFoundError, match="nano"):
        Run(store, "nanu")
    assert not [entry for entry in (store.root / "runs").iterdir() if entry.name.startswith(".")]


def test_two_at_once_with_one_base_get_two_names(store, begin_run):
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(begin_run(None, "--steps", 1, base="twin").name)) for _ in "abc"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == ["twin", "twin-2", "twin-3"]


def test_pause_resume_checkpoint_and_learning_rate(store, begin_run):
    run = begin_run("steered", "--steps", 100000, "--save-every", 1000000)
    until(lambda: run.events("step"))
    assert run.pause() == "paused"
    step = run.metrics().num_rows
    time.sleep(0.3)
    assert run.metrics().num_rows == step
    until(lambda: read_state(run.folder).phase == "paused")
    assert Run(store, "steered").status == "paused"
    run.set_lr_factor(0.5)
    run.checkpoint()
    assert run.status == "paused"
    assert [one.step for one in run.checkpoints] == [step]
    assert run.resume() == "running"
    assert run.lr_factor == 0.5
    until(lambda: run.metrics()["lr"].to_pylist()[-1] == 0.05)
    with pytest.raises(RunError, match=r"running already.*--attach steered"):
        run.resume()
    with pytest.raises(UsageError, match="factor"):
        run.set_lr_factor(float("nan"))
    assert run.stop() == "stopped"
    assert not run.alive
    assert len(run.checkpoints) == 2


def test_stop_from_another_process(store, begin_run):
    run = begin_run("remote", "--steps", 100000)
    until(lambda: run.status == "running")
    script = (
        "from nbllm.train.run import Run; from nbllm.store import Store; "
        f"print(Run(Store({str(store.root)!r}), 'remote').stop())"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert answer.stdout.strip() == "stopped", answer.stderr
    assert run.status == "stopped"


def test_a_stop_before_the_first_step(begin_run):
    run = begin_run("hasty", "--late", 60)
    assert run.stop() == "stopped"
    assert run.checkpoints == []


def test_an_interrupt_ends_the_waiting_and_not_the_run(begin_run):
    run = begin_run("awaited", "--steps", 100000)

    def interrupt(handle, events):
        if handle.status == "running":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.wait(30, progress=interrupt)
    assert run.status == "running"
    assert run.wait(timeout=0.1) == "running"


def test_a_worker_that_refuses_shows_its_line(begin_run):
    run = begin_run("refused", "--refuse")
    with pytest.raises(RunError) as caught:
        run.wait(30)
    assert str(caught.value) == "Run refused failed: --lr must be above 0 (received -1.0)."
    assert run.status == "failed"
    assert run.error == str(caught.value)
    assert "some chatter" in run.log()


def test_a_crash_names_the_last_checkpoint_and_a_resume_goes_on_from_it(begin_run):
    run = begin_run("crashed", "--crash-at", 13)
    with pytest.raises(RunError, match=r"ValueError: step 13 went wrong\. Its last good checkpoint is step 10\."):
        run.wait(30)
    until(lambda: not run.alive)
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "step", "st')
    assert run.metrics()["step"].to_pylist() == list(range(1, 13))
    assert run.resume(worker=fake()) in ("starting", "running")
    assert run.wait(30) == "done"
    assert run.metrics()["step"].to_pylist() == list(range(1, 21))
    assert [event["generation"] for event in run.events("start")] == [0, 1]
    assert [event["generation"] for event in run.events("step") if event["step"] in (10, 11)] == [0, 1]
    assert run.error is None
    assert read_state(run.folder).generation == 1


def test_a_run_whose_worker_was_killed_has_died(begin_run):
    run = begin_run("shot", "--launcher", "--steps", 100000)
    until(lambda: run.checkpoints and read_state(run.folder).workers)
    kill(*read_state(run.folder).workers)
    with pytest.raises(RunError, match=r"shot died: A worker was killed \(SIGKILL\).*good checkpoint is step \d+"):
        run.wait(30)
    assert run.status == "died"
    assert read_state(run.folder).exit_code != 0


def test_a_killed_launcher_takes_its_workers_along(begin_run):
    run = begin_run("headless", "--launcher", "--steps", 100000)
    until(lambda: run.checkpoints and read_state(run.folder).workers)
    state = read_state(run.folder)
    kill(state.launcher)
    with pytest.raises(RunError, match="died: The launcher was ended by SIGKILL"):
        run.wait(30)
    until(lambda: not run.alive)
    assert not any(worker.process() for worker in state.workers)


def test_a_run_killed_as_a_whole_has_died(store, begin_run):
    run = begin_run("dead", "--steps", 100000)
    until(lambda: len(run.checkpoints) >= 2)
    state = read_state(run.folder)
    kill(state.supervisor, state.launcher, *state.workers)
    until(lambda: run.status == "died")
    again = Run(store, "dead")
    last = again.checkpoints[-1].step
    assert again.status == "died"
    assert f"last good checkpoint is step {last}. Go on with %llm_train --resume dead." in again.error
    with pytest.raises(RunError, match="died"):
        again.wait()
    with pytest.raises(RunError, match=r"died: there is nothing to pause.*--resume dead"):
        again.pause()
    assert again not in live_runs(store)
    assert again.stop() == "died"
    again.resume(worker=fake("--steps", last + 3))
    assert again.wait(30) == "done"
    assert again.metrics()["step"].to_pylist() == list(range(1, last + 4))


def test_a_resume_waits_for_the_workers_of_a_dead_supervisor(begin_run):
    run = begin_run("orphan", "--steps", 100000, "--step-s", 0.5, "--save-every", 1000000)
    until(lambda: run.events("step") and run.status == "running")
    kill(read_state(run.folder).supervisor)
    until(lambda: not held(run))
    assert run.status == "running"
    assert locks.held_workers(run.folder) == [0]
    run.resume(worker=fake("--steps", 10))
    assert run.wait(30) == "done"
    starts = run.events("start")
    assert starts[1]["step"] == run.checkpoints[0].step > 0


def test_a_stop_of_an_orphan(begin_run):
    run = begin_run("lone", "--steps", 100000)
    until(lambda: run.events("step"))
    kill(read_state(run.folder).supervisor)
    assert run.stop() == "died"
    assert run.checkpoints


def test_only_one_of_two_resumes_starts(begin_run):
    run = begin_run("once", "--crash-at", 7)
    with pytest.raises(RunError):
        run.wait(30)
    until(lambda: not run.alive)
    results = []

    def resume():
        try:
            results.append(run.resume(worker=fake("--steps", 100000)))
        except RunError as error:
            results.append(str(error))

    threads = [threading.Thread(target=resume) for _ in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([one for one in results if "--attach once" in one]) == 1
    until(lambda: run.status == "running")


def test_a_zombie_is_not_alive(begin_run):
    from nbllm.train.phase import ProcessId

    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    one = ProcessId.of(child.pid)
    assert one.process() is not None
    child.kill()
    until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE)
    assert one.process() is None
    child.wait()
    assert one.process() is None
    assert ProcessId(pid=os.getpid(), created=1.0).process() is None


def test_a_supervisor_that_cannot_start_leaves_no_run(store, begin_run, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RunError, match="didn't start"):
        begin_run("nothing")
    assert runs(store) == []


def test_stale_commands_do_not_reach_the_next_generation(begin_run):
    run = begin_run("fresh", "--steps", 100000)
    until(lambda: run.events("step"))
    run.stop()
    control.send(run.folder, "stop")
    run.resume(worker=fake("--steps", run.checkpoints[-1].step + 5))
    assert run.wait(30) == "done"


def test_the_handle_imports_no_torch():
    heavy = ("torch", "transformers", "pyarrow", "IPython", "ipywidgets", "nbllm.sessions")
    script = f"import sys, nbllm.train.run, nbllm.train.supervisor; print([m for m in {heavy} if m in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
