"""Every setting of a sampling is an option of `%llm_generate`, of its kind, and reaches the session."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

from nbllm.commands import find
from nbllm.commands.base import Call
from nbllm.sample import SamplingParameters

COMMAND = find("llm_generate")
OTHER = {
    "max_new_tokens": 7, "greedy": True, "repetition_penalty": 1.5, "presence_penalty": -0.5, "frequency_penalty": 0.25,
    "temperature": 0.5, "top_k": 3, "top_p": 0.5, "min_p": 0.125, "typical_p": 0.75, "beams": 4, "length_penalty": -1.0,
    "prompt_lookup": 6, "sliding": True, "stop": ("END", "two words"), "seed": 9, "n": 2,
}  # fmt: skip


def asked(line: str) -> dict[str, Any]:
    """What the session is asked for."""
    found: dict[str, Any] = {}

    def generate(prompt: str, **options: Any) -> Any:
        found.update(options, prompt=prompt)
        return SimpleNamespace(texts=[""], summary="", stop_reason="eos")

    session: Any = SimpleNamespace(generate=generate, sampling=SamplingParameters())
    COMMAND.run(Call(session=session, arguments=COMMAND.parse(line), write=lambda text: None))
    del found["on_text"]
    return found


def test_every_setting_arrives() -> None:
    assert set(OTHER) == {field.name for field in fields(SamplingParameters)}
    for key, value in OTHER.items():
        option = "--" + key.replace("_", "-")
        given = " ".join(f'"{text}"' for text in value) if isinstance(value, tuple) else "" if value is True else value
        found = asked(f'"a prompt" {option} {given}')
        assert found == {"prompt": "a prompt", key: value}
        assert type(found[key]) is type(value)
        assert getattr(SamplingParameters(), key) != value
    assert asked("hello") == {"prompt": "hello"}
