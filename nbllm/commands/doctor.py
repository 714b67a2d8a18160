"""`%llm_doctor`: what is wrong with the current model's output, and what to type."""

from __future__ import annotations

from typing import Any

from nbllm.commands.base import Call, Command
from nbllm.commands.options import Option
from nbllm.errors import UsageError


def _run(call: Call) -> Any:
    prompt = call.arguments.prompt
    if len(prompt) > 1:
        raise UsageError("The prompt is more than one word", next='Put it in quotes: %llm_doctor "some text"')
    return call.session.diagnose(prompt=prompt[0] if prompt else None)


COMMAND = Command(
    name="llm_doctor",
    summary="findings about the current model's output, each with evidence and a remedy",
    example='%llm_doctor\n%llm_doctor "The quick brown fox"',
    options=(
        Option(name="prompt", help="sample this and look at it; the last text by default", kind="any", many=True),
    ),
    run=_run,
)
