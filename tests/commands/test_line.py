"""Splitting and expansion: the lines that broke other tools."""

from __future__ import annotations

from typing import Any

import pytest

from nbllm.commands.line import Word, expand, split
from nbllm.errors import NotFoundError, UsageError


def texts(line: str) -> list[tuple[Any, ...]]:
    return [(word.text, word.value) if word.has_value else (word.text,) for word in split(line)]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('--name="my run"', [("--name", "my run")]),
        ('--name "my run" x', [("--name",), ("my run",), ("x",)]),
        (r"C:\data\x.txt", [(r"C:\data\x.txt",)]),
        (r'"C:\data\new x.txt"', [(r"C:\data\new x.txt",)]),
        ("don't stop", [("don't",), ("stop",)]),
        ("'single quotes' \"a 'b' c\"", [("single quotes",), ("a 'b' c",)]),
        ("{2 * n} x{y} }{", [("{2 * n}",), ("x{y}",), ("}{",)]),
        ("--steps={2 * n}", [("--steps", "{2 * n}")]),
        ("", []),
        ('""', [("",)]),
    ],
)
def test_split(line: str, words: list[tuple[Any, ...]]) -> None:
    assert texts(line) == words


@pytest.mark.parametrize("line", ['"open', "--name='open", '"a"b'])
def test_quotes_that_do_not_fit_give_one_line(line: str) -> None:
    with pytest.raises(UsageError):
        split(line)


def values(line: str, **namespace: Any) -> list[Any]:
    words = expand(split(line), namespace, lambda code: eval(code, dict(namespace)))  # noqa: S307 the notebook's own code
    return [word.value if word.has_value else word.text for word in words]


def test_whole_unquoted_words_come_from_the_notebook() -> None:
    data = [{"a": 1}]
    assert values("$data --steps={n * 2} {100}", data=data, n=3) == [data, 6, 100]


def test_values_that_hold_braces_or_dollars_are_untouched() -> None:
    assert values("$text", text="{x} $y {'a': 1}") == ["{x} $y {'a': 1}"]


def test_elsewhere_dollars_and_braces_are_characters() -> None:
    assert values('"$x" cost$x a{b} $ $1 "{100}"') == ["$x", "cost$x", "a{b}", "$", "$1", "{100}"]


def test_unknown_variable_names_the_nearest() -> None:
    with pytest.raises(NotFoundError, match=r"No variable is named .txts.*Did you mean texts"):
        values("$txts", texts=[])


def test_expression_that_fails_is_one_line() -> None:
    with pytest.raises(UsageError, match="NameError"):
        values("{missing + 1}")


def test_without_a_notebook_braces_stay() -> None:
    assert expand(split("{100}"), {}) == [Word(text="{100}")]
