"""The options that training and fine-tuning share, and how they wait for a run. No verb of its own."""

from __future__ import annotations

from typing import Any

from nbllm.commands.base import Call
from nbllm.commands.options import Option

SHARED_OPTIONS = (
    Option(name="--steps", help="optimizer steps", kind="integer"),
    Option(name="--epochs", help="passes over the training part", kind="number"),
    Option(name="--tokens", help="training tokens", kind="integer"),
    Option(name="--seq-len", help="tokens a row", kind="integer", default=256),
    Option(name="--batch-size", help="rows a process and micro-step", kind="integer", default=8),
    Option(name="--grad-accum", help="micro-steps an optimizer step", kind="integer", default=1),
    Option(name="--optimizer", help="how", default="auto", choices=("auto", "adamw", "muon")),
    Option(name="--lr", help="peak learning rate; by optimizer where it isn't given", kind="number"),
    Option(name="--warmup", help="steps of linear warm-up", kind="integer"),
    Option(name="--schedule", help="how", default="cosine", choices=("cosine", "wsd", "linear", "constant")),
    Option(name="--precision", help="of the arithmetic", default="auto", choices=("auto", "fp32", "fp16", "bf16")),
    Option(name="--processes", help="one a device", kind="integer", default="auto", also=("auto",)),
    Option(name="--attention", help="implementation", default="auto", choices=("auto", "sdpa", "eager")),
    Option(name="--clip", help="largest gradient norm; 0 doesn't clip", kind="number", default=1.0),
    Option(name="--held-out", help="fraction of documents never trained on", kind="number", default=0.05),
    Option(name="--eval-every", help="steps between held-out evaluations; 0 only at the end", kind="integer"),
    Option(name="--save-every", help="steps between checkpoints; 0 only at the end", kind="integer"),
    Option(name="--early-stop", help="stop after that many evaluations without a better loss", kind="integer"),
    Option(name="--log-with", help="tensorboard"),
    Option(name="--seed", help="of weights, order and dropout", kind="integer", default=0),
    Option(name="--name", help="the run's name; made up if it isn't given"),
    Option(name="--wait", help="block until it has ended, with calm progress", kind="flag"),
)
SHARED_KEYS = tuple(option.key for option in SHARED_OPTIONS if option.key != "wait")


def wait(call: Call, run: Any) -> None:
    """Blocks until a run has ended, saying how it goes about every ten steps of a hundred.

    An interrupt is raised again after a line that says that the run goes on.
    """
    said = -1

    def progress(run: Any) -> None:
        nonlocal said
        table = run.metrics()
        total = run.total_steps
        if not table.num_rows or not total:
            return
        step = table.column("step")[-1].as_py()
        tenth = 10 * step // total
        if tenth == said:
            return
        said = tenth
        row = {key: _last(table, key) for key in ("loss", "bits_per_byte", "tokens_per_s")}
        parts = [f"step {step:,} of {total:,}"]
        parts += [f"loss {row['loss']:.3f}"] if row["loss"] is not None else []
        parts += [f"held-out {row['bits_per_byte']:.3f} bits a byte"] if row["bits_per_byte"] is not None else []
        parts += [f"{row['tokens_per_s']:,.0f} tokens/s"] if row["tokens_per_s"] is not None else []
        call.say(" · ".join(parts))

    try:
        run.wait(progress=progress)
    except KeyboardInterrupt:
        call.say(f"The run {run.name} goes on. Stop it with %llm_train --stop {run.name}")
        raise


def _last(table: Any, column: str) -> Any:
    values = [value for value in table.column(column).to_pylist() if value is not None]
    return values[-1] if values else None
