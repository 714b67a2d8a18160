"""A run and the life of the kernel that started it: interrupt, restart, attach, stop from a terminal."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import KernelManager

from nbllm.store import Store
from nbllm.train import Run

SETUP = """
%load_ext nbllm
texts = [f"Return item number {n} of the list, or raise an IndexError that names {n}." for n in range(400)]
session = __import__("nbllm").session()
session.clean(texts=texts, recipe="none", name="small")
session.train_tokenizer(vocab_size=400)
"""


class Kernel:
    """A real kernel in a folder."""

    def __init__(self, folder: Path) -> None:
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(cwd=str(folder))
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def run(self, code: str, timeout: float = 120) -> str:
        """Runs a cell and gives what it printed, and its error's last line."""
        output: list[str] = []

        def collect(message: dict[str, Any]) -> None:
            content = message["content"]
            if message["msg_type"] == "stream":
                output.append(content["text"])
            elif message["msg_type"] == "error":
                output.append("\n".join(content["traceback"]))

        self.client.execute_interactive(code, timeout=timeout, output_hook=collect)
        return "".join(output)

    def reply(self, request: str) -> dict[str, Any]:
        """The content of the reply to an `execute`."""
        while True:
            message = self.client.get_shell_msg(timeout=60)
            if message["parent_header"]["msg_id"] == request:
                return dict(message["content"])

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    kernel = Kernel(tmp_path)
    yield kernel
    kernel.close()
    for folder in (tmp_path / ".nbllm" / "runs").glob("[!.]*"):
        Run(Store(tmp_path / ".nbllm"), folder.name).stop()


def until(run: Run, step: int, timeout_s: float = 120) -> None:
    """Waits until a run has taken a step."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        last = run.metrics()
        if last.num_rows and last.column("step")[-1].as_py() >= step:
            return
        time.sleep(0.2)
    raise AssertionError(f"step {step} wasn't reached: {run!r}\n{run.log()}")


def test_run_outlives_interrupt_and_restart_and_is_stopped_while_the_kernel_is_busy(
    kernel: Kernel, tmp_path: Path
) -> None:
    kernel.run(SETUP)
    options = "--steps 100000 --seq-len 32 --batch-size 1 --eval-every 0 --save-every 0 --name long"
    assert "Error" not in kernel.run(f"%llm_train {options}")
    run = Run(Store(tmp_path / ".nbllm"), "long")
    until(run, 3)

    # the same cell again re-attaches, and an interrupt of a waiting cell leaves the run on
    waiting = kernel.client.execute(f"%llm_train {options} --wait")
    time.sleep(3)
    kernel.manager.interrupt_kernel()
    interrupted = kernel.reply(waiting)
    assert interrupted["traceback"] == ["Interrupted: the run long goes on. Stop it with %llm_train --stop long"]
    reached = run.metrics().column("step")[-1].as_py()
    until(run, reached + 3)
    assert [one.name for one in _runs(tmp_path)] == ["long"]

    kernel.manager.restart_kernel(now=True)
    kernel.client.wait_for_ready(timeout=60)
    greeting = kernel.run("%load_ext nbllm")
    assert "live: long" in greeting
    assert "%llm_train --attach long" in greeting
    attached = kernel.run("run = %llm_train --attach long\nprint(run.status, run.metrics().num_rows >= 3)")
    assert "running True" in attached

    kernel.client.execute("import time; time.sleep(60)")  # busy
    stopped = subprocess.run(
        [sys.executable, "-m", "nbllm", "stop", "long"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert stopped.returncode == 0, stopped.stderr
    assert "stopped" in stopped.stdout
    assert run.status == "stopped"
    assert run.checkpoints[-1].step >= reached
    kernel.manager.interrupt_kernel()


def _runs(folder: Path) -> list[Run]:
    from nbllm.train import runs

    return runs(Store(folder / ".nbllm"))


def test_streamed_text_is_one_output_that_grows(kernel: Kernel) -> None:
    outputs: dict[str, list[str]] = {}

    def collect(message: dict[str, Any]) -> None:
        content = message["content"]
        if message["msg_type"] in ("display_data", "update_display_data"):
            outputs.setdefault(content["transient"]["display_id"], []).append(content["data"]["text/plain"])

    kernel.client.execute_interactive(
        "import time\nfrom nbllm.magics.display import Stream\nstream = Stream()\n"
        "for n in range(40): stream.write(f'{n} '); time.sleep(0.01)\nstream.flush()",
        output_hook=collect,
        timeout=60,
    )
    (shown,) = outputs.values()
    assert shown[-1] == " ".join(map(str, range(40))) + " "
    assert 2 <= len(shown) <= 12
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(shown))
