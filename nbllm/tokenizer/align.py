"""One text cut by several tokenizers, aligned by character: the smallest parts in which no token of any of them is cut.

Knows strips of the same text, not how they were made.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from nbllm.errors import UsageError
from nbllm.tokenizer.strip import StripToken, TokenStrip
from nbllm.tokenizer.tokenizer import Tokenizer

MOST = 5
"""How many tokenizers can stand side by side."""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A part of the text at whose two ends every tokenizer cuts."""

    start: int
    """The first character."""
    end: int
    """The place after the last one."""
    tokens: tuple[tuple[int, int], ...]
    """For each tokenizer the tokens [first, last) of its strip that stand here; first == last where there are none,
    as for white space that a tokenizer leaves out."""

    @property
    def counts(self) -> tuple[int, ...]:
        """Tokens that each tokenizer needs here."""
        return tuple(last - first for first, last in self.tokens)

    @property
    def agreed(self) -> bool:
        """Whether all tokenizers make one token of it."""
        return set(self.counts) == {1}


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """A text's tokens by several tokenizers, as `align` gives them."""

    text: str
    """What was encoded."""
    names: tuple[str, ...]
    """The tokenizers; of two with the same name the later one is numbered."""
    strips: tuple[TokenStrip, ...]
    """Each one's tokens, with the characters that they cover."""
    segments: tuple[Segment, ...]
    """The text in order; together the segments hold every token of every strip once."""

    def tokens(self, segment: Segment, which: int) -> Sequence[StripToken]:
        """The tokens of one segment by one tokenizer (0 is the first)."""
        first, last = segment.tokens[which]
        return self.strips[which].tokens[first:last]


def align(tokenizers: Sequence[Tokenizer], text: str, *, allow_special: bool = False) -> Alignment:
    """Cuts a text by each tokenizer and finds where all of them cut.

    Args:
        tokenizers: one to five.
        text: any text.
        allow_special: read special tokens typed in the text as themselves.

    Raises:
        UsageError: none, or more than five.
        DataError: half a surrogate pair in the text.
    """
    if not 1 <= len(tokenizers) <= MOST:
        raise UsageError(f"Side by side stand one to {MOST} tokenizers", received=len(tokenizers))
    strips = tuple(tokenizer.inspect(text, allow_special=allow_special) for tokenizer in tokenizers)
    return Alignment(
        text=text,
        names=tuple(numbered([tokenizer.name for tokenizer in tokenizers])),
        strips=strips,
        segments=tuple(_segments(text, [strip.tokens for strip in strips])),
    )


def numbered(names: Sequence[str]) -> list[str]:
    """The same names, the second and later of equal ones with a number behind."""
    found: list[str] = []
    for index, name in enumerate(names):
        earlier = names[:index].count(name)
        found.append(f"{name} ({earlier + 1})" if earlier else name)
    return found


def _segments(text: str, rows: Sequence[Sequence[StripToken]]) -> list[Segment]:
    inside = bytearray(len(text) + 1)
    edges = {0, len(text)}
    for tokens in rows:
        for token in tokens:
            edges |= {token.start, token.end}
            for place in range(token.start + 1, token.end):
                inside[place] = 1
    cuts = sorted(place for place in edges if not inside[place])
    if len(cuts) == 1:  # an empty text; a tokenizer may still have put something there
        cuts = [0, 0]
    places = [0] * len(rows)
    segments = []
    for start, end in itertools.pairwise(cuts):
        ranges = []
        for row, tokens in enumerate(rows):
            first = last = places[row]
            # a token without characters of its own, such as a space put in front, stands with what follows it
            while last < len(tokens) and (tokens[last].start < end or end == len(text)):
                last += 1
            ranges.append((first, last))
            places[row] = last
        segments.append(Segment(start=start, end=end, tokens=tuple(ranges)))
    return segments if text or any(rows) else []
