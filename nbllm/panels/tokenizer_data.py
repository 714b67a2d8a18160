"""What the tokenizer panel sends: strips and segments as typed arrays, a vocabulary's search, one token's details.

Knows tokenizers and alignments as objects handed in; no widget, no session. All text is made visible here and is a
text node in the page.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MOST_LEAVES = 200
_HEX = re.compile(r"0x((?:\s*[0-9a-fA-F]{2})+)\s*")


def encode_strip(strip: Any) -> tuple[dict[str, Any], bytes]:
    """One strip (`TokenStrip`) for the page.

    Returns:
        What is said of it with the visible text of each distinct token, and little-endian int32 [N, 4]: place among the
        distinct ones, first byte, first character, place after the last character. The `ids` and `sizes` (bytes) of
        the distinct ones are part of the header; `shared` lists first token, tokens and visible text of what several
        tokens share.
    """
    from nbllm.tokenizer.visible import visible

    places: dict[int, int] = {}
    distinct: list[Any] = []
    numbers = np.zeros((len(strip.tokens), 4), dtype="<i4")
    at = 0
    for row, token in enumerate(strip.tokens):
        if token.id not in places:
            places[token.id] = len(distinct)
            distinct.append(token)
        numbers[row] = places[token.id], at, token.start, token.end
        at += len(token.bytes)
    shared = []
    first = 0
    for group in strip.groups:
        if len(group) > 1:
            shared.append([first, len(group), visible(strip.text[group[0].start : group[-1].end])])
        first += len(group)
    header = {
        "names": [token.text for token in distinct],
        "ids": [token.id for token in distinct],
        "sizes": [len(token.bytes) for token in distinct],
        "special": [places[token.id] for token in distinct if token.special],
        "breaks": [places[token.id] for token in distinct if b"\n" in token.bytes],
        "shared": shared,
        "count": len(strip.tokens),
        "bytes": len(strip.text.encode()),
        "characters": len(strip.text),
        "exact": strip.round_trip,
    }
    return header, numbers.tobytes()


def encode_segments(alignment: Any) -> bytes:
    """Where all tokenizers cut, as int32 [S, K]: for each segment the place after its last token in each strip."""
    rows = [[last for _, last in segment.tokens] for segment in alignment.segments]
    return np.asarray(rows, dtype="<i4").reshape(len(rows), len(alignment.strips)).tobytes()


def tree_rows(details: Any) -> list[list[Any]]:
    """A token's merges from the top down, a row each: depth, visible text, id, rank."""
    rows: list[list[Any]] = []

    def walk(part: Any, depth: int) -> None:
        if len(rows) < _MOST_LEAVES:
            rows.append([depth, part.text, part.id, part.rank])
            for below in part.parts:
                walk(below, depth + 1)

    if details.tree is not None and details.tree.parts:
        walk(details.tree, 0)
    return rows


@lru_cache(maxsize=8)
def _table(tokenizer: Any) -> tuple[list[bytes], list[str], NDArray[np.int64]]:
    """A vocabulary's bytes, its visible texts, and the lengths in bytes."""
    pieces = [tokenizer.token_bytes(id) for id in range(tokenizer.vocab_size)]
    texts = [tokenizer.token_text(id) for id in range(tokenizer.vocab_size)]
    return pieces, texts, np.array([len(piece) for piece in pieces], dtype=np.int64)


def search(tokenizer: Any, query: str, *, order: str = "id") -> NDArray[np.int32]:
    """The ids of a vocabulary that a query finds, ids first where the query is a number.

    Args:
        tokenizer: whose vocabulary.
        query: text that a token holds (␣, ↵ and ⇥ as the strip shows them; capitals count where there are some);
            `0x` and hexadecimal digits for bytes; a number also for an id. Everything where it is empty.
        order: `id`, or `length` (the longest first).
    """
    pieces, texts, lengths = _table(tokenizer)
    hexadecimal = _HEX.fullmatch(query)
    if not query:
        found = np.arange(len(pieces))
    elif hexadecimal:
        wanted = bytes.fromhex(hexadecimal.group(1))
        found = np.array([id for id, piece in enumerate(pieces) if wanted in piece], dtype=np.int64)
    else:
        asked = query.replace(" ", "␣")
        fold = asked == asked.lower()
        found = np.array(
            [id for id, text in enumerate(texts) if asked in (text.lower() if fold else text)], dtype=np.int64
        )
    if order == "length":
        found = found[np.argsort(-lengths[found], kind="stable")]
    if query.isascii() and query.isdigit() and len(query) < 10 and int(query) < len(pieces):
        found = np.concatenate([[int(query)], found[found != int(query)]])
    return found.astype("<i4")


def names(tokenizer: Any, ids: list[int]) -> list[list[Any]]:
    """Visible text and length in bytes of some ids."""
    _, texts, lengths = _table(tokenizer)
    return [[texts[id], int(lengths[id])] for id in ids if 0 <= id < len(texts)]
