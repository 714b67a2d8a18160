"""`%llm_model`: the architecture of a loaded model; the magics show it as a picture."""

from __future__ import annotations

from typing import Any

from nbllm.commands.base import Call, Command
from nbllm.commands.options import Option


def _run(call: Call) -> Any:
    return call.session.model_summary(**call.arguments.only("model", "checkpoint", "adapter", "quantize"))


COMMAND = Command(
    name="llm_model",
    summary="the loaded model as a picture: shapes, parameters, memory, FLOPs a token; a part's weights at a click",
    example="%llm_model",
    options=(
        Option(name="--model", help="a run, folder, GGUF file or hub name", completes="run"),
        Option(name="--checkpoint", help="the step of a run's checkpoint", kind="integer"),
        Option(name="--adapter", help="an adapter, or off", completes="adapter"),
        Option(name="--quantize", help="with weights in 8 or 4 bits", choices=("int8", "int4")),
    ),
    run=_run,
)
