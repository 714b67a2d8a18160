"""Every setting of a sampling is an option of `%llm_generate`, of its kind, and reaches the session."""

from __future__ import annotations

import contextlib
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest

from nbllm.__main__ import main
from nbllm.commands import find
from nbllm.commands.base import Call
from nbllm.errors import NotFoundError
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


def test_the_prompt_is_not_shown_before_there_is_a_model() -> None:
    said: list[str] = []

    def no_model(prompt: str, **options: Any) -> Any:
        raise NotFoundError("There is no model yet")

    def generate(prompt: str, *, on_text: Any, **options: Any) -> Any:
        on_text(0, " one")
        on_text(0, " two")
        return SimpleNamespace(texts=[" one two"], summary="2 tokens", stop_reason="eos")

    for function in (no_model, generate):
        session: Any = SimpleNamespace(generate=function, sampling=SamplingParameters())
        with contextlib.suppress(NotFoundError):
            COMMAND.run(Call(session=session, arguments=COMMAND.parse('"a prompt"'), write=said.append))
    assert said == ["a prompt", " one", " two", "\n(2 tokens)\n"]


def test_a_terminal_is_told_what_to_type_in_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "hello"]) == 1
    assert main(["clean"]) == 1
    assert main(["list"]) == 0
    printed = capsys.readouterr()
    assert printed.err.splitlines() == [
        "There is no model yet. Train one with python -m nbllm train, or add --model FOLDER.",
        "There is nothing to clean. Name a file, a folder, $texts or builtin:pydocs.",
    ]
    assert printed.out == "There are no runs yet. Start one with python -m nbllm train.\n"
