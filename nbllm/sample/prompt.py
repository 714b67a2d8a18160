"""From what the user typed to token ids: plain text, ids, an empty prompt, a conversation in the model's template.

Knows tokenizers, not models.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from nbllm.errors import UsageError
from nbllm.tokenizer import Tokenizer

Message = Mapping[str, str]


def encode_prompt(tokenizer: Tokenizer, prompt: str | Sequence[int]) -> list[int]:
    """The ids that a sampling starts from: never none.

    Text gets a beginning-of-text token where transformers would put one, and where it is empty; ids are taken as they
    are. Special tokens typed in the text are text.

    Raises:
        UsageError: an empty prompt, and the tokenizer has no beginning-of-text token.
    """
    if isinstance(prompt, str):
        ids = tokenizer.encode(prompt, add_bos=bool(prompt) and adds_bos(tokenizer))
    else:
        ids = [int(id) for id in prompt]
        for id in ids:
            if id < 0:
                raise UsageError("A token id is at least 0", received=id)
    if ids:
        return ids
    if tokenizer.bos_id is None:
        raise UsageError(
            f"The prompt is empty, and the tokenizer {tokenizer.name!r} has no token that begins a text",
            next="Type a prompt",
        )
    return [tokenizer.bos_id]


def adds_bos(tokenizer: Tokenizer) -> bool:
    """Whether transformers' version of this tokenizer begins every text with its beginning-of-text token."""
    if tokenizer.bos_id is None:
        return False
    return list(_transformers(tokenizer)("a").input_ids[:1]) == [tokenizer.bos_id]


def chat_prompt(tokenizer: Tokenizer, message: str | Sequence[Message], *, system: str | None = None) -> list[int]:
    """The ids of a conversation in the model's own chat template, up to where the model's answer begins.

    Special tokens typed in a message stay text: only the template can make them.

    Args:
        tokenizer: with a chat template.
        message: what the user says, or a conversation of `{"role": …, "content": …}`.
        system: what stands above the conversation.

    Raises:
        UsageError: there is no chat template, or it refuses the conversation.
    """
    if not tokenizer.chat_template:
        raise UsageError(
            f"The tokenizer {tokenizer.name!r} has no chat template", next="Leave --chat out, or take a chat model"
        )
    messages = [{"role": "user", "content": message}] if isinstance(message, str) else [dict(one) for one in message]
    if system is not None:
        messages = [{"role": "system", "content": system}, *messages]
    if not any(token in one["content"] for one in messages for token in tokenizer.special_tokens):
        return tokenizer.encode(_render(tokenizer, messages), allow_special=True)
    # A message that spells a special token: encode it apart from the template's own text.
    marks = [uuid.uuid4().hex for _ in messages]
    rest = _render(tokenizer, [one | {"content": mark} for one, mark in zip(messages, marks, strict=True)])
    ids: list[int] = []
    for one, mark in zip(messages, marks, strict=True):
        before, found, after = rest.partition(mark)
        if found:
            ids += tokenizer.encode(before, allow_special=True) + tokenizer.encode(one["content"])
            rest = after
    return ids + tokenizer.encode(rest, allow_special=True)


def _render(tokenizer: Tokenizer, messages: list[dict[str, str]]) -> str:
    try:
        text: Any = _transformers(tokenizer).apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # whatever a template raises
        raise UsageError(f"The chat template refuses the conversation: {error}") from error
    return str(text)


@lru_cache(maxsize=2)
def _transformers(tokenizer: Tokenizer) -> Any:
    return tokenizer.as_transformers()
