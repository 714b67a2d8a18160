"""`import nbllm` takes under 200 ms: whole interpreter runs with and without it, in turn.

    python benchmarks/import_time.py

Writes `results/import_time.json` with versions and hardware. The bound is a property of the code (it loads neither
torch nor transformers nor ipywidgets, which a test checks); the time is measured here, never in a test.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from kept import keep

LIMIT_MS = 200
ROUNDS = 20


def seconds(code: str) -> float:
    """Wall-clock seconds of one interpreter that runs `code`."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - start


def main() -> int:
    """Measures, prints and keeps; returns 1 when the bound is missed."""
    seconds("import nbllm")  # the first one compiles
    pairs = [(seconds("import nbllm"), seconds("pass")) for _ in range(ROUNDS)]
    ours_ms = statistics.median(with_ - without for with_, without in pairs) * 1000
    print(f"import nbllm: {ours_ms:.0f} ms (limit {LIMIT_MS} ms), median of {ROUNDS} pairs")
    keep("import_time", {"import_ms": round(ours_ms, 1), "limit_ms": LIMIT_MS, "rounds": ROUNDS})
    return int(ours_ms >= LIMIT_MS)


if __name__ == "__main__":
    sys.exit(main())
