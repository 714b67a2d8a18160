"""How a typed line becomes words: quotes group and are removed, a backslash is just a character, expansion is ours.

A quote opens only at the start of a word or right after `=`, so that `don't` and `C:\\data\\x.txt` are plain words and
`--name="my run"` is one. An unquoted word, or option value, that is as a whole `$name` or `{expression}` stands for a
value of the notebook; everywhere else dollars and braces are characters. Knows nothing of options.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from nbllm.errors import NotFoundError, UsageError, did_you_mean

_VARIABLE = re.compile(r"\$([^\W\d]\w*)", re.UNICODE)


@dataclass(frozen=True, kw_only=True)
class Word:
    """One word of a line."""

    text: str
    """Its characters, without the quotes that grouped them; for an option, up to and without its `=`."""
    quoted: bool = False
    """Whether `text`, or its value, stood in quotes: then nothing in it is expanded."""
    value: Any = None
    """For `--option=value`: the value; after expansion of a positional word: what it stands for."""
    has_value: bool = False
    """Whether `value` counts (it may be None)."""


def split(line: str) -> list[Word]:
    """Splits a line into words.

    Raises:
        UsageError: a quote that is opened isn't closed.
    """
    words: list[Word] = []
    position = 0
    while position < len(line):
        if line[position].isspace():
            position += 1
            continue
        option = re.compile(r"(--[A-Za-z][\w-]*)=").match(line, position)
        if option:
            value, quoted, position = _piece(line, option.end())
            words.append(Word(text=option.group(1), value=value, has_value=True, quoted=quoted))
        else:
            text, quoted, position = _piece(line, position)
            words.append(Word(text=text, quoted=quoted))
    return words


def _piece(line: str, start: int) -> tuple[str, bool, int]:
    """Reads one value from `start`: quoted, braced or up to the next space. Returns it, whether quoted, and the end."""
    if start < len(line) and line[start] in "\"'":
        end = line.find(line[start], start + 1)
        if end < 0:
            raise UsageError(
                f"A quote is opened and not closed: {line[start:][:60]}", next=f"Add a closing {line[start]}"
            )
        if end + 1 < len(line) and not line[end + 1].isspace():
            raise UsageError(
                f"Something follows a closing quote without a space: {line[start : end + 10]}",
                next="Put a space after the quote, or use the other kind of quotes around the whole",
            )
        return line[start + 1 : end], True, end + 1
    if start < len(line) and line[start] == "{":
        depth = 0
        for position in range(start, len(line)):
            depth += {"{": 1, "}": -1}.get(line[position], 0)
            if depth == 0:
                if position + 1 == len(line) or line[position + 1].isspace():
                    return line[start : position + 1], False, position + 1
                break
    end = start
    while end < len(line) and not line[end].isspace():
        end += 1
    return line[start:end], False, end


def expand(words: list[Word], namespace: Mapping[str, Any], evaluate: Callable[[str], Any] | None = None) -> list[Word]:
    """Replaces each unquoted `$name` and `{expression}` by its value.

    Args:
        words: what `split` returned.
        namespace: the notebook's variables.
        evaluate: computes an expression in the notebook; None where there is no notebook (a terminal).

    Raises:
        NotFoundError: no variable has that name.
        UsageError: an expression that can't be computed.
    """
    expanded = []
    for word in words:
        source = word.value if word.has_value else word.text
        if word.quoted or not isinstance(source, str):
            expanded.append(word)
            continue
        variable = _VARIABLE.fullmatch(source)
        if variable:
            name = variable.group(1)
            if name not in namespace:
                hint = did_you_mean(name, [known for known in namespace if not known.startswith("_")][:500])
                close = hint if hint and hint.startswith("Did") else "Define it first"
                raise NotFoundError(
                    f"No variable is named {name!r} in the notebook",
                    next=f"{close}; in quotes, a dollar is a character",
                )
            expanded.append(replace(word, value=namespace[name], has_value=True))
        elif evaluate and len(source) > 2 and source.startswith("{") and source.endswith("}"):
            try:
                value = evaluate(source[1:-1])
            except Exception as error:
                raise UsageError(
                    f"{source} can't be computed: {type(error).__name__}: {error}",
                    next="Mend the expression; in quotes, braces are characters",
                ) from error
            expanded.append(replace(word, value=value, has_value=True))
        else:
            expanded.append(word)
    return expanded
