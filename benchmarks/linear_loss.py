"""The loss of a vocabulary's head: time and memory of ours, the plain formula and PyTorch's chunked one, interleaved.

    python benchmarks/linear_loss.py [--rounds 3] [--rows 4096 16384]
    python benchmarks/linear_loss.py --training FOLDER [--rounds 3]

Width 576 and vocabulary 49,152 (SmolLM2-135M's head), fp32, forward and backward, gradients for hidden and weight. A
masked-LM case has 15 % of the rows as targets: ours leaves the others out, and is compared with ours over all rows.
Each measurement is a process of its own; the memory is the most that it had resident beyond its inputs, by Linux's own
count, gradients included.
With a FOLDER (SmolLM2-135M, say) instead steps of training it in bf16 autocast at 8 rows of 512 tokens, with the linear
loss and with all logits: tokens/s and the peak of the whole process. Linux only.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

WIDTH, VOCABULARY = 576, 49_152


def measure(kind: str, rows: int, share: float) -> dict[str, float]:
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
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # what was needed until now doesn't count
    before = resident_bytes("VmRSS")
    began = time.perf_counter()
    value = loss(rows)
    value.backward()
    seconds = time.perf_counter() - began
    peak = resident_bytes("VmHWM") - before
    return {"seconds": seconds, "peak_bytes": peak, "loss": float(value.detach()) / max(1, int((targets >= 0).sum()))}


def resident_bytes(what: str) -> int:
    """This process's memory: `VmRSS` now, `VmHWM` at most."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(what))


def train(folder: str, fused: str) -> dict[str, float]:
    import torch

    from nbllm.model import load
    from nbllm.train.loss_model import LossModel

    torch.manual_seed(0)
    model = load(folder).train()
    whole = LossModel(model, fused=fused, settings={})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    ids = torch.randint(1000, (8, 512))
    positions = torch.arange(512).expand(8, 512)
    seconds = []
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # reading the file doesn't count
    for _ in range(3):
        began = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = whole(ids, ids.roll(-1, 1), positions, torch.tensor(1 / ids.numel()))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - began)
    return {
        "seconds": min(seconds[1:]), "peak_bytes": resident_bytes("VmHWM"), "loss": float(loss.detach()),
        "parameters": sum(weight.numel() for weight in model.parameters()),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, nargs="*", default=[4096, 16_384])
    parser.add_argument("--training", metavar="FOLDER")
    parser.add_argument("--one", nargs="*")
    options = parser.parse_args()
    if options.one:
        kind, *numbers = options.one
        found = train(options.training, kind) if options.training else measure(kind, int(numbers[0]), float(numbers[1]))
        print(json.dumps(found))
    elif options.training:
        compare_training(options.training, options.rounds)
    else:
        compare_losses(options.rows, options.rounds)


def one(*arguments: str) -> dict[str, float]:
    """A measurement in a process of its own."""
    command = [sys.executable, __file__, *arguments]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def compare_losses(sizes: list[int], rounds: int) -> None:
    cases = [(rows, kind, 1.0) for rows in sizes for kind in ("ours", "plain", "torch")]
    cases.append((sizes[0], "ours", 0.15))
    found: dict[tuple[int, str, float], list[dict[str, float]]] = {case: [] for case in cases}
    for _ in range(rounds):
        for rows, kind, share in cases:
            found[rows, kind, share].append(one("--one", kind, str(rows), str(share)))
    table = {}
    for (rows, kind, share), values in found.items():
        seconds, peak = (statistics.median(value[key] for value in values) for key in ("seconds", "peak_bytes"))
        table[rows, kind, share] = {
            "rows": rows, "kind": kind, "targets": share, "seconds": round(seconds, 3), "peak_mb": round(peak / 1e6),
            "loss": values[0]["loss"], "all": [round(value["seconds"], 3) for value in values],
        }  # fmt: skip
        print(f"{rows:>6} rows, {share:4.0%} targets, {kind:<6} {seconds:7.2f} s  {peak / 1e6:7.0f} MB more")
    verdict = judge(table, sizes)
    for line in verdict:
        print(line)
    from kept import keep

    sizes_of = {"width": WIDTH, "vocabulary": VOCABULARY, "dtype": "float32"}
    keep("linear_loss", {**sizes_of, "rows": list(table.values()), "verdict": verdict})


def compare_training(folder: str, rounds: int) -> None:
    found: dict[str, list[dict[str, float]]] = {"torch": [], "off": []}
    for _ in range(rounds):
        for fused, values in found.items():
            values.append(one("--training", folder, "--one", fused))
    table = {}
    for fused, values in found.items():
        seconds, peak = (statistics.median(value[key] for value in values) for key in ("seconds", "peak_bytes"))
        tokens_per_s = 8 * 512 / seconds
        table[fused] = {
            "tokens_per_s": round(tokens_per_s), "peak_mb": round(peak / 1e6), "loss": values[0]["loss"],
            "seconds": [round(value["seconds"], 2) for value in values],
        }  # fmt: skip
        print(f"training, --fused {fused:<6} {tokens_per_s:7.0f} tokens/s  {peak / 1e6:7.0f} MB in all")
    from kept import keep

    keep("linear_loss_training", {"parameters": found["off"][0]["parameters"], "batch": [8, 512], "fused": table})


def judge(lines: dict[tuple[int, str, float], dict[str, float]], sizes: list[int]) -> list[str]:
    """How ours stands against the plain loss, PyTorch's, and all rows where only some have a target."""
    found = []
    for rows in sizes:
        ours, plain, torch = (lines[rows, kind, 1.0] for kind in ("ours", "plain", "torch"))
        fastest = min(plain["seconds"], torch["seconds"])
        found.append(
            f"{rows} rows: memory {ours['peak_mb'] / plain['peak_mb']:.3f} of plain's (wanted 0.125 at most) and "
            f"{ours['peak_mb'] / max(torch['peak_mb'], 1):.2f} of PyTorch's (1), "
            f"time {ours['seconds'] / fastest:.2f} of the faster (1.05)"
        )
    every, some = lines[sizes[0], "ours", 1.0], lines[sizes[0], "ours", 0.15]
    found.append(f"{sizes[0]} rows, 15 % with a target: {every['seconds'] / some['seconds']:.1f} times as fast (4)")
    return found


if __name__ == "__main__":
    main()
