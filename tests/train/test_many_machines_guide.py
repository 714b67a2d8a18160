"""The guide from one laptop to many machines: its blocks, run as they stand, two machines being two processes here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nbllm.store import Store
from nbllm.train import Run
from nbllm.train.launch import free_port

GUIDE = Path(__file__).parents[2] / "notebooks" / "many-machines.md"


def blocks(store: Path) -> list[str]:
    """The shell blocks, for a store of this test and a first machine that is this one."""
    text = GUIDE.read_text(encoding="utf-8")
    text = text.replace("/shared/.nbllm", str(store)).replace("FIRST:29500", f"127.0.0.1:{free_port()}")
    return re.findall(r"```bash\n(.*?)```", text, flags=re.S)


def begin(block: str, tmp_path: Path) -> subprocess.Popen[str]:
    """A shell that runs a block, and stops at the first line that fails."""
    (tmp_path / "bin").mkdir(exist_ok=True)
    python = tmp_path / "bin" / "python"
    if not python.exists():
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        python.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "NBLLM_HOME": str(tmp_path / "shared"),
        "OMP_NUM_THREADS": "1",
    }
    command = ["bash", "-euc", block]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, env=environment, cwd=tmp_path, text=True, **pipe)


def said(shell: subprocess.Popen[str]) -> str:
    output = shell.communicate(timeout=240)[0]
    assert shell.returncode == 0, output[-3000:]
    return output


@pytest.mark.slow
def test_every_block_of_the_guide(tmp_path: Path) -> None:
    store = Store(tmp_path / "shared")
    prepare, one, two, first, second, watch = blocks(store.root)
    assert "Nothing was started." in said(begin(prepare, tmp_path))
    said(begin(one, tmp_path))
    said(begin(two, tmp_path))
    machines = [begin(first, tmp_path), begin(second, tmp_path)]
    for machine in machines:
        said(machine)
    losses = {name: Run(store, name).metrics().column("loss").to_pylist() for name in ("one", "two", "both")}
    assert [len(values) for values in losses.values()] == [20, 20, 20]
    # the same batches, however they are split: the sums are rounded in another order
    assert losses["two"] == pytest.approx(losses["one"], rel=2e-3)
    assert losses["both"] == pytest.approx(losses["one"], rel=2e-3)
    assert not (store.root / "runs/both-1/checkpoints").exists()
    assert "both" in said(begin(watch.splitlines()[0], tmp_path))


def test_the_guide_names_only_options_that_exist() -> None:
    from nbllm.commands import COMMANDS

    for block in blocks(Path("/store")):
        for line in block.splitlines():
            words = line.split()
            if words[:3] == ["python", "-m", "nbllm"] and f"llm_{words[3]}" in COMMANDS:
                COMMANDS[f"llm_{words[3]}"].parse(" ".join(words[4:]))
