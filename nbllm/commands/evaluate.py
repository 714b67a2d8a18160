"""`%llm_eval`: loss, perplexity and bits a byte; benchmark scores; one text's tokens coloured; models side by side."""

from __future__ import annotations

from typing import Any

from nbllm.commands.base import Call, Command
from nbllm.commands.options import Option
from nbllm.errors import UsageError


def _run(call: Call) -> Any:
    arguments = call.arguments
    if len(arguments.text) > 1:
        raise UsageError("The text is more than one word", next='Put it in quotes: %llm_eval "some text"')
    text = arguments.text[0] if arguments.text else None
    if text is not None and ("on" in arguments.given or arguments.tasks):
        raise UsageError("A text of the line leaves no place for --on or --tasks")
    if arguments.model and arguments.models:
        raise UsageError("One of --model and --models")
    if (arguments.limit is not None or arguments.shots is not None) and not arguments.tasks:
        raise UsageError("--limit and --shots belong to --tasks")
    if text is not None and not arguments.models:
        return call.session.score(text, **arguments.only("model"))
    tasks = [name for words in arguments.tasks for name in words.split(",") if name]
    said: tuple[int, int] = (-1, 0)

    def progress(done: int, total: int) -> None:
        nonlocal said
        tenth = (10 * done // max(total, 1), total)
        if done < total and tenth != said:
            said = tenth
            call.say(f"{done:,} of {total:,} requests")

    return call.session.evaluate(
        text=text,
        tasks=tasks,
        **arguments.only("on", "limit", "shots", "model", "models"),
        progress=progress if tasks else None,
    )


COMMAND = Command(
    name="llm_eval",
    summary="loss, perplexity and bits a byte of the current model, or its scores in benchmark tasks",
    example='%llm_eval --on held-out\n%llm_eval "The capital of France is Paris"\n'
    "%llm_eval --tasks hellaswag,arc_easy --limit 100 --models first-run second-run",
    options=(
        Option(name="text", help="a text, in quotes: its tokens coloured by probability", kind="any", many=True),
        Option(name="--on", help="held-out, a file or another source", default="held-out", completes="file"),
        Option(name="--tasks", help="lm-eval's tasks, or YAML files of tasks", many=True, completes="file"),
        Option(name="--limit", help="ask only so many examples of each task", kind="integer"),
        Option(name="--shots", help="solved examples before each, by default what the task says", kind="integer"),
        Option(name="--model", help="a run, folder, GGUF file or hub name", completes="run"),
        Option(name="--models", help="several of these or adapters, side by side", many=True, completes="run"),
    ),
    run=_run,
)
