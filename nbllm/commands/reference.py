"""Every magic's help as one Markdown text: what `%llm_help --reference FILE` writes. Made from the commands alone."""

from __future__ import annotations

from collections.abc import Iterable

from nbllm.commands.base import Command

_HEAD = (
    "Made by `%llm_help --reference FILE`; each part is what `--help` prints. Options are keyword arguments, with "
    "underscores, of the Python method beside the magic in the README."
)


def reference(commands: Iterable[Command]) -> str:
    """The reference of these commands, in their order."""
    parts = [
        "# Every magic",
        "",
        _HEAD,
    ]
    for command in commands:
        percent = "%%" if command.body else "%"
        parts += ["", f"## {percent}{command.name}", "", "```text", command.help(), "```"]
    return "\n".join(parts) + "\n"
