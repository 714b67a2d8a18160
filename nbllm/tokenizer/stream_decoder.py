"""Decoding token by token, as a model makes them: whole characters only, and in sum exactly what `decode` gives.

Knows a Tokenizer and nothing else.
"""

from __future__ import annotations

import codecs

from nbllm.tokenizer.tokenizer import Tokenizer


class StreamDecoder:
    """Turns ids into text as they come; holds back a character until its last byte is there.

    The pieces that `push` gives, then `flush`, are together `tokenizer.decode(ids)`.

    Args:
        tokenizer: whose ids these are.
        skip_special: leave special tokens out.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._bytes = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._ids: list[int] = []
        self._done = 0  # ids whose text is out
        self._shown = ""

    def push(self, token_id: int) -> str:
        """The text that this token completes; empty where it ends inside a character."""
        token_id = int(token_id)
        if self._tokenizer.byte_level:
            return self._bytes.decode(b"".join(self._tokenizer._kept_bytes([token_id], self._skip_special)))
        self._ids.append(token_id)
        return self._new_text(hold=True)

    def flush(self) -> str:
        """What was held back; an unfinished character comes out as U+FFFD. Afterwards the decoder is new again."""
        if self._tokenizer.byte_level:
            rest = self._bytes.decode(b"", final=True)
        else:
            rest = self._new_text(hold=False)
        self._bytes.reset()
        self._ids, self._done, self._shown = [], 0, ""
        return rest

    def _new_text(self, *, hold: bool) -> str:
        """For vocabularies that aren't byte-level the text of a token depends on its neighbours: decode, compare."""
        text = self._tokenizer.decode(self._ids, skip_special=self._skip_special)
        if hold and text.endswith("\ufffd"):
            return ""
        new = text[len(self._shown) :]
        self._shown = text
        return new
