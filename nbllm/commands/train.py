"""`%llm_train`: start a run that outlives the kernel, or act on one."""

from __future__ import annotations

from typing import Any

from nbllm.commands.base import Call, Command
from nbllm.commands.options import Option
from nbllm.commands.training import SHARED_KEYS, SHARED_OPTIONS, wait
from nbllm.errors import UsageError
from nbllm.store import now

_ACTS = ("attach", "resume", "stop", "pause", "list", "compare")


def _run(call: Call) -> Any:
    session, arguments = call.session, call.arguments
    acts = [key for key in _ACTS if getattr(arguments, key)]
    if len(acts) > 1:
        raise UsageError(f"Only one of --{' and --'.join(acts)} at a time")
    if acts:
        return _act(call, acts[0])
    options = arguments.only("model", "corpus", "tokenizer", "objective", "dry_run", *SHARED_KEYS)
    if not any(key in options for key in ("steps", "epochs", "tokens")):
        call.say("One pass over the corpus, or what about two minutes of this device allow.")
    before = now()
    run: Any = session.train(**options)
    if arguments.dry_run:
        return run
    if run.manifest.created < before:
        call.say(f"The run {run.name} does this already and lives: this is it.")
    if arguments.wait:
        wait(call, run)
    return run


def _act(call: Call, act: str) -> Any:
    session, arguments = call.session, call.arguments
    if act == "list":
        return session.run_table()
    if act == "compare":
        return session.compare_runs(*arguments.compare)
    run = session.attach(getattr(arguments, act))
    if act == "attach":
        if arguments.wait:
            wait(call, run)
        return run
    if act == "resume":
        run.resume(**arguments.only("processes", "parallel", "batch_size"))
        if arguments.wait:
            wait(call, run)
        return run
    if act == "pause":
        run.pause()
        call.say(f"The run {run.name} pauses after this step. Go on with %llm_train --resume {run.name}")
        return None
    run.stop()
    checkpoints = run.checkpoints
    call.say(
        f"The run {run.name} is {run.status}"
        + (f", its last checkpoint at step {checkpoints[-1].step}." if checkpoints else ".")
    )
    return None


COMMAND = Command(
    name="llm_train",
    summary="train a model on the current corpus and tokenizer, in processes that outlive the kernel",
    example="%llm_train --dry-run\n%llm_train --model llama-nano --steps 200 --name first\n%llm_train --attach first",
    options=(
        Option(
            name="--model", help="a preset, or a folder or run to go on from", default="llama-nano", completes="preset"
        ),
        Option(name="--corpus", help="the corpus; the current one by default", completes="corpus"),
        Option(name="--tokenizer", help="the tokenizer; the current one by default", completes="tokenizer"),
        Option(
            name="--objective",
            help="what is predicted: the next token (clm) or hidden ones (mlm); auto: as the model does",
            default="auto",
            choices=("auto", "clm", "mlm"),
        ),
        Option(
            name="--dry-run",
            help="start nothing; show parameters, memory a device, steps, time, accelerate's configuration and command",
            kind="flag",
        ),
        *SHARED_OPTIONS,
        Option(name="--attach", help="show a run again with its whole history", completes="run"),
        Option(name="--resume", help="on from a pause, else from the last checkpoint", completes="run"),
        Option(name="--stop", help="write a checkpoint and end", completes="run"),
        Option(name="--pause", help="wait after the current step", completes="run"),
        Option(name="--list", help="every run of the store with its numbers", kind="flag"),
        Option(name="--compare", help="two to eight runs over one another", many=True, completes="run"),
    ),
    run=_run,
)
