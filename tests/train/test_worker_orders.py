"""Orders to a worker that trains: pause, checkpoint, rate, resume, stop, a signal, a supervisor that died."""

import os
import signal
import threading
import time

from worker_kit import Kit, events, kit, losses, train

from nbllm.train import checkpoint as disk
from nbllm.train import control, locks, trainer

__all__ = ["kit"]  # the fixture


def wait_for(folder, ready):
    """Until the metrics show something, at most a minute."""
    for _ in range(1200):
        with_events = events(folder) if (folder / "metrics.jsonl").exists() else []
        if ready(with_events):
            return with_events
        time.sleep(0.05)
    raise AssertionError("nothing happened in a minute")


def last_step(found):
    return max((event["step"] for event in found if event["kind"] == "step"), default=0)


def alongside(function):
    """Runs it on a thread while this one trains; returns what joins it and raises what it raised."""
    failed = []

    def guarded():
        try:
            function()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()

    def join():
        thread.join(60)
        if failed:
            raise failed[0]

    return join


def acknowledged(folder, sequence):
    for _ in range(1200):
        if control.acknowledged(folder) >= sequence:
            return
        time.sleep(0.05)
    raise AssertionError(f"request {sequence} was never acknowledged")


def test_orders_pause_checkpoint_rate_resume_and_stop(kit: Kit):
    folder = kit.run_folder("orders", steps=5000, lr=1e-3, schedule="constant", warmup=0)
    seen = {}

    def orders():
        wait_for(folder, lambda found: last_step(found) >= 3)
        acknowledged(folder, control.send(folder, "pause"))
        seen["paused"] = last_step(events(folder))
        time.sleep(0.5)
        seen["still"] = last_step(events(folder))
        acknowledged(folder, control.send(folder, "checkpoint"))
        seen["checkpoints"] = [checkpoint.step for checkpoint in disk.list_checkpoints(folder)]
        control.send_lr_factor(folder, 0.5)
        acknowledged(folder, control.send(folder, "resume"))
        wait_for(folder, lambda found: last_step(found) >= seen["paused"] + 3)
        acknowledged(folder, control.send(folder, "stop"))

    join = alongside(orders)
    assert train(folder) == "stopped"
    join()
    assert seen["still"] == seen["paused"]
    assert seen["checkpoints"] == [seen["paused"]]
    rates = {event["step"]: event["lr"] for event in events(folder, "step")}
    assert rates[seen["paused"]] == 1e-3
    assert rates[max(rates)] == 5e-4
    (end,) = events(folder, "end")
    assert end["status"] == "stopped"
    assert end["step"] == last_step(events(folder)) == disk.newest(folder).step < 5000


def test_a_terminated_run_says_so_and_goes_on_where_it_was(kit: Kit, monkeypatch):
    whole = kit.train("never-terminated", steps=6)
    folder = kit.run_folder("terminated", steps=6)
    original = trainer.Trainer._step

    def stepping(self, *given, **named):
        original(self, *given, **named)
        if self.progress.step == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(trainer.Trainer, "_step", stepping)
        assert train(folder) == "stopped"
    (end,) = events(folder, "end")
    assert (end["step"], end["reason"]) == (3, "the process was told to terminate")
    assert train(folder, resume=True) == "done"
    assert losses(folder) == losses(whole)


def test_a_worker_whose_supervisor_died_writes_a_checkpoint_and_leaves(kit: Kit):
    folder = kit.run_folder("orphan", steps=5000)
    held = locks.take(folder / locks.SUPERVISOR_LOCK)

    def die():
        wait_for(folder, lambda found: last_step(found) >= 2)
        assert locks.held_workers(folder) == [0]
        held.release()

    join = alongside(die)
    assert train(folder) == "stopped"
    join()
    (end,) = events(folder, "end")
    assert end["reason"] == "the supervisor is gone"
    assert disk.newest(folder).step == end["step"]
    assert locks.held_workers(folder) == []
