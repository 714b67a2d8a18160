"""The line that starts a run again with something changed, from what the run's manifest or config keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MAGICS = {"train": "%llm_train", "finetune": "%llm_finetune"}
_PLAIN = ("model", "steps", "seq_len", "batch_size", "grad_accum", "lr", "epochs", "tokens", "schedule", "clip")
_LEFT_OUT = ("name", "wait", "dry_run", "progress")


class Line:
    """How a run was asked for.

    Args:
        call: `method` and `arguments` of the session's call, as a run's manifest keeps them; may be empty.
        config: the run's configuration, which is used where there is no call.
    """

    def __init__(self, call: Mapping[str, Any], config: Mapping[str, Any]) -> None:
        self.method = str(call.get("method") or ("finetune" if config.get("adapter") else "train"))
        arguments = call.get("arguments")
        self.arguments: dict[str, Any] = dict(arguments or {name: config.get(name) for name in _PLAIN})
        self.config = config

    def again(self, **changes: Any) -> str:
        """The line to type for the same run with these options changed; None takes one away."""
        options = {**self.arguments, **changes}
        words = [_MAGICS.get(self.method, "%llm_train")]
        for name, value in options.items():
            if name in _LEFT_OUT or value is None or value is False or value == ():
                continue
            words.append(f"--{name.replace('_', '-')}")
            if value is not True:
                words.append(_typed(name, value))
        return " ".join(words)


def _typed(name: str, value: Any) -> str:
    if isinstance(value, Mapping):  # an object of the notebook: its variable goes here
        return f"${name}"
    if isinstance(value, (list, tuple)):
        value = ",".join(map(str, value))
    if isinstance(value, float):
        return f"{value:.3g}"
    text = str(value)
    return text if text and not set(text) & set(" \t\n\"'${}") else f'"{text}"'
