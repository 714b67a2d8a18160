"""`%llm_session`: what is current, and what the store holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nbllm.commands.base import Call, Command
from nbllm.commands.options import Option
from nbllm.errors import UsageError, did_you_mean
from nbllm.store import Manifest

_ACTIONS = {
    "use": "make a stored corpus, tokenizer, run or adapter current",
    "rm": "remove artefacts; what was made from them is named first; --all: everything, with --yes",
    "gc": "remove what nothing uses and is made again when needed",
    "script": "the Python script that rebuilds this session from its sources",
    "pack": "the current artefacts and the script as one file, to hand to a colleague",
    "unpack": "take such a file's artefacts into this store",
    "open": "go on in another session over this store",
    "list": "the sessions over this store",
    "free": "release the models kept in the kernel's memory",
}
_NAMED = {"use": "a name", "rm": "a name", "pack": "a file", "unpack": "a file", "open": "a name"}


def _use(call: Call) -> None:
    for name in call.arguments.names:
        found = call.session.use(name)
        call.say(f"{found.kind} {name} is current.")


def _rm(call: Call) -> None:
    names, everything = call.arguments.names, call.arguments.all
    if everything and names:
        raise UsageError("rm takes names or --all, not both", received=" ".join(names))
    _say_removed(call, call.session.rm(*names, all=everything, yes=call.arguments.yes))


def _gc(call: Call) -> None:
    before = call.session.store.size_bytes()
    _say_removed(call, call.session.gc())
    call.say(f"{(before - call.session.store.size_bytes()) / 1e6:,.1f} MB freed.")


def _say_removed(call: Call, removed: Sequence[Manifest]) -> None:
    for manifest in removed:
        call.say(f"Removed {manifest.kind} {manifest.name}.")


def _script(call: Call) -> None:
    text = call.session.script()
    if not call.arguments.names:
        call.say(text)
        return
    path = Path(call.arguments.names[0]).expanduser()
    if path.exists() and not call.arguments.overwrite:
        raise UsageError(f"{path} is there already", next="Add --overwrite to replace it")
    path.write_text(text, encoding="utf-8")
    call.say(f"Written to {path}.")


def _pack(call: Call) -> None:
    file = call.arguments.names[0]
    packed = call.session.pack(file, overwrite=call.arguments.overwrite)
    size = Path(file).expanduser().stat().st_size
    call.say(f"Packed {', '.join(f'{item.kind} {item.name}' for item in packed)} into {file}, {size / 1e6:,.1f} MB.")


def _unpack(call: Call) -> None:
    call.say(str(call.session.unpack(call.arguments.names[0], overwrite=call.arguments.overwrite)))


def _open(call: Call) -> None:
    from nbllm.sessions import open_session

    session = open_session(call.arguments.names[0], call.session.store)
    call.say(f"Session {session.name} is open; later cells work with it.")


def _list(call: Call) -> None:
    from nbllm.sessions import session_names

    for name in session_names(call.session.store):
        call.say(f"{name}{'  (open)' if name == call.session.name else ''}")


def _free(call: Call) -> None:
    count = call.session.free()
    call.say(f"Released {count} model{'' if count == 1 else 's'}.")


_ACTS: dict[str, Callable[[Call], None]] = {
    "use": _use,
    "rm": _rm,
    "gc": _gc,
    "script": _script,
    "pack": _pack,
    "unpack": _unpack,
    "open": _open,
    "list": _list,
    "free": _free,
}


def _run(call: Call) -> Any:
    arguments = call.arguments
    action, names = arguments.action, arguments.names
    if action is None:
        return call.session.card()
    if action not in _ACTIONS:
        raise UsageError(f"%llm_session can't {action!r}", next=did_you_mean(action, _ACTIONS))
    if action in _NAMED and not names and not (action == "rm" and arguments.all):
        raise UsageError(f"%llm_session {action} needs {_NAMED[action]}", next="%llm_session lists what there is")
    if action in ("pack", "unpack", "open", "script") and len(names) > 1:
        raise UsageError(f"%llm_session {action} takes one name", received=" ".join(names))
    _ACTS[action](call)
    return None


COMMAND = Command(
    name="llm_session",
    summary="what is current: artefacts with their lineage, device, disk use and live runs",
    example="%llm_session\n%llm_session use pydocs\n%llm_session script rebuild.py\n%llm_session pack session.zip",
    actions=_ACTIONS,
    options=(
        Option(name="action", help="what to do; nothing shows the card"),
        Option(name="names", help="names of artefacts or sessions, or a file", many=True, completes="name"),
        Option(name="--all", help="rm: everything in the store", kind="flag"),
        Option(name="--yes", help="rm: although others were made from it", kind="flag"),
        Option(name="--overwrite", help="replace the file, or artefacts of the same name", kind="flag"),
    ),
    run=_run,
)
