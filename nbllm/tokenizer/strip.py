"""A text as the strip of its tokens, for reading: what became one token, what was cut, and whether it comes back.

The strip is static HTML (tints that let the theme's own text colour through, so that it reads in light and dark) and
plain text. Everything from the text is escaped. Knows a Tokenizer and nothing else.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TypedDict

from nbllm.tokenizer.hints import hints
from nbllm.tokenizer.tokenizer import Tokenizer
from nbllm.tokenizer.visible import describe, visible

_SHOWN_TOKENS = 2000
_SHOWN_BYTES = 250_000
_SHOWN_HINTS = 6
_TINTS = ("0,114,178", "213,94,0", "0,158,115", "138,79,158", "230,159,0")
_STYLE = (
    ".nbllm-strip{font:13px/1.5 var(--jp-ui-font-family,system-ui,sans-serif);"
    "color:var(--jp-content-font-color1,inherit)}"
    ".nbllm-strip .nb-head{opacity:.8;font-variant-numeric:tabular-nums}"
    ".nbllm-strip .nb-tokens{font:13px/2 var(--jp-code-font-family,monospace);overflow-wrap:anywhere;margin:4px 0}"
    ".nbllm-strip .nb-t{padding:2px 1px;border-radius:3px;unicode-bidi:isolate;white-space:pre-wrap}"
    ".nbllm-strip .nb-g{border-bottom:1px solid;margin:0 2px;padding-bottom:1px;unicode-bidi:isolate;"
    "font-size:10px;white-space:nowrap}"
    ".nbllm-strip .nb-c{font-size:13px;padding-right:2px}"
    ".nbllm-strip .nb-s{outline:1px solid}"
    + "".join(f".nbllm-strip .nb-{i}{{background:rgba({tint},.22)}}" for i, tint in enumerate(_TINTS))
)


@dataclass(frozen=True, kw_only=True)
class StripToken:
    """One token of a strip."""

    id: int
    """Its id."""
    text: str
    """Its bytes made visible: ␣, ↵, <F0>."""
    bytes: bytes
    """What it stands for."""
    start: int
    """The first character of the text that it holds a part of."""
    end: int
    """The place after the last one."""
    special: bool
    """Whether it is a special token."""
    merge: tuple[int, str, str] | None
    """The merge that makes it: its rank (0 was learned first), left and right part made visible; None for a byte."""

    @property
    def title(self) -> str:
        """All about it in one line."""
        count = len(self.bytes)
        line = f"id {self.id} · {count} byte{'' if count == 1 else 's'}: {self.bytes[:32].hex(' ').upper()}"
        if count > 32:
            line += " …"
        if self.special:
            line += " · special token"
        if self.merge is not None:
            rank, left, right = self.merge
            line += f" · merge {rank:,}: {left} + {right}"
        return line


@dataclass(frozen=True, kw_only=True)
class TokenStrip:
    """A text's tokens, as `tokenizer.inspect(text)` gives them; shows itself in a notebook and by `print`."""

    tokenizer_name: str
    """Which tokenizer."""
    text: str
    """What was encoded."""
    decoded: str
    """What came back."""
    tokens: tuple[StripToken, ...]
    """Its tokens in order."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def round_trip(self) -> bool:
        """Whether decoding gives the text back, character for character."""
        return self.decoded == self.text

    @property
    def groups(self) -> list[Sequence[StripToken]]:
        """The tokens, those that share a character together."""
        found: list[list[StripToken]] = []
        for token in self.tokens:
            if found and token.start < found[-1][-1].end:
                found[-1].append(token)
            else:
                found.append([token])
        return list(found)

    @property
    def notes(self) -> list[str]:
        """What a reader may wonder about in this text's tokens, a sentence each."""
        notes = []
        if not self.round_trip:
            notes.append(self._difference())
        shared = [self.text[group[0].start : group[-1].end] for group in self.groups if len(group) > 1]
        characters = dict.fromkeys(character for piece in shared for character in piece if ord(character) > 127)
        if characters:
            named = ", ".join(f"{visible(character)} ({describe(character)})" for character in list(characters)[:4])
            more = f" and {len(characters) - 4} more" if len(characters) > 4 else ""
            notes.append(
                f"Characters spread over several tokens, since the vocabulary lacks them as a whole: {named}{more}"
            )
        if not unicodedata.is_normalized("NFC", self.text):
            notes.append(
                "The text holds letters followed by combining marks; they cut otherwise than the joined letters"
            )
        if self.text != self.text.rstrip(" "):
            notes.append(
                "The text ends in spaces: a model usually expects the space at the beginning of the next token instead"
            )
        odd = [hint.message for hint in hints(self.text, self.tokens)]
        rest = [f"… and {len(odd) - _SHOWN_HINTS:,} more odd splits"] if len(odd) > _SHOWN_HINTS else []
        return [*notes, *odd[:_SHOWN_HINTS], *rest]

    def _difference(self) -> str:
        pairs = zip(self.text, self.decoded, strict=False)
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(self.text), len(self.decoded)))
        was, came = self.text[at : at + 10], self.decoded[at : at + 10]
        return (
            f"Round trip fails at character {at}: {visible(was) or 'nothing'} came back as {visible(came) or 'nothing'}"
        )

    def _head(self) -> str:
        count, size_bytes = len(self.tokens), len(self.text.encode())
        per_token = f"{size_bytes / count:.2f} bytes a token" if count else "no tokens"
        state = "round trip exact" if self.round_trip else "round trip NOT exact"
        return f"{count:,} tokens · {len(self.text):,} characters · {size_bytes:,} bytes · {per_token} · {state}"

    def __str__(self) -> str:
        pieces = []
        for group in self.groups:
            joined = "│".join(token.text for token in group)
            shown = visible(self.text[group[0].start : group[-1].end])
            pieces.append(f"{{{shown}: {joined}}}" if len(group) > 1 else joined)
        ids = " ".join(str(token.id) for token in self.tokens)
        lines = [f"{self.tokenizer_name} · {self._head()}", "│".join(pieces), f"ids: {ids}"]
        return "\n".join([*lines, *self.notes])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        parts: list[str] = []
        shown = room = 0
        for group in self.groups:
            spans = [self._span(token, shown + i) for i, token in enumerate(group)]
            part = "".join(spans)
            if len(group) > 1:
                title = f"{len(group)} tokens share {self._shared(group)}"
                whole = escape(visible(self.text[group[0].start : group[-1].end]))
                part = f'<span class="nb-g" title="{escape(title)}"><span class="nb-c">{whole}</span>{part}</span>'
            room += len(part.encode())
            if shown + len(group) > _SHOWN_TOKENS or room > _SHOWN_BYTES:
                break
            parts.append(part)
            shown += len(group)
        if shown < len(self.tokens):
            parts.append(
                f"<div>… and {len(self.tokens) - shown:,} more tokens, left out to keep the notebook small</div>"
            )
        notes = "".join(f"<div>{escape(note)}</div>" for note in self.notes)
        return (
            f'<div class="nbllm-strip"><style>{_STYLE}</style>'
            f'<div class="nb-head"><b>{escape(self.tokenizer_name)}</b> · {escape(self._head())}</div>'
            f'<div class="nb-tokens">{"".join(parts)}</div>{notes}</div>'
        )

    def _shared(self, group: Sequence[StripToken]) -> str:
        characters = self.text[group[0].start : group[-1].end]
        named = ", ".join(f"{visible(character)} ({describe(character)})" for character in characters[:8])
        return named + (", …" if len(characters) > 8 else "")

    def _span(self, token: StripToken, number: int) -> str:
        special = " nb-s" if token.special else ""
        line_end = "<br>" if b"\n" in token.bytes else ""
        return (
            f'<span class="nb-t nb-{number % len(_TINTS)}{special}" title="{escape(token.title)}">'
            f"{escape(token.text) or '&nbsp;'}</span>{line_end}"
        )


