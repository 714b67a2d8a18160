"""Every kernel compiles for GPUs that aren't here, and spills nothing: `ptxas -v` and the amdgcn text say so."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TARGETS = {"sm_80", "sm_90", "gfx942"}


@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None and not ("CI" in os.environ and sys.platform == "linux"),
    reason="Triton isn't installed here: nothing is compiled",
)
def test_the_heaviest_kernels_spill_nothing_on_three_architectures(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    heaviest = ["rms_norm 8,192 + residual b", "swiglu b", "rope 256 b", "loss and gradient, with"]
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "kernels_aot.py", "--print", "--only", *heaviest],
        env={**environment, "TRITON_CACHE_DIR": str(tmp_path)}, capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert {use["target"] for use in found} == TARGETS
    assert len(found) == 4 * len(TARGETS)
    assert all(use["spilled"] == 0 and use["registers"] > 0 for use in found)


def test_the_table_that_is_kept_has_every_kernel_and_no_spill() -> None:
    rows = json.loads((BENCHMARKS / "results" / "kernels_aot.json").read_text(encoding="utf-8"))["kernels"]
    assert {row["target"] for row in rows} == TARGETS
    assert not any(row["spilled"] for row in rows)
    names = {row["kernel"].split()[0] for row in rows}
    assert names == {"rms_norm", "swiglu", "rope", "loss"}
