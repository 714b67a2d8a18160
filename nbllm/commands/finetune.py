"""`%llm_finetune`: train an adapter on the current model, as a run of the same kind."""

from __future__ import annotations

from typing import Any

from nbllm.commands.base import Call, Command
from nbllm.commands.options import Option
from nbllm.commands.training import SHARED_KEYS, SHARED_OPTIONS, wait
from nbllm.store import now

METHODS = ("lora", "qlora", "dora", "ia3", "adapter", "prompt", "prefix", "full")


def _run(call: Call) -> Any:
    keys = (
        "base", "method", "r", "alpha", "dropout", "targets", "bottleneck", "virtual_tokens", "data", "format",
        "drop_long", "overwrite", "dry_run",
    )  # fmt: skip
    before = now()
    run = call.session.finetune(say=call.say, **call.arguments.only(*keys, *SHARED_KEYS))
    if call.arguments.dry_run:
        return run
    if run.manifest.created < before:
        call.say(f"The run {run.name} does this already and lives: this is it.")
    if call.arguments.wait:
        wait(call, run)
    return run


COMMAND = Command(
    name="llm_finetune",
    summary="fine-tune the current model: an adapter, or all weights, on text, chats, instructions or completions",
    example="%llm_finetune --data chats.jsonl --dry-run\n%llm_finetune --data $examples --epochs 3 --name polite",
    options=(
        Option(
            name="--base", help="a run, folder, GGUF file or hub name; the current model by default", completes="run"
        ),
        Option(name="--method", help="how", default="lora", choices=METHODS),
        Option(name="--r", help="rank of the update", kind="integer", default=8),
        Option(name="--alpha", help="its scale is alpha / r", kind="number", default=16),
        Option(name="--dropout", help="on the update's input", kind="number", default=0.05),
        Option(name="--targets", help="auto, or names of linear layers with commas", default="auto"),
        Option(name="--bottleneck", help="width, for --method adapter", kind="integer", default=32),
        Option(name="--virtual-tokens", help="how many, for prompt and prefix", kind="integer", default=20),
        Option(name="--data", help="a file, folder, hf:NAME or $variable to learn from", kind="any", completes="file"),
        Option(
            name="--format",
            help="what the data is; what its first row looks like by default",
            choices=("text", "chat", "instruction", "completion"),
        ),
        Option(name="--drop-long", help="leave out rows that are cut before their answer", kind="flag"),
        Option(name="--overwrite", help="replace the run and adapter of that name", kind="flag"),
        Option(name="--dry-run", help="start nothing; show what would be learnt, with an example", kind="flag"),
        *SHARED_OPTIONS,
    ),
    run=_run,
)