def inspect(tokenizer: Tokenizer, text: str, *, allow_special: bool = False) -> TokenStrip:
    """The strip of one text.

    Args:
        tokenizer: what cuts it.
        text: any text.
        allow_special: read special tokens typed in the text as themselves.

    Raises:
        DataError: half a surrogate pair in the text.
    """
    ids, offsets = tokenizer.encode_with_offsets(text, allow_special=allow_special)
    special = set(tokenizer.special_tokens.values())
    known: dict[int, _Known] = {}
    for id in set(ids):
        merge = tokenizer.merge(id)
        known[id] = _Known(
            id=id,
            text=tokenizer.token_text(id),
            bytes=tokenizer.token_bytes(id),
            special=id in special,
            merge=merge and (merge[0], visible(merge[1]), visible(merge[2])),
        )
    return TokenStrip(
        tokenizer_name=tokenizer.name,
        text=text,
        decoded=tokenizer.decode(ids, skip_special=False),
        tokens=tuple(
            StripToken(**known[id], start=start, end=end) for id, (start, end) in zip(ids, offsets, strict=True)
        ),
    )


class _Known(TypedDict):
    """What is the same wherever a token stands."""

    id: int
    text: str
    bytes: bytes
    special: bool
    merge: tuple[int, str, str] | None
