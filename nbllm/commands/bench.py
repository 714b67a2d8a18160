"""`%llm_bench`: the current model through every runtime of this machine, side by side; or the fused ops."""

from __future__ import annotations

from typing import Any

from nbllm.commands.base import Call, Command
from nbllm.commands.options import Option
from nbllm.errors import UsageError


def _run(call: Call) -> Any:
    arguments = call.arguments
    if arguments.ops:
        return call.session.bench(ops=True, **arguments.only("model"), compile=not arguments.no_compile, say=call.say)
    settings = arguments.only("prompt", "new_tokens", "model")
    if "backends" in arguments.given:
        settings["backends"] = _words(arguments.backends)
    if "batch" in arguments.given:
        sizes = _words([str(word) for word in arguments.batch])
        if not all(size.isdigit() for size in sizes):
            raise UsageError("--batch takes whole numbers", received=",".join(sizes), next="For example --batch 1,8")
        settings["batch"] = tuple(int(size) for size in sizes)
    return call.session.bench(**settings, compile=not arguments.no_compile)


def _words(typed: list[str]) -> list[str]:
    return [word for part in typed for word in part.split(",") if word]


COMMAND = Command(
    name="llm_bench",
    summary="the current model through every runtime of this machine: speed, memory, agreement, the machine's limit",
    example="%llm_bench --backends eager,int8,onnx --new-tokens 64",
    options=(
        Option(
            name="--backends",
            help="some of eager,compiled,int8,int4,onnx,llamacpp,vllm,tensorrt; all by default",
            many=True,
        ),
        Option(name="--prompt", help="the text that is continued, in quotes"),
        Option(name="--new-tokens", help="how many each text gets", kind="integer", default=64),
        Option(name="--batch", help="how many texts at once are measured, such as 1,8", many=True),
        Option(
            name="--ops",
            help="the fused ops instead, against eager, compiled and Liger: time, memory, share of the limit",
            kind="flag",
        ),
        Option(name="--no-compile", help="don't wait for compiled steps", kind="flag"),
        Option(name="--model", help="a run, folder, GGUF file or hub name", completes="run"),
    ),
    run=_run,
)
