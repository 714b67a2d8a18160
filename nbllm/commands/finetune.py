"""`%llm_finetune`: train an adapter on the current model, as a run of the same kind."""

from __future__ import annotations

from typing import Any

from nbllm.commands.base import Call, Command
from nbllm.commands.options import Option
from nbllm.commands.training import SHARED_KEYS, SHARED_OPTIONS, wait
from nbllm.store import now


def _run(call: Call) -> Any:
    keys = ("base", "method", "r", "alpha", "dropout", "targets", "data", "format")
    before = now()
    run = call.session.finetune(**call.arguments.only(*keys, *SHARED_KEYS))
    if run.manifest.created < before:
        call.say(f"The run {run.name} does this already and lives: this is it.")
    if call.arguments.wait:
        wait(call, run)
    return run


COMMAND = Command(
    name="llm_finetune",
    summary="fine-tune the current model with LoRA",
    example="%llm_finetune --data $examples --epochs 3 --name polite",
    options=(
        Option(
            name="--base", help="a run, folder, GGUF file or hub name; the current model by default", completes="run"
        ),
        Option(name="--method", help="how", default="lora", choices=("lora",)),
        Option(name="--r", help="rank of the update", kind="integer", default=8),
        Option(name="--alpha", help="its scale is alpha / r", kind="number", default=16),
        Option(name="--dropout", help="on the update's input", kind="number", default=0.05),
        Option(name="--targets", help="auto, or names of linear layers with commas", default="auto"),
        Option(name="--data", help="a file, folder or $variable to learn from", kind="any", completes="file"),
        Option(name="--format", help="what the data is", default="text", choices=("text",)),
        *SHARED_OPTIONS,
    ),
    run=_run,
)
