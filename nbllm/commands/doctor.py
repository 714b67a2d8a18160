"""`%llm_doctor`: what is wrong with a run or with the current model's output, and what to type."""

from __future__ import annotations

from typing import Any

from nbllm.commands.base import Call, Command
from nbllm.commands.options import Option
from nbllm.errors import UsageError

_OPTIONS = (
    "model", "checkpoint", "adapter", "quantize", "chat", "greedy", "temperature", "top_p", "max_new_tokens", "seed",
)  # fmt: skip


def _run(call: Call) -> Any:
    prompt = call.arguments.prompt
    if len(prompt) > 1:
        raise UsageError("The prompt is more than one word", next='Put it in quotes: %llm_doctor "some text"')
    options = call.arguments.only(*_OPTIONS)
    if options and not prompt:
        name = next(iter(options)).replace("_", "-")
        raise UsageError(f"--{name} is for a text that is sampled now", next=f'%llm_doctor "some text" --{name} …')
    if prompt and not options and prompt[0] in call.session.store.names("run"):
        return call.session.diagnose(run=prompt[0])
    return call.session.diagnose(prompt=prompt[0] if prompt else None, **options)


COMMAND = Command(
    name="llm_doctor",
    summary="findings about a run or the model's output, each with evidence and a remedy",
    example='%llm_doctor\n%llm_doctor my-run\n%llm_doctor "What is a fox?" --chat',
    options=(
        Option(
            name="prompt",
            help="a run's name, or a prompt to sample and look at; the last text, or the current run, by default",
            kind="any",
            many=True,
            completes="run",
        ),
        Option(name="--model", help="a run, folder, GGUF file or hub name", completes="run"),
        Option(name="--checkpoint", help="the step of a run's checkpoint", kind="integer"),
        Option(name="--adapter", help="an adapter, or off", completes="adapter"),
        Option(name="--quantize", help="weights in 8 or 4 bits", choices=("int8", "int4")),
        Option(name="--chat", help="put the prompt into the model's chat template", kind="flag"),
        Option(name="--greedy", help="always the most probable token", kind="flag"),
        Option(name="--temperature", help="divides the logits; 0 is greedy", kind="number"),
        Option(name="--top-p", help="keep the smallest set with this probability; 0 is greedy", kind="number"),
        Option(name="--max-new-tokens", help="at most", kind="integer", default=100),
        Option(name="--seed", help="of the random numbers", kind="integer"),
    ),
    run=_run,
)
