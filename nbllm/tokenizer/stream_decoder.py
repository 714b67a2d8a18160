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
        self._at_start = True
        self._ids: list[int] = []
        self._shown = ""

    def push(self, token_id: int) -> str:
        """The text that this token completes; empty where it ends inside a character."""
        kept = self._tokenizer.kept_ids([token_id], skip_special=self._skip_special)
        if self._tokenizer.joins_bytes:
            return self._without_first_space(self._bytes.decode(b"".join(map(self._tokenizer.token_bytes, kept))))
        self._ids.extend(kept)
        return self._new_text(hold=True)

    def flush(self) -> str:
        """What was held back; an unfinished character comes out as U+FFFD. Afterwards the decoder is new again."""
        if self._tokenizer.joins_bytes:
            rest = self._without_first_space(self._bytes.decode(b"", final=True))
        else:
            rest = self._new_text(hold=False)
        self._bytes.reset()
        self._at_start, self._ids, self._shown = True, [], ""
        return rest

    def _without_first_space(self, text: str) -> str:
        if self._at_start and text:
            self._at_start = False
            if self._tokenizer.drops_first_space and text.startswith(" "):
                return text[1:]
        return text

    def _new_text(self, *, hold: bool) -> str:
        """For other vocabularies (WordPiece) a token's text depends on its neighbours: decode all, show what is new."""
        text = self._tokenizer.decode(self._ids, skip_special=self._skip_special)
        if hold and text.endswith("\ufffd"):
            return ""
        new = text[len(self._shown) :]
        self._shown = text
        return new
