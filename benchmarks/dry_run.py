"""What `--dry-run` says a run will hold in memory, beside the most that the run's process then held, on the CPU.

    python benchmarks/dry_run.py [--only NAME …]

Each case is a run of three steps in its own process over `builtin:pydocs`; the most that it held is the kernel's own
count (`ru_maxrss`). Held to 15 %.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from kept import keep

CASES: dict[str, dict[str, object]] = {
    "llama-nano": {"model": "llama-nano", "batch_size": 16, "seq_len": 256},
    "llama-micro": {"model": "llama-micro", "batch_size": 8, "seq_len": 256},
    "gpt2-nano, all logits": {"model": "gpt2-nano", "batch_size": 16, "seq_len": 256, "fused": "off"},
    "bert-nano": {"model": "bert-nano", "batch_size": 16, "seq_len": 256},
    "moe-nano": {"model": "moe-nano", "batch_size": 16, "seq_len": 256},
    "llama-micro, checkpointing": {"model": "llama-micro", "batch_size": 16, "seq_len": 256, "checkpointing": True},
    "llama-micro, adamw, 4 micro-steps": {
        "model": "llama-micro", "batch_size": 2, "grad_accum": 4, "seq_len": 256, "optimizer": "adamw",
    },
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", default=list(CASES))
    options = parser.parse_args()
    from nbllm.sessions import Session
    from nbllm.store import Store

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        session = Session(Store(Path(folder) / ".nbllm"))
        session.clean("builtin:pydocs", name="docs")
        session.train_tokenizer(vocab_size=8192, special=["[MASK]"], name="words")
        for name in options.only:
            setting = {"steps": 3, "eval_every": 0, "save_every": 0, **CASES[name]}
            plan = session.train(dry_run=True, **setting)
            run = session.train(wait=True, **setting)
            (end,) = [event for event in run.events() if event["kind"] == "end"]
            said, held = plan.memory["peak"], end["peak_memory_bytes"]
            took = run.metrics().column("seconds").to_pylist()[-1]
            rows.append(
                {
                    "case": name,
                    "said_mb": round(said / 1e6),
                    "held_mb": round(held / 1e6),
                    "error": round(said / held - 1, 3),
                    "kinds_mb": {kind: round(size / 1e6, 1) for kind, size in plan.memory.items()},
                    "said_s_a_step": round(plan.forecast.seconds_a_step, 2),
                    "took_s_a_step": round(took / 3, 2),
                }
            )
            print(
                f"{name:<36} said {said / 1e6:6.0f} MB  held {held / 1e6:6.0f} MB  {said / held - 1:+.1%}", flush=True
            )
    if options.only == list(CASES):
        keep("dry_run", {"rows": rows, "worst": max(abs(row["error"]) for row in rows)})


if __name__ == "__main__":
    main()
