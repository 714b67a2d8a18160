"""Loads one model in a process of its own and says how long that took and how much memory: `python -m
nbllm.bench.load_worker JOB`.

A notebook's process holds the model already, and what it holds would hide in what it measures. JOB is JSON: `path`,
`dtype`, `device`, `adapter`, `quantize`, `compiled`, `prompt`; the answer is the last line of the output, as JSON.
Imports aren't in the time. Knows models and the step, no other program.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def load(job: dict[str, Any]) -> dict[str, Any]:
    """Loads, continues the prompt by a few tokens, and returns `load_s` and `peak_bytes`."""
    import transformers  # noqa: F401  its import isn't the model's loading

    from nbllm.adapters import attach, prepare_base
    from nbllm.bench.measure import decode, growth
    from nbllm.model import load, quantize
    from nbllm.sample.forward import Forward

    with growth(job["device"]) as memory:
        started = time.perf_counter()
        model = load(job["path"], dtype=job["dtype"], device=job["device"]).eval()
        if job["adapter"]:
            prepare_base(model, job["adapter"])
            attach(model, job["adapter"])
        if job["quantize"]:
            model = quantize(model, job["quantize"])
        runtime = Forward(model)
        if not job["compiled"]:
            runtime.compiled.switch_off()
        elif not runtime.compiled.wait():
            raise RuntimeError(f"not compiled: {runtime.compiled.why_not}")
        loaded_s = time.perf_counter() - started
        decode(runtime, job["prompt"], 1, 4)
    return {"load_s": loaded_s, "peak_bytes": memory.peak_bytes}


if __name__ == "__main__":
    print(json.dumps(load(json.loads(sys.argv[1]))))
