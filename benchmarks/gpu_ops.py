"""The fused ops on a GPU in under four minutes: right against float64; timed against eager, torch.compile, Liger.

    python benchmarks/gpu_ops.py                 # pip install "nbllm[triton]" liger-kernel, for every form

Two sets of shapes (SmolLM2-135M's with 16,384 rows, Llama-3-8B's with 8,192), then training steps of a model with
`--fused off`, `torch` and `triton`: milliseconds, peak memory, losses. Shares are of the roofline that the same run
measures. What was right and faster is kept where `--fused auto` looks. Without a GPU it says so and ends with exit code
2, which is no pass; something wrong is exit code 1. Not yet measured on a GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time
from typing import Any

from kept import keep

_STEPS = 8


def main() -> int:
    """Runs all, prints tables, keeps the result; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="llama-small", help="a preset; its training steps are measured")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=1024)
    given = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("No CUDA device here: nothing was measured, nothing passed.", file=sys.stderr)
        return 2
    from nbllm import ops
    from nbllm.bench.op_forms import Shapes
    from nbllm.bench.ops import compare_ops

    problem = ops.triton_problem()
    if problem is not None:
        print(problem, file=sys.stderr)
        return 2
    large = Shapes(
        rows=8192, width=4096, inner=14_336, vocabulary=128_256, heads=32, key_heads=8, head_size=128
    )  # Llama-3-8B's
    found = []
    for shapes in (large, Shapes(rows=16_384)):  # the last one decides what auto takes
        found.append(compare_ops(shapes=shapes))
        print(found[-1], end="\n\n")
    steps = [_train(given.model, fused, given.batch, given.seq_len) for fused in ("off", "torch", "triton")]
    for step in steps:
        print(step)
    record = {"ops": [dataclasses.asdict(bench) for bench in found], "training": steps}
    print(f"kept in {keep('gpu_ops', record)}")
    wrong = [row for bench in found for row in bench.rows if row.form.startswith("nbllm") and row.right is not True]
    apart = max(abs(step["loss"] - steps[0]["loss"]) for step in steps) > 2e-2 * abs(steps[0]["loss"])
    for row in wrong:
        print(f"not right: {row.op} by {row.form}: {row.error} {row.problem or ''}", file=sys.stderr)
    if apart:
        print("the losses of the training steps differ", file=sys.stderr)
    return 1 if wrong or apart else 0


def _train(preset: str, fused: str, batch: int, seq_len: int) -> dict[str, Any]:
    """Steps of a fresh model under bf16 autocast: median time, the most memory, the loss of the last."""
    import torch

    from nbllm.model import build
    from nbllm.train import fused as kernels
    from nbllm.train.loss_model import LossModel

    ends = dict.fromkeys(("bos_id", "eos_id", "pad_id"))
    model = build(preset, vocab_size=49_152, max_length=seq_len, seed=0, **ends).to("cuda").train()
    taken = kernels.choose(model, fused=fused)
    whole = LossModel(model, fused="torch" if fused == "triton" else fused, settings={})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(49_152, (batch, seq_len), device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    positions = torch.arange(seq_len, device="cuda").expand_as(ids)
    times, loss = [], 0.0
    torch.cuda.reset_peak_memory_stats()
    for _ in range(_STEPS):
        torch.cuda.synchronize()
        started = time.perf_counter()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            nats = whole(ids, ids.roll(-1, 1), positions) / ids.numel()
        nats.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
        loss = float(nats.detach())
    return {
        "fused": fused,
        "active": taken.event(whole.fused, whole.why)["fused_summary"],
        "ms": statistics.median(times[2:]) * 1e3,
        "tokens_per_s": ids.numel() / statistics.median(times[2:]),
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "loss": loss,
    }


if __name__ == "__main__":
    sys.exit(main())
