"""`%llm_generate` and `%%llm_generate`: continue a prompt, streaming."""

from __future__ import annotations

from typing import Any

from nbllm.commands.base import Call, Command
from nbllm.commands.options import Option
from nbllm.errors import Interrupted, UsageError

_SETTINGS = (
    "max_new_tokens", "greedy", "temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty",
    "presence_penalty", "frequency_penalty", "beams", "length_penalty", "prompt_lookup", "sliding", "stop", "seed", "n",
)  # fmt: skip


def _run(call: Call) -> Any:
    arguments = call.arguments
    if arguments.file or arguments.to:
        return _many(call)
    if call.body is not None:
        if arguments.prompt:
            raise UsageError("The prompt of %%llm_generate is the cell body", received=arguments.prompt[0])
        prompt: Any = call.body.removesuffix("\n")
    elif len(arguments.prompt) > 1:
        raise UsageError(
            "The prompt is more than one word", next=f'Put it in quotes: %llm_generate "{_joined(arguments)}"'
        )
    else:
        prompt = arguments.prompt[0] if arguments.prompt else ""
    settings = arguments.only(*_SETTINGS)
    if "stop" in settings:
        settings["stop"] = tuple(settings["stop"])
    several = settings.get("n", call.session.sampling.n) > 1
    begun = several or not isinstance(prompt, str)

    def write(text: str) -> None:
        nonlocal begun
        if not begun:  # not before there is a model that goes on with it
            begun = True
            call.write(prompt)
        call.write(text)

    generation = call.session.generate(
        prompt,
        **settings,
        **arguments.only("model", "checkpoint", "adapter", "chat", "trace", "quantize", "backend", "draft"),
        on_text=None if several else lambda _, text: write(text),
    )
    for number, text in enumerate(generation.texts if several else (), 1):
        call.write(f"── {number} ──\n{prompt}{text}\n")
    write(f"{'' if several else chr(10)}({generation.summary})\n")
    if generation.stop_reason == "interrupted":
        raise Interrupted("the text so far is kept in _llm", generation)
    return generation


def _many(call: Call) -> Any:
    """Every prompt of a file, with a line of progress at each tenth."""
    arguments = call.arguments
    if not (arguments.file and arguments.to):
        raise UsageError(
            "Many prompts need a file to read and one to write",
            next="%llm_generate --file PROMPTS.jsonl --to ANSWERS.jsonl",
        )
    if arguments.prompt or call.body is not None:
        raise UsageError("With --file there is no other prompt")
    if alone := arguments.only("trace", "backend", "draft"):
        raise UsageError(f"--{next(iter(alone))} is for one prompt, not for --file")
    said = -1

    def progress(done: int, total: int, tokens_per_s: float) -> None:
        nonlocal said
        if tokens_per_s and done < total and 10 * done // total != said:
            said = 10 * done // total
            call.say(f"{done:,} of {total:,} prompts · {tokens_per_s:,.0f} tokens/s")

    settings = arguments.only(*_SETTINGS, "model", "checkpoint", "adapter", "chat", "quantize", "overwrite")
    answers = call.session.generate_many(arguments.file, arguments.to, progress=progress, **settings)
    if answers.interrupted:
        raise Interrupted(f"{answers.done:,} of {answers.prompts:,} prompts are done. The same line goes on", answers)
    return answers


def _joined(arguments: Any) -> str:
    return " ".join(str(word) for word in arguments.prompt)[:60]


COMMAND = Command(
    name="llm_generate",
    summary="continue a prompt with the current model",
    example='%llm_generate "Return the next" --temperature 0.7 --max-new-tokens 60',
    body="the prompt, untouched",
    options=(
        Option(name="prompt", help="the text to continue, in quotes", kind="any", many=True),
        Option(name="--max-new-tokens", help="at most", kind="integer", default=100),
        Option(name="--greedy", help="always the most probable token", kind="flag"),
        Option(name="--temperature", help="divides the logits; 0 is greedy", kind="number"),
        Option(name="--top-k", help="keep the k most probable tokens; 0 keeps all", kind="integer"),
        Option(name="--top-p", help="keep the smallest set with this probability; 0 is greedy", kind="number"),
        Option(
            name="--min-p", help="keep tokens with this share of the most probable one's probability", kind="number"
        ),
        Option(
            name="--typical-p",
            help="keep the smallest set with this probability whose surprise is nearest to the expected; 1 keeps all",
            kind="number",
        ),
        Option(name="--repetition-penalty", help="divides logits of tokens that were there; 1 is off", kind="number"),
        Option(
            name="--presence-penalty",
            help="taken off logits of tokens that are in the new text; 0 is off",
            kind="number",
        ),
        Option(
            name="--frequency-penalty", help="taken off once for each time a token is in the new text", kind="number"
        ),
        Option(name="--beams", help="keep so many continuations side by side; nothing is drawn", kind="integer"),
        Option(
            name="--length-penalty", help="power of a beam's length; more of it favours longer beams", kind="number"
        ),
        Option(
            name="--prompt-lookup",
            help="guess so many tokens a step from the text so far: faster where it repeats itself; 0 is off",
            kind="integer",
        ),
        Option(name="--sliding", help="go on where the context is full, without the oldest text", kind="flag"),
        Option(name="--stop", help="end before one of these texts", many=True),
        Option(name="--seed", help="of the random numbers", kind="integer"),
        Option(name="--n", help="samples; with several beams the best of them", kind="integer"),
        Option(name="--model", help="a run, folder, GGUF file or hub name", completes="run"),
        Option(name="--checkpoint", help="the step of a run's checkpoint", kind="integer"),
        Option(name="--adapter", help="an adapter, or off", completes="adapter"),
        Option(name="--chat", help="put the prompt into the model's chat template", kind="flag"),
        Option(name="--quantize", help="weights in 8 or 4 bits, on the CPU", choices=("int8", "int4")),
        Option(
            name="--backend", help="what runs the model", default="torch", choices=("torch", "onnx", "llamacpp", "vllm")
        ),
        Option(name="--draft", help="a smaller model with the same tokenizer that guesses tokens", completes="run"),
        Option(name="--trace", help="keep each step's alternatives", kind="flag"),
        Option(name="--file", help="many prompts: a .jsonl with prompt, text or messages, or text", completes="file"),
        Option(name="--to", help="the .jsonl file of their answers; the same line again goes on", completes="file"),
        Option(name="--overwrite", help="replace that file", kind="flag"),
    ),
    run=_run,
)
