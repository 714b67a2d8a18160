"""`%llm_lens`: the logit lens of a text; the magics show it as a panel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nbllm.commands.base import Call, Command
from nbllm.commands.options import Option
from nbllm.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class LensRequest:
    """A logit lens that a front end should show."""

    lens: Any
    """What each layer predicts."""
    text: str
    """What was looked at."""
    source: dict[str, Any]
    """`model`, `checkpoint`, `adapter`, `chat` and `top`, as far as they were given."""


def _run(call: Call) -> LensRequest:
    words = call.arguments.text
    if not words:
        raise UsageError("There is no text to look at", next='%llm_lens "some text"')
    if len(words) > 1:
        joined = " ".join(str(word) for word in words)[:60]
        raise UsageError("The text is more than one word", next=f'Put it in quotes: %llm_lens "{joined}"')
    source = call.arguments.only("model", "checkpoint", "adapter", "chat", "top")
    lens = call.session.logit_lens(words[0], **source)
    text = words[0] if isinstance(words[0], str) else "".join(lens.tokens)
    return LensRequest(lens=lens, text=text, source=source)


COMMAND = Command(
    name="llm_lens",
    summary="what each layer would predict at each position, and which layer settles",
    example='%llm_lens "The capital of France is Paris, and the capital of Italy is"',
    options=(
        Option(name="text", help="what to look at, in quotes", kind="any", many=True),
        Option(name="--model", help="a run, folder, GGUF file or hub name", completes="run"),
        Option(name="--checkpoint", help="the step of a run's checkpoint", kind="integer"),
        Option(name="--adapter", help="an adapter, or off", completes="adapter"),
        Option(name="--chat", help="put the text into the model's chat template", kind="flag"),
        Option(name="--top", help="tokens kept for each layer and position", kind="integer"),
    ),
    run=_run,
)
