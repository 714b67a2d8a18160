"""Every command by its magic's name, in the order of the help."""

from __future__ import annotations

from nbllm.commands import (
    adapter,
    attention,
    bench,
    clean,
    doctor,
    evaluate,
    export,
    finetune,
    generate,
    help,
    lens,
    model,
    panel,
    session,
    tokenizer,
    train,
)
from nbllm.commands.base import Command
from nbllm.errors import UsageError, did_you_mean

COMMANDS: dict[str, Command] = {
    command.name: command
    for command in (
        help.COMMAND,
        session.COMMAND,
        clean.COMMAND,
        tokenizer.COMMAND,
        train.COMMAND,
        finetune.COMMAND,
        adapter.COMMAND,
        generate.COMMAND,
        attention.COMMAND,
        lens.COMMAND,
        model.COMMAND,
        evaluate.COMMAND,
        bench.COMMAND,
        doctor.COMMAND,
        export.COMMAND,
        panel.COMMAND,
    )
}


def find(name: str) -> Command:
    """The command of that name, with or without percent signs or `llm_`; raises UsageError with the nearest one."""
    plain = name.lstrip("%")
    for candidate in (plain, f"llm_{plain}"):
        if candidate in COMMANDS:
            return COMMANDS[candidate]
    raise UsageError(f"There is no magic %{plain}", next=did_you_mean(plain, COMMANDS))
