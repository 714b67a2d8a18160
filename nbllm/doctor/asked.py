"""How a generation was asked for, and the line that asks for it again with something changed.

Knows the names of `%llm_generate`'s options, which are those of the settings; not how they are read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nbllm.sample import Generation, SamplingParameters

_LONGEST = 200
"""Characters of a prompt that a line still shows."""
_FEW = 8


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What was typed."""

    prompt: str | None = None
    """The text, before a chat template; None where it was ids."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """`model`, `checkpoint`, `adapter`, `quantize`, `chat`, as far as they were given."""
    defaults: SamplingParameters = field(default_factory=SamplingParameters)
    """The settings that count where a line names none."""

    @property
    def given(self) -> dict[str, Any]:
        """The options that were given."""
        return {name: value for name, value in self.options.items() if value not in (None, False)}

    def loading(self) -> str:
        """The Python call that gives the model and its tokenizer."""
        options = {name: value for name, value in self.given.items() if name != "chat"}
        return f"nbllm.session().load_model({', '.join(f'{name}={value!r}' for name, value in options.items())})"

    def line(self, generation: Generation, *, options: Mapping[str, Any] | None = None, **settings: Any) -> str:
        """The line to type: the same prompt, model and settings but for what is changed.

        Args:
            generation: what was made.
            options: of `options`, those that change; None takes one away.
            settings: fields of `SamplingParameters` that change.

        Returns:
            `%llm_generate` where one line holds the prompt, else Python.
        """
        given = {name: value for name, value in {**self.given, **(options or {})}.items() if value not in (None, False)}
        wanted = dataclasses.replace(generation.parameters, **settings)
        changed = {
            item.name: getattr(wanted, item.name)
            for item in dataclasses.fields(wanted)
            if getattr(wanted, item.name) != getattr(self.defaults, item.name) or item.name in settings
        }
        said = _magic(self.prompt, given, {name: value for name, value in changed.items() if value is not False})
        off = [name for name, value in changed.items() if value is False and getattr(self.defaults, name)]
        if said is not None and not off:
            return said
        if self.prompt is not None and len(self.prompt) <= _LONGEST:
            prompt = repr(self.prompt)
        else:  # the ids have the template in them
            ids = generation.prompt_tokens
            prompt = repr(list(ids)) if len(ids) <= _FEW else "nbllm.session().last_generation.prompt_tokens"
            given.pop("chat", None)
        arguments = [f"{name}={value!r}" for name, value in {**given, **changed}.items()]
        return f"nbllm.session().generate({', '.join([prompt, *arguments])})"


def quoted(text: str) -> str | None:
    """A text as a word of a magic's line; None where no quotes hold it."""
    if not text or len(text) > _LONGEST or set(text) & set("\n\r"):
        return None
    for mark in "\"'":
        if mark not in text:
            return f"{mark}{text}{mark}"
    return None


def _magic(prompt: str | None, given: Mapping[str, Any], settings: Mapping[str, Any]) -> str | None:
    """A `%llm_generate` line; None where it can't hold all of this."""
    words = [quoted(prompt) if prompt is not None else None]
    for name, value in {**given, **settings}.items():
        for one in value if isinstance(value, tuple) else [value]:
            words.append(f"--{name.replace('_', '-')}")
            if one is not True:
                words.append(_typed(one))
    if any(word is None for word in words):
        return None
    return " ".join(["%llm_generate", *(word for word in words if word is not None)])


def _typed(value: Any) -> str | None:
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    text = str(value)
    return text if text and not set(text) & set(" \t\n\r\"'${}") else quoted(text)
