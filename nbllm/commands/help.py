"""`%llm_help`: every magic with a line and an example, or one magic's help."""

from __future__ import annotations

from nbllm.commands.base import Call, Command
from nbllm.commands.options import Option


def _run(call: Call) -> None:
    from nbllm.commands.registry import COMMANDS, find

    if call.arguments.magic:
        call.say(find(call.arguments.magic).help())
        return
    width = max(len(name) for name in COMMANDS) + 2
    for command in COMMANDS.values():
        percent = "%%" if command.body else "%"
        call.say(f"{percent + command.name:{width}}  {command.summary}")
        call.say(f"{'':{width}}  {command.example.splitlines()[0]}")


COMMAND = Command(
    name="llm_help",
    summary="every magic with a line and an example",
    example="%llm_help llm_train",
    options=(Option(name="magic", help="the magic to explain", completes="magic"),),
    run=_run,
)
