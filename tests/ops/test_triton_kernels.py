"""Every Triton kernel under Triton's interpreter, in a process of its own; see kernel_checks.py."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = Path(__file__).with_name("kernel_checks.py")
GROUPS = (
    ("rms_norm", "swiglu", "rope"),
    ("linear_loss", "sure_rows", "ignored_rows_in_a_chunk", "linear_loss_chunks"),
    ("far_offsets", "through_autograd"),
)


@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None and not ("CI" in os.environ and sys.platform == "linux"),
    reason="Triton isn't installed here: nothing is checked",
)
@pytest.mark.parametrize("names", GROUPS, ids="+".join)
def test_kernels_are_as_near_to_float64_as_plain_pytorch(names: tuple[str, ...]) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, CHECKS, *names], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_every_check_is_run() -> None:
    text = CHECKS.read_text(encoding="utf-8")
    defined = {line[len("def check_") : line.index("(")] for line in text.splitlines() if line.startswith("def check_")}
    assert defined - {"loss"} == {name for names in GROUPS for name in names}
