"""What a tokenizer.json says: read by the tokenizers library, and questions about its content.

Knows the file's format; nothing of encoding.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import tokenizers

from nbllm.errors import DataError


def read_definition(definition: str, name: str) -> tokenizers.Tokenizer:
    """The library's tokenizer of a definition, without padding and truncation; raises DataError where it is none."""
    try:
        backend = tokenizers.Tokenizer.from_str(definition)
    except Exception as error:  # the library raises plain Exception
        raise DataError(f"{name} holds no tokenizer.json that can be read: {error}") from error
    backend.no_padding()
    backend.no_truncation()
    return backend


def with_special(definition: str, special: Mapping[str, int]) -> str:
    """The definition with these added tokens marked as special; some files leave that out for their end of text."""
    content = json.loads(definition)
    unmarked = [token for token in content["added_tokens"] if token["content"] in special and not token["special"]]
    if not unmarked:
        return definition
    for token in unmarked:
        token["special"] = True
    return json.dumps(content, ensure_ascii=False)


def plain_token(token: Any) -> Any:
    """A special token as its text; configs also write it as a record, which transformers doesn't always take back."""
    return token.get("content") if isinstance(token, Mapping) else token


def step_types(step: Any) -> set[str]:
    """The types of a tokenizer.json's step and of the steps inside it."""
    if not isinstance(step, Mapping):
        return set()
    inner = [*step.get("decoders", ()), *step.get("pretokenizers", ()), *step.get("normalizers", ())]
    return {str(step.get("type"))}.union(*(step_types(part) for part in inner))
