"""`%llm_help`: every magic with a line and an example, or one magic's help."""

from __future__ import annotations

from pathlib import Path

from nbllm.commands.base import Call, Command
from nbllm.commands.options import Option
from nbllm.commands.reference import reference
from nbllm.errors import UsageError
from nbllm.files import writing


def _run(call: Call) -> None:
    from nbllm.commands.registry import COMMANDS, find

    if call.arguments.reference:
        path = Path(call.arguments.reference).expanduser()
        if path.exists() and not call.arguments.overwrite:
            raise UsageError(f"{path} is there already", next="Add --overwrite to replace it")
        with writing(path.parent):
            path.write_text(reference(COMMANDS.values()), encoding="utf-8")
        call.say(f"Written to {path}.")
        return
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
    options=(
        Option(name="magic", help="the magic to explain", completes="magic"),
        Option(name="--reference", help="write every magic's help into this Markdown file", completes="file"),
        Option(name="--overwrite", help="replace that file", kind="flag"),
    ),
    run=_run,
)
