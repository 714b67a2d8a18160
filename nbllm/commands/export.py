"""`%llm_export`: the current model as a folder that other tools load."""

from __future__ import annotations

from typing import Any

from nbllm.commands.base import Call, Command
from nbllm.commands.options import Option
from nbllm.errors import UsageError


def _run(call: Call) -> Any:
    if call.arguments.folder is None:
        raise UsageError("%llm_export needs a folder", next="Type %llm_export --to hf FOLDER")
    folder = call.session.export(call.arguments.folder, **call.arguments.only("to", "overwrite"))
    call.say(f"Written to {folder}; transformers loads it and predicts the same next tokens.")
    return folder


COMMAND = Command(
    name="llm_export",
    summary="write the current model as an ordinary transformers folder",
    example="%llm_export --to hf my-model",
    options=(
        Option(name="folder", help="the folder to write", completes="file"),
        Option(name="--to", help="the format", default="hf", choices=("hf",)),
        Option(name="--overwrite", help="replace that folder", kind="flag"),
    ),
    run=_run,
)
