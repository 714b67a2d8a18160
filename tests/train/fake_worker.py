"""A stand-in for the training worker that follows the files' contract without torch, and can misbehave when asked to.

Called as `fake_worker.py [options] FOLDER [--resume]`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from nbllm.errors import UsageError
from nbllm.train import control, locks
from nbllm.train.checkpoint import close_draft, newest, open_draft
from nbllm.train.phase import read_state

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--step-s", type=float, default=0.02)
parser.add_argument("--save-every", type=int, default=5)
parser.add_argument("--deaf", action="store_true", help="ignores commands and TERM")
parser.add_argument("--crash-at", type=int, default=-1)
parser.add_argument("--refuse", action="store_true", help="ends at once with an error of nbllm's")
parser.add_argument("--late", type=float, default=0.0, help="seconds before the first step")
parser.add_argument("--port-taken", type=int, default=0, help="so often, ends at once since its port is in use")
parser.add_argument("--launcher", action="store_true", help="starts itself again as a child and waits for it")
parser.add_argument("folder", type=Path)
parser.add_argument("--resume", action="store_true")
options = parser.parse_args()

if options.launcher:
    command = [argument for argument in sys.argv if argument != "--launcher"]
    subprocess.run([sys.executable, *command], start_new_session=True, check=True)  # as accelerate's launcher fails
    sys.exit()
if options.refuse:
    print("some chatter", flush=True)
    raise UsageError("--lr must be above 0", received=-1.0)
tries = options.folder / "tries"
tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
if len(tries.read_text()) <= options.port_taken:
    raise OSError("[Errno 98] EADDRINUSE: address already in use")
if options.deaf:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

folder: Path = options.folder
lock = locks.take(folder / locks.worker_lock(0))
assert lock is not None, "another worker holds the lock"
time.sleep(options.late)
generation = read_state(folder).generation
checkpoint = newest(folder) if options.resume else None
first = checkpoint.step if checkpoint else 0
seen = control.acknowledged(folder)
metrics = (folder / "metrics.jsonl").open("a")
paused = stop = False


def write(**event: object) -> None:
    metrics.write(json.dumps(event) + "\n")
    metrics.flush()


def save(step: int) -> None:
    (open_draft(folder, step) / "weights").write_text(str(step))
    close_draft(folder, step, generation=generation, eval_loss=2.0, bits_per_byte=1.0)
    write(kind="checkpoint", step=step, path=f"step-{step:08d}")


write(kind="start", generation=generation, step=first, total_steps=options.steps, world_size=1)
step = first
while step < options.steps and not stop:
    if not options.deaf:
        asked = control.read_control(folder)
        for _, command in asked.after(seen):
            stop = stop or command == "stop"
            if command == "checkpoint":
                save(step)
            if command in ("pause", "resume"):
                paused = command == "pause"
        if asked.sequence > seen:
            seen = asked.sequence
            control.acknowledge(folder, seen)
        if not locks.is_held(folder / locks.SUPERVISOR_LOCK):
            print("the supervisor is gone", flush=True)
            stop = True
        if stop:
            break
        if paused:
            time.sleep(0.02)
            continue
    step += 1
    if step == options.crash_at:
        raise ValueError(f"step {step} went wrong")
    loss = "NaN" if step == 3 else 5.0 / step
    factor = 1.0 if options.deaf else control.read_control(folder).lr_factor
    write(kind="step", generation=generation, step=step, loss=loss, lr=0.1 * factor, grad_norm=1.0, tokens=step * 100)
    if step % options.save_every == 0:
        write(kind="eval", step=step, eval_loss=4.0 / step, bits_per_byte=1.0 / step)
        save(step)
    time.sleep(options.step_s)
save(step)
write(kind="end", step=step, status="stopped" if stop else "done")
os._exit(0)
