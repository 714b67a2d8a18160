"""Parsing against declared options, and every command's own table."""

from __future__ import annotations

from typing import Any

import pytest

from nbllm.commands import COMMANDS, find
from nbllm.commands.line import expand, split
from nbllm.commands.options import Arguments, Option, parse
from nbllm.errors import UsageError

OPTIONS = (
    Option(name="source", help="", many=True, kind="any"),
    Option(name="--name", help=""),
    Option(name="--steps", help="", kind="integer", default=10, also=("auto",)),
    Option(name="--lr", help="", kind="number"),
    Option(name="--stop", help="", many=True),
    Option(name="--fast", help="", kind="flag"),
    Option(name="--how", help="", choices=("one", "two")),
)


def parsed(line: str, **namespace: Any) -> Arguments:
    return parse("llm_x", OPTIONS, expand(split(line), namespace, lambda code: eval(code, dict(namespace))))  # noqa: S307


def test_defaults_and_given() -> None:
    arguments = parsed("a --fast b")
    assert arguments.values == {
        "source": ["a", "b"],
        "name": None,
        "steps": 10,
        "lr": None,
        "stop": [],
        "fast": True,
        "how": None,
    }
    assert arguments.given == {"source", "fast"}
    assert arguments.only("fast", "steps") == {"fast": True}


def test_objects_of_the_notebook_arrive_as_they_are() -> None:
    value = object()
    assert parsed("$value", value=value).source == [value]
    assert parsed("--steps $n", n=7).steps == 7
    assert parsed("--steps={n}", n="auto").steps == "auto"


def test_repeated_and_several_values() -> None:
    assert parsed("--stop a --stop b c").stop == ["a", "b", "c"]


def test_negative_numbers_and_quoted_dashes_are_values() -> None:
    assert parsed("--lr -1e-3").lr == -1e-3
    assert parsed('"--name"').source == ["--name"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--nam x", "no option --nam. Did you mean --name?"),
        ("--ste 3", "Did you mean --steps?"),
        ("--steps 1.5", "--steps takes a whole number or auto \\(received '1.5'\\)"),
        ("--steps {1.5}", "--steps takes a whole number or auto \\(received 1.5\\)"),
        ("--lr fast", "--lr takes a number \\(received 'fast'\\)"),
        ("--how three", "--how can't be 'three'"),
        ("--fast=1", "--fast takes no value"),
        ("--name", "expected one argument"),
        ("-name x", "no option -name. Did you mean --name?"),
    ],
)
def test_mistakes_are_one_line_with_the_nearest_name(line: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parsed(line)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_every_option_and_an_example_that_parses(name: str) -> None:
    command = COMMANDS[name]
    text = command.help()
    for option in command.all_options:
        assert option.positional or option.name in text
    for line in command.example.splitlines():
        if line.startswith("%"):
            words = line.split(maxsplit=1)
            assert words[0].lstrip("%") == name
            command.parse(words[1] if len(words) > 1 else "", {"examples": ["text"]})
    assert command.wants_help("--help")
    assert not command.wants_help('"--help"')


def test_unknown_magic_names_the_nearest() -> None:
    assert find("train") is COMMANDS["llm_train"]
    with pytest.raises(UsageError, match="Did you mean llm_train"):
        find("%llm_tran")
