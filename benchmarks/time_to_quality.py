"""From the command to a model that predicts held-out text in 2.2 bits a byte: our default beside a plain AdamW recipe.

    python benchmarks/time_to_quality.py [--rounds 2] [--goal 2.2]

`builtin:pydocs`, `llama-nano`, a vocabulary of 2,048, rows of 256 tokens, 8 a step, on the cores there are. Both are
`session.train(...)` in processes of their own, taken in turns: `--optimizer auto` (Muon inside the blocks, AdamW for
the rest) and `--optimizer adamw`, each as long as it needs under a cosine of its own. Counted from the command, the
start of the process included, to the first evaluation at the goal; evaluations every ten steps cost both alike. A run
that doesn't get there counts as none.

Log
2026-12-02  Muon (0.02 to 0.04, momentum 0.95, decay 0.1) inside the blocks with AdamW at 0.01 for the rest, ten steps
            of warm-up: 2.2 after about 95 steps; AdamW alone at 0.003 needs about 310 steps of the same cost.
2026-12-02  One learning rate for both by scaling Muon's update to AdamW's root mean square: 0.01, as good.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from kept import keep

RECIPES: dict[str, dict[str, Any]] = {
    "auto": {"optimizer": "auto", "steps": 110},
    "adamw": {"optimizer": "adamw", "steps": 340},
}
SHARED = {"model": "llama-nano", "seq_len": 256, "batch_size": 8, "eval_every": 10, "save_every": 0}


def measure(session: Any, name: str, goal: float, number: int) -> dict[str, float | None]:
    began = time.time()
    run = session.train(name=f"{name}-{number}", **SHARED, **RECIPES[name])
    reached: float | None = None
    step: int | None = None
    while reached is None and run.status in ("starting", "running"):
        time.sleep(0.2)
        for event in run.events("eval"):
            if event["bits_per_byte"] <= goal:
                reached, step = time.time() - began, event["step"]
                break
    best = min((event["bits_per_byte"] for event in run.events("eval")), default=None)
    if run.status in ("starting", "running"):
        run.stop()
    return {"seconds": reached, "step": step, "best": best}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--goal", type=float, default=2.2)
    options = parser.parse_args()
    from nbllm.sessions import Session
    from nbllm.store import Store

    found: dict[str, list[dict[str, float | None]]] = {name: [] for name in RECIPES}
    with tempfile.TemporaryDirectory() as folder:
        session = Session(Store(Path(folder) / ".nbllm"))
        session.clean("builtin:pydocs", name="docs")
        session.train_tokenizer(vocab_size=2048, name="words")
        session.train(dry_run=True, **SHARED, steps=1)  # the corpus is encoded before the clock starts
        for number in range(options.rounds):
            for name in RECIPES:
                found[name].append(measure(session, name, options.goal, number))
                print(name, found[name][-1], flush=True)
    seconds = {name: [one["seconds"] for one in runs if one["seconds"] is not None] for name, runs in found.items()}
    medians = {name: statistics.median(values) if values else None for name, values in seconds.items()}
    ours, plain = medians["auto"], medians["adamw"]
    share = ours / plain if ours and plain else None
    print(f"auto {ours} s, adamw {plain} s: {share if share is None else round(share, 2)} of its time")
    keep("time_to_quality", {"goal_bits_per_byte": options.goal, "runs": found, "median_s": medians, "share": share})


if __name__ == "__main__":
    main()
