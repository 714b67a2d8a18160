"""`%llm_session`: what is current, and what the store holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nbllm.commands.base import Call, Command
from nbllm.commands.options import Option
from nbllm.errors import UsageError, did_you_mean

_ACTIONS = {
    "use": "make a stored corpus, tokenizer, run or adapter current",
    "rm": "remove artefacts; what was made from them is named first",
    "script": "the Python script that rebuilds this session from its sources",
    "free": "release the models kept in the kernel's memory",
}


def _run(call: Call) -> Any:
    session, arguments = call.session, call.arguments
    action, names = arguments.action, arguments.names
    if action is None:
        return session.card()
    if action not in _ACTIONS:
        raise UsageError(f"%llm_session can't {action!r}", next=did_you_mean(action, _ACTIONS))
    if action in ("use", "rm") and not names:
        raise UsageError(f"%llm_session {action} needs a name", next="%llm_session lists what there is")
    if action == "use":
        for name in names:
            found = session.use(name)
            call.say(f"{found.kind} {name} is current.")
    elif action == "rm":
        for removed in session.rm(*names, yes=arguments.yes):
            call.say(f"Removed {removed.kind} {removed.name}.")
    elif action == "script":
        text = session.script()
        if not names:
            call.say(text)
            return None
        path = Path(names[0]).expanduser()
        if path.exists() and not arguments.overwrite:
            raise UsageError(f"{path} is there already", next="Add --overwrite to replace it")
        path.write_text(text, encoding="utf-8")
        call.say(f"Written to {path}.")
    else:
        count = session.free()
        call.say(f"Released {count} model{'' if count == 1 else 's'}.")
    return None


COMMAND = Command(
    name="llm_session",
    summary="what is current: artefacts with their lineage, device, disk use and live runs",
    example="%llm_session\n%llm_session use pydocs\n%llm_session script rebuild.py",
    actions=_ACTIONS,
    options=(
        Option(name="action", help="what to do; nothing shows the card"),
        Option(name="names", help="names of artefacts, or the script's file", many=True, completes="name"),
        Option(name="--yes", help="remove although others were made from it", kind="flag"),
        Option(name="--overwrite", help="replace the script's file", kind="flag"),
    ),
    run=_run,
)
