"""`%llm_adapter`: which adapter the next sampling uses, merging one into its base, comparing, and what one changed."""

from __future__ import annotations

from typing import Any

from nbllm.commands.base import Call, Command
from nbllm.commands.options import Option
from nbllm.errors import NbllmError, UsageError, did_you_mean

_ACTIONS = {
    "list": "every adapter of the store",
    "use": "make one current; the base isn't loaded again",
    "off": "sample from the base alone",
    "merge": "write base and adapter as one transformers folder",
    "compare": 'A B … "prompt": base and adapters side by side, with the same random numbers',
    "changes": "what one changed: norms by layer and module, and the tokens that moved most",
}


def _run(call: Call) -> Any:
    arguments = call.arguments
    action = arguments.action or "list"
    if action not in _ACTIONS:
        raise UsageError(f"%llm_adapter can't {action!r}", next=did_you_mean(action, _ACTIONS))
    words = [str(word) for word in arguments.names or ()]
    if action == "compare":
        return _compare(call, words)
    if len(words) > 1:
        raise UsageError(f"%llm_adapter {action} takes one adapter", received=" ".join(words))
    name = words[0] if words else None
    if action == "changes":
        return call.session.adapter_report(name)
    if action == "list":
        _list(call)
    elif action == "use":
        if name is None:
            raise UsageError("%llm_adapter use needs a name", next="%llm_adapter list shows them")
        call.session.use_adapter(name)
        call.say(f"The next sampling uses the adapter {name}.")
    elif action == "off":
        call.session.use_adapter(None)
        call.say("The next sampling uses the base alone.")
    else:
        folder = call.session.merge_adapter(name, arguments.to, overwrite=arguments.overwrite)
        call.say(f"Merged into {folder}; it is the current model now.")
    return None


def _list(call: Call) -> None:
    found = call.session.adapters()
    for manifest in found:
        current = " · in use" if manifest.name == call.session.adapter else ""
        step = manifest.summary.get("step")
        method = manifest.parameters.get("adapter", {}).get("method")
        facts = [manifest.name, *([method] if method else []), f"on {_base(call, manifest)}"]
        call.say(" · ".join([*facts, *([f"step {step}"] if step else [])]) + current)
    if not found:
        call.say("There are no adapters yet. Make one with %llm_finetune --data FILE")


def _base(call: Call, manifest: Any) -> str:
    try:
        return str(call.session.models.base_of(manifest.name, None).name)
    except NbllmError:  # gone, or of another machine
        return str(manifest.parameters["model"])


def _compare(call: Call, words: list[str]) -> Any:
    if not words:
        raise UsageError("There is no prompt to compare on", next='%llm_adapter compare NAME "a prompt"')
    *names, prompt = words
    known = [manifest.name for manifest in call.session.adapters()]
    if prompt in known:
        raise UsageError("The last word of a comparison is the prompt", received=prompt, next='Add "a prompt"')
    settings = call.arguments.only("max_new_tokens", "temperature", "top_p", "seed", "greedy")
    scale = call.arguments.scale
    chosen = call.session.adapters_to_compare(names)
    return call.session.compare_adapters(
        *chosen,
        prompt=prompt,
        scales=None if scale is None else dict.fromkeys(chosen, scale),
        chat=True if call.arguments.chat else None,
        **settings,
    )


COMMAND = Command(
    name="llm_adapter",
    summary="list, switch, merge and compare adapters, and show what one changed",
    example="%llm_adapter use polite\n%llm_adapter merge polite --to merged\n"
    '%llm_adapter compare polite curt "What is a list?"\n%llm_adapter changes polite',
    actions=_ACTIONS,
    options=(
        Option(name="action", help="what to do"),
        Option(
            name="names",
            help="the adapter, the current one by default; to compare, the prompt last",
            many=True,
            completes="adapter",
        ),
        Option(name="--to", help="the folder that merge writes", completes="file"),
        Option(name="--overwrite", help="replace that folder", kind="flag"),
        Option(name="--scale", help="compare: how strongly they act; 0 is the base, 1 as trained", kind="number"),
        Option(name="--chat", help="compare: put the prompt into the chat template", kind="flag"),
        Option(name="--max-new-tokens", help="compare: how many", kind="integer"),
        Option(name="--temperature", help="compare: as of sampling", kind="number"),
        Option(name="--top-p", help="compare: as of sampling", kind="number"),
        Option(name="--greedy", help="compare: the most probable token each time", kind="flag"),
        Option(name="--seed", help="compare: of the random numbers", kind="integer"),
    ),
    run=_run,
)
