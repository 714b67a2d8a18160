"""`%llm_export`: the current model in a form that other tools load."""

from __future__ import annotations

from typing import Any

from nbllm.commands.base import Call, Command
from nbllm.commands.options import Option
from nbllm.errors import UsageError


def _run(call: Call) -> Any:
    if call.arguments.folder is None:
        raise UsageError("%llm_export needs a folder", next="Type %llm_export --to hf FOLDER")
    arguments = call.arguments
    if "gguf_type" in arguments.given and arguments.to != "gguf":
        raise UsageError("--gguf-type belongs to --to gguf", received=arguments.to)
    exported = call.session.export(arguments.folder, **arguments.only("to", "gguf_type", "overwrite", "push"))
    call.say(exported.message)
    return exported


COMMAND = Command(
    name="llm_export",
    summary="write the current model for transformers, ONNX Runtime, llama.cpp or vLLM",
    example="%llm_export --to hf my-model\n%llm_export --to gguf --gguf-type q8_0 my-gguf",
    options=(
        Option(name="folder", help="the folder to write", completes="file"),
        Option(name="--to", help="the format", default="hf", choices=("hf", "onnx", "gguf", "vllm")),
        Option(
            name="--gguf-type", help="the weights of a GGUF file", default="f16", choices=("f16", "bf16", "q8_0", "f32")
        ),
        Option(name="--overwrite", help="replace that folder", kind="flag"),
        Option(name="--push", help="upload it to the Hugging Face hub as NAME or OWNER/NAME; a new one is private"),
    ),
    run=_run,
)
