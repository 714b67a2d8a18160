"""Training on GPUs in about five minutes: tokens/s and share of the peak by precision and plan, and equal losses.

    python benchmarks/gpu_training.py            # llama-small where memory allows; --model llama-nano to try it out

One device: fp32, bf16, fp16, and bf16 compiled. Two or more: each plan in bf16 over all devices. Without a GPU it
says so and ends with exit code 2, which is no pass. The share of the peak (MFU) counts 6 operations a parameter and
token plus attention's 6 layers x width x T (PaLM, appendix B, https://arxiv.org/abs/2204.02311, causal), against the
dense bf16 peak of the device, where it is known. Not yet measured on a GPU.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from kept import keep

_PEAK_TFLOPS = {"A100": 312, "H100": 989, "H200": 989, "L40S": 362, "RTX 4090": 165, "L4": 121}
"""Dense bf16 with fp32 accumulation, from the vendor's data sheets."""
_SEQ_LEN, _BATCH = 512, 16


def main() -> int:
    """Runs all, prints a table, keeps the result; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="llama-small")
    parser.add_argument("--steps", type=int, default=30)
    given = parser.parse_args()
    import torch

    count = torch.cuda.device_count()
    if count == 0:
        print("No CUDA device here: nothing was measured, nothing passed.", file=sys.stderr)
        return 2
    from nbllm.sessions import Session
    from nbllm.store import Store

    name = torch.cuda.get_device_name(0)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        session = Session(Store(Path(folder) / ".nbllm"), "gpu")
        session.clean("builtin:pydocs", name="pydocs")
        session.train_tokenizer(vocab_size=8192)
        common = {"model": given.model, "steps": given.steps, "seq_len": _SEQ_LEN, "eval_every": 0, "save_every": 0}
        alone = [{"precision": precision} for precision in ("fp32", "bf16", "fp16")]
        alone.append({"precision": "bf16", "compile": True})
        for wishes in alone:
            rows.append(_measure(session, name, {**common, **wishes, "processes": 1, "batch_size": _BATCH}))
        if count > 1:
            for plan in ("ddp", "fsdp", "tp", "pp", *(("fsdp,tp",) if count % 2 == 0 and count > 2 else ())):
                shares = {"ddp": count, "fsdp": count, "fsdp,tp": count // 2}.get(plan, 1)
                wishes = {"parallel": plan, "precision": "bf16", "optimizer": "adamw", "processes": count}
                rows.append(_measure(session, name, {**common, **wishes, "batch_size": _BATCH * count // shares}))
        else:
            print("One device: the plans of several weren't measured.")
    print(f"kept in {keep('gpu_training', {'device': name, 'devices': count, 'runs': rows})}")
    return 1 if any("error" in row for row in rows) else 0


def _measure(session: Any, device: str, wishes: dict[str, Any]) -> dict[str, Any]:
    """One run: the median tokens/s of its second half, memory, the last loss, the share of the peak."""
    from nbllm.errors import NbllmError

    label = {key: wishes[key] for key in ("parallel", "precision", "compile", "processes") if key in wishes}
    try:
        run = session.train(wait=True, **wishes)
    except NbllmError as error:
        print(label, "failed:", error)
        return {**label, "error": str(error)}
    start, steps = run.events("start")[0], run.events("step")
    late = sorted(step["tokens_per_s"] for step in steps[len(steps) // 2 :])
    speed = late[len(late) // 2]
    row = {**label, "tokens_per_s": speed, "memory_bytes": steps[-1]["memory_bytes"], "loss": steps[-1]["loss"]}
    peak = next((value for key, value in _PEAK_TFLOPS.items() if key in device), None)
    if peak is not None:
        from nbllm.model import find_preset

        shape = find_preset(wishes["model"])
        operations = 6 * start["parameters"] + 6 * shape.layers * shape.width * _SEQ_LEN
        row["mfu"] = speed * operations / (peak * 1e12 * wishes["processes"])
    print(row)
    return row


if __name__ == "__main__":
    sys.exit(main())
