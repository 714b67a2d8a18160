"""`%llm_eval`: loss, perplexity and bits a byte."""

from __future__ import annotations

from typing import Any

from nbllm.commands.base import Call, Command
from nbllm.commands.options import Option


def _run(call: Call) -> Any:
    return call.session.evaluate(**call.arguments.only("on", "model"))


COMMAND = Command(
    name="llm_eval",
    summary="loss, perplexity and bits a byte of the current model",
    example="%llm_eval --on held-out",
    options=(
        Option(name="--on", help="held-out, a file or another source", default="held-out", completes="file"),
        Option(name="--model", help="a run, folder, GGUF file or hub name", completes="run"),
    ),
    run=_run,
)
