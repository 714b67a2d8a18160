"""The text of tokens that may have been cut inside a character: whole characters only. Knows tokenizers."""

from __future__ import annotations

from collections.abc import Sequence

from nbllm.tokenizer import StreamDecoder, Tokenizer


def whole_text(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """What `tokenizer.decode` gives, without the beginning of a last character whose other bytes never came.

    Args:
        tokenizer: whose ids these are.
        ids: token ids; a U+FFFD that they spell stays.
    """
    text = tokenizer.decode(ids)
    if not text.endswith("\ufffd"):
        return text
    decoder = StreamDecoder(tokenizer)
    return "".join(decoder.push(id) for id in ids)
