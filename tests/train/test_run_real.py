"""The handle, the supervisor, accelerate and the real worker together."""

from __future__ import annotations

import pytest
from stand_in import kill, until
from worker_kit import Kit

from nbllm.errors import RunError
from nbllm.store import Store
from nbllm.train import Run, runs, start

pytestmark = pytest.mark.slow


@pytest.fixture
def kit(tmp_path):
    kit = Kit(tmp_path / ".nbllm")
    yield kit
    for run in runs(kit.store):
        kill(*run.processes)


def test_a_training_in_all_its_turns(kit):
    run = start(kit.store, kit.config(steps=100000, save_every=10, eval_every=10), base="real")
    until(lambda: run.status == "running" and run.checkpoints, 120)
    assert run.pause() == "paused"
    run.set_lr_factor(0.5)
    assert Run(Store(kit.store.root), run.name).resume() == "running"
    until(lambda: run.metrics()["lr"].to_pylist()[-1] < max(run.metrics()["lr"].to_pylist()) * 0.6, 60)
    assert run.stop() == "stopped"
    last = run.checkpoints[-1].step
    assert run.metrics()["step"].to_pylist() == list(range(1, last + 1))
    assert run.metrics()["loss"][0].as_py() > run.metrics()["loss"][-1].as_py()
    run.resume()
    until(lambda: len(run.checkpoints) and run.checkpoints[-1].step > last, 120)
    kill(*run.processes)
    until(lambda: run.status == "died")
    assert f"last good checkpoint is step {run.checkpoints[-1].step}" in run.error
    assert run.metrics()["step"].to_pylist()[:last] == list(range(1, last + 1))


def test_a_killed_worker_is_resumed_to_the_same_losses_bit_for_bit(kit):
    config = kit.config(steps=60, save_every=10, eval_every=20)
    whole = start(kit.store, config, name="whole")
    assert whole.wait(120) == "done"
    cut = start(kit.store, config, name="cut")
    until(lambda: cut.checkpoints and cut.state.workers, 120)
    kill(*cut.state.workers)
    with pytest.raises(RunError, match=r"cut died: .*last good checkpoint is step \d+"):
        cut.wait(60)
    assert cut.status == "died"
    cut.resume()
    assert cut.wait(120) == "done"
    for column in ("step", "loss", "eval_loss"):
        assert cut.metrics()[column].to_pylist() == whole.metrics()[column].to_pylist()


def test_two_runs_of_two_processes_at_once(kit):
    config = kit.config(steps=12, save_every=4, processes=2)
    both = [start(kit.store, config, base="twin") for _ in "ab"]
    assert [run.wait(240) for run in both] == ["done", "done"]
    for run in both:
        begun = run.events("start")[0]
        assert (begun["world_size"], begun["wrapper"]) == (2, "DistributedDataParallel")
    assert both[0].metrics()["loss"].to_pylist() == both[1].metrics()["loss"].to_pylist()


def test_a_mistake_in_the_config_is_one_line(kit):
    run = start(kit.store, kit.config(model="llama-nan"), name="mistake")
    with pytest.raises(RunError, match=r"^Run mistake failed: llama-nan is neither .* llama-nano\?$") as caught:
        run.wait(120)
    assert "Traceback" not in str(caught.value)
    run = start(kit.store, kit.config(seq_len=200000), name="short")
    with pytest.raises(RunError, match="1,854 tokens, fewer than one sequence of 200,000"):
        run.wait(120)


def test_a_killed_worker_of_two_ends_the_other(kit):
    run = start(kit.store, kit.config(steps=100000, save_every=4, processes=2), name="pair")
    until(lambda: run.checkpoints and len(run.state.workers) >= 2, 120)
    workers = run.state.workers
    kill(workers[1])
    with pytest.raises(RunError, match=r"pair died: A worker was killed \(SIGKILL\).*last good checkpoint is step"):
        run.wait(120)
    assert not any(worker.process() for worker in workers)
    assert not run.alive
