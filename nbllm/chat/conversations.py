"""What a row says: a conversation, an instruction, a prompt with its completion, or a plain text.

Turns rows of any of these forms into messages or pairs; knows neither tokens nor templates.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nbllm.chat.records import Record
from nbllm.errors import DataError, did_you_mean

Message = dict[str, str]
"""`role` and `content`."""
FORMATS = ("text", "chat", "instruction", "completion")
_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant", "ai": "assistant"}
_MESSAGES = ("messages", "conversations", "conversation", "dialog")
_INSTRUCTION = ("instruction", "question", "query")
_OUTPUT = ("output", "response", "answer")
_COMPLETION = ("completion", "response", "answer", "output")


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A text and how it goes on; no template stands around them."""

    prompt: str
    """What is given."""
    completion: str
    """What is learnt."""


def find_format(records: Sequence[Record]) -> str:
    """Which of `FORMATS` the first row has.

    Raises:
        DataError: none of them.
    """
    fields = records[0].fields
    if _first(fields, _MESSAGES):
        return "chat"
    if _first(fields, ("prompt",)) and _first(fields, _COMPLETION):
        return "completion"
    if _first(fields, _INSTRUCTION) and _first(fields, _OUTPUT):
        return "instruction"
    if "text" in fields:
        return "text"
    raise DataError(
        f"{records[0].where} is neither chat, instruction, completion nor text (it has {_names(fields)})",
        next="Rows have messages; instruction and output; prompt and completion; or text",
    )


def meaning(record: Record, format: str) -> list[Message] | Pair:
    """The conversation of a row (chat, instruction, and completions whose sides are messages), or its pair.

    Raises:
        DataError: a field is missing or holds something else; names the row.
    """
    if format == "chat":
        name = _field(record, _MESSAGES, format)
        return messages_of(record.fields[name], record.where)
    if format == "instruction":
        asked = _text(record, _field(record, _INSTRUCTION, format))
        given = record.fields.get("input")
        if given not in (None, "") and given == given:  # a missing cell of a DataFrame is not equal to itself
            asked = f"{asked}\n\n{given}"
        found = [{"role": "user", "content": asked}]
        found.append({"role": "assistant", "content": _text(record, _field(record, _OUTPUT, format))})
        system = record.fields.get("system")
        return [{"role": "system", "content": system}, *found] if isinstance(system, str) and system else found
    prompt, completion = _field(record, ("prompt",), format), _field(record, _COMPLETION, format)
    if not isinstance(record.fields[prompt], str):
        sides = [record.fields[prompt], record.fields[completion]]
        return [message for side in sides for message in messages_of(side, record.where)]
    return Pair(prompt=_text(record, prompt), completion=_text(record, completion))


def messages_of(value: Any, where: str) -> list[Message]:
    """Messages as `role` and `content`, from these, from `from` and `value`, or from JSON text of either."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise DataError(f"The messages of {where} aren't JSON: {error}") from error
    if not isinstance(value, Sequence) or not all(isinstance(one, Mapping) for one in value) or not value:
        raise DataError(f"The messages of {where} aren't a list of objects", received=value)
    found = []
    for one in value:
        role = one.get("role", one.get("from"))
        content = one.get("content", one.get("value"))
        if isinstance(content, Sequence) and not isinstance(content, str):
            content = "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
        if not isinstance(role, str) or not isinstance(content, str):
            raise DataError(f"A message of {where} has no role or no content", received=dict(one))
        found.append({"role": _ROLES.get(role, role), "content": content})
    return found


def _first(fields: Mapping[str, Any], names: Sequence[str]) -> str | None:
    return next((name for name in names if name in fields), None)


def _field(record: Record, names: Sequence[str], format: str) -> str:
    name = _first(record.fields, names)
    if name is None:
        near = did_you_mean(names[0], [str(field) for field in record.fields])
        raise DataError(
            f"{record.where} has no {names[0]!r}, which --format {format} needs (it has {_names(record.fields)})",
            next=near,
        )
    return name


def _text(record: Record, name: str) -> str:
    value = record.fields[name]
    if not isinstance(value, str):
        raise DataError(f"{name!r} of {record.where} is no text", received=value)
    return value


def _names(fields: Mapping[str, Any]) -> str:
    return ", ".join(map(str, list(fields)[:8])) or "no field"
