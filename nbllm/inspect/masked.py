"""What a masked language model needs that a causal one doesn't: its mask token, and where it stands in a text.

A masked model says what stands in place of the mask, so a text's mask token is read as such here; every other special
token typed in a text stays text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nbllm.tokenizer import Tokenizer

_USUAL = ("[MASK]", "<mask>")


def is_masked(model: Any) -> bool:
    """Whether the model predicts hidden tokens and not the next one."""
    return type(model).__name__.endswith("ForMaskedLM")


def mask_token(tokenizer: Tokenizer) -> str | None:
    """The token that hides another, if the tokenizer has one."""
    named = (tokenizer.config.get("mask_token"), *_USUAL)
    return next((token for token in named if isinstance(token, str) and token in tokenizer.special_tokens), None)


def encode_masked(tokenizer: Tokenizer, text: str | Sequence[int]) -> str | Sequence[int]:
    """A text with mask tokens as ids; what has none comes back as it is."""
    token = mask_token(tokenizer)
    if not isinstance(text, str) or token is None or token not in text:
        return text
    ids: list[int] = []
    for number, piece in enumerate(text.split(token)):
        ids += [tokenizer.special_tokens[token]] if number else []
        ids += tokenizer.encode(piece)
    return ids


def mask_place(tokenizer: Tokenizer, ids: Sequence[int]) -> int | None:
    """Where the last mask token stands."""
    token = mask_token(tokenizer)
    wanted = None if token is None else tokenizer.special_tokens[token]
    return next((at for at in reversed(range(len(ids))) if ids[at] == wanted), None)
