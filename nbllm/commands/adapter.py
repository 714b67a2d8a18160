"""`%llm_adapter`: which adapter the next sampling uses, and merging one into its base."""

from __future__ import annotations

from typing import Any

from nbllm.commands.base import Call, Command
from nbllm.commands.options import Option
from nbllm.errors import UsageError, did_you_mean

_ACTIONS = {
    "list": "every adapter of the store",
    "use": "make one current; the base isn't loaded again",
    "off": "sample from the base alone",
    "merge": "write base and adapter as one transformers folder",
}


def _run(call: Call) -> Any:
    session, arguments = call.session, call.arguments
    action, name = arguments.action or "list", arguments.name
    if action not in _ACTIONS:
        raise UsageError(f"%llm_adapter can't {action!r}", next=did_you_mean(action, _ACTIONS))
    if action == "list":
        found = session.adapters()
        for manifest in found:
            current = " · in use" if manifest.name == session.adapter else ""
            step = manifest.summary.get("step")
            call.say(
                f"{manifest.name} · on {manifest.parameters['model']}" + (f" · step {step}" if step else "") + current
            )
        if not found:
            call.say("There are no adapters yet. Make one with %llm_finetune --data FILE")
    elif action == "use":
        if name is None:
            raise UsageError("%llm_adapter use needs a name", next="%llm_adapter list shows them")
        session.use_adapter(name)
        call.say(f"The next sampling uses the adapter {name}.")
    elif action == "off":
        session.use_adapter(None)
        call.say("The next sampling uses the base alone.")
    else:
        folder = session.merge_adapter(name, arguments.to, overwrite=arguments.overwrite)
        call.say(f"Merged into {folder}; it is the current model now.")
    return None


COMMAND = Command(
    name="llm_adapter",
    summary="list, switch and merge adapters",
    example="%llm_adapter use polite\n%llm_adapter merge polite --to merged",
    actions=_ACTIONS,
    options=(
        Option(name="action", help="what to do"),
        Option(name="name", help="the adapter; the current one by default", completes="adapter"),
        Option(name="--to", help="the folder that merge writes", completes="file"),
        Option(name="--overwrite", help="replace that folder", kind="flag"),
    ),
    run=_run,
)
