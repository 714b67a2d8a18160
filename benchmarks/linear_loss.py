"""The loss of a vocabulary's head: time and memory of ours, the plain formula and PyTorch's chunked one, interleaved.

    python benchmarks/linear_loss.py [--rounds 3] [--rows 4096 16384]

Width 576 and vocabulary 49,152 (SmolLM2-135M's head), fp32, forward and backward, gradients for hidden and weight. A
masked-LM case has 15 % of the rows as targets: ours leaves the others out, and is compared with ours over all rows.
Each measurement is a process of its own; the memory is the most that it had resident beyond its inputs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

WIDTH, VOCABULARY = 576, 49_152


def measure(kind: str, rows: int, share: float) -> dict[str, float]:
    import resource

    import torch
    import torch.nn.functional as F

    from nbllm.ops import linear_cross_entropy

    torch.manual_seed(0)
    hidden = torch.randn(rows, WIDTH, requires_grad=True)
    weight = (torch.randn(VOCABULARY, WIDTH) / WIDTH**0.5).requires_grad_()
    targets = torch.randint(VOCABULARY, (rows,))
    if share < 1:
        targets[torch.rand(rows) >= share] = -100

    def loss(count: int) -> torch.Tensor:
        h, y = hidden[:count], targets[:count]
        if kind == "plain":
            return F.cross_entropy(F.linear(h, weight), y, reduction="sum")
        if kind == "torch":
            options = torch.nn.LinearCrossEntropyOptions()
            return F.linear_cross_entropy(h, weight, y, reduction="sum", options=options)
        return linear_cross_entropy(h, weight, y).loss

    loss(8)  # loads what is loaded once
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    value = loss(rows)
    value.backward()
    seconds = time.perf_counter() - began
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    return {"seconds": seconds, "peak_bytes": peak, "loss": float(value.detach()) / max(1, int((targets >= 0).sum()))}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, nargs="*", default=[4096, 16_384])
    parser.add_argument("--one", nargs=3)
    options = parser.parse_args()
    if options.one:
        kind, rows, share = options.one
        print(json.dumps(measure(kind, int(rows), float(share))))
        return
    cases = [(rows, kind, 1.0) for rows in options.rows for kind in ("ours", "plain", "torch")]
    cases.append((options.rows[0], "ours", 0.15))
    found: dict[tuple[int, str, float], list[dict[str, float]]] = {case: [] for case in cases}
    for _ in range(options.rounds):
        for rows, kind, share in cases:
            arguments = [sys.executable, __file__, "--one", kind, str(rows), str(share)]
            output = subprocess.run(arguments, check=True, capture_output=True, text=True).stdout
            found[rows, kind, share].append(json.loads(output))
    from kept import keep

    table = []
    for (rows, kind, share), values in found.items():
        seconds, peak = (statistics.median(value[key] for value in values) for key in ("seconds", "peak_bytes"))
        line = {
            "rows": rows,
            "kind": kind,
            "targets": share,
            "seconds": round(seconds, 3),
            "peak_mb": round(peak / 1e6),
        }
        table.append({**line, "loss": values[0]["loss"], "all": [round(value["seconds"], 3) for value in values]})
        print(f"{rows:>6} rows, {share:4.0%} targets, {kind:<6} {seconds:7.2f} s  {peak / 1e6:7.0f} MB more")
    keep("linear_loss", {"width": WIDTH, "vocabulary": VOCABULARY, "dtype": "float32", "rows": table})


if __name__ == "__main__":
    main()
