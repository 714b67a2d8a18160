"""`%llm_attention`: the attention maps of a text; the magics show them as a panel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nbllm.commands.base import Call, Command
from nbllm.commands.options import Option
from nbllm.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class AttentionRequest:
    """Attention that a front end should show."""

    maps: Any
    """The attention maps of the text."""
    text: str
    """What was looked at."""
    source: dict[str, Any]
    """`model`, `checkpoint`, `adapter` and `chat`, as far as they were given."""
    other: Any = None
    """The maps of `--with`."""
    other_text: str = ""
    """What they show."""
    layer: int | None = None
    """The head to begin with, by the model's number of its layer."""
    head: int | None = None
    """Its place in the layer."""


def _run(call: Call) -> AttentionRequest:
    arguments = call.arguments
    words = arguments.text
    if not words:
        raise UsageError("There is no text to look at", next='%llm_attention "some text"')
    if len(words) > 1:
        joined = " ".join(str(word) for word in words)[:60]
        raise UsageError("The text is more than one word", next=f'Put it in quotes: %llm_attention "{joined}"')
    source = arguments.only("model", "checkpoint", "adapter", "chat")
    maps = call.session.attention(words[0], **source)
    given = arguments.only("with")
    return AttentionRequest(
        maps=maps,
        text=words[0] if isinstance(words[0], str) else "".join(maps.tokens),
        source=source,
        other=call.session.attention(given["with"], **source) if given else None,
        other_text=str(given.get("with", "")),
        **arguments.only("layer", "head"),
    )


COMMAND = Command(
    name="llm_attention",
    summary="all heads of a text as thumbnails, one map large, scores, and the next token without some heads",
    example='%llm_attention "The cat sat on the mat. The cat sat on"\n'
    '%llm_attention "The cat sat" --with "The dog sat" --layer 4 --head 2',
    options=(
        Option(name="text", help="what to look at, in quotes", kind="any", many=True),
        Option(name="--layer", help="begin with a head of this layer", kind="integer"),
        Option(name="--head", help="begin with this head of the layer", kind="integer"),
        Option(name="--with", help="a second text beside it"),
        Option(name="--model", help="a run, folder, GGUF file or hub name", completes="run"),
        Option(name="--checkpoint", help="the step of a run's checkpoint", kind="integer"),
        Option(name="--adapter", help="an adapter, or off", completes="adapter"),
        Option(name="--chat", help="put the text into the model's chat template", kind="flag"),
    ),
    run=_run,
)
