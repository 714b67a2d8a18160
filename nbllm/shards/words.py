"""Encoding plain ASCII text a word at a time, each distinct word once: most words of a corpus stand in it many times.

Byte-level BPE never merges across the pieces that the tokenizer's own pattern cuts a text into, so the ids of a text
are those of its pieces. For ASCII the pattern means the same to Python's `re` once its Unicode classes are spelled out;
any other text, and any tokenizer that cuts in another way, is left to the tokenizers library. Texts are compared with
it before the short way is trusted.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbllm.tokenizer import Tokenizer

_CLASSES = {r"\p{L}": "a-zA-Z", r"\p{N}": "0-9", r"\s": r"\t\n\x0b\x0c\r ", r"\d": "0-9"}
_NEGATED = {r"\S": r"[^\t\n\x0b\x0c\r ]"}
_UNSURE = re.compile(r"[\x1c-\x1f]")  # space to Python, not to others
_MOST_WORDS = 400_000
_PROVEN_CHARACTERS = 20_000


class WordEncoder:
    """Encodes texts as the tokenizer does, special tokens as text.

    Args:
        tokenizer: any.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        pattern = _ascii_pattern(tokenizer)
        self._find = None if pattern is None else pattern.findall
        self._ids: dict[str, list[int]] = {}
        self._proven = 0

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of many texts, each as `tokenizer.encode_batch` has them."""
        cut = [self._cut(text) for text in texts]
        rest = iter(self._tokenizer.encode_batch([text for text, words in zip(texts, cut, strict=True) if not words]))
        self._learn(cut)
        known = self._ids.__getitem__
        found = [list(itertools.chain.from_iterable(map(known, words))) if words else next(rest) for words in cut]
        if self._find is not None and self._proven < _PROVEN_CHARACTERS:
            self._prove(texts, cut, found)
        return found

    def _cut(self, text: str) -> list[str]:
        """The pieces of a text; none where the short way isn't for it."""
        if self._find is None or not text.isascii() or _UNSURE.search(text):
            return []
        words: list[str] = self._find(text)
        return words if sum(map(len, words)) == len(text) else []

    def _learn(self, cut: list[list[str]]) -> None:
        if len(self._ids) > _MOST_WORDS:
            self._ids.clear()
        new = list(set().union(*cut) - self._ids.keys())
        if new:
            self._ids.update(zip(new, self._tokenizer.encode_batch(new), strict=True))

    def _prove(self, texts: Sequence[str], cut: list[list[str]], found: list[list[int]]) -> None:
        """Compares the first texts with the tokenizers library; where they differ, all is left to it from then on."""
        chosen = []
        for number, words in enumerate(cut):
            if words and self._proven < _PROVEN_CHARACTERS:
                chosen.append(number)
                self._proven += len(texts[number])
        if self._tokenizer.encode_batch([texts[number] for number in chosen]) != [found[number] for number in chosen]:
            self._find = None
            found[:] = self._tokenizer.encode_batch(texts)


def _ascii_pattern(tokenizer: Tokenizer) -> re.Pattern[str] | None:
    """What cuts ASCII text as the tokenizer does; None where it cuts otherwise than by one pattern before bytes."""
    definition = getattr(tokenizer, "definition", None)
    if definition is None:  # an object with no more than `encode_batch`
        return None
    spec: dict[str, Any] = json.loads(definition)
    if spec["model"]["type"] != "BPE" or spec.get("normalizer") is not None or spec["model"].get("dropout"):
        return None
    steps = (spec.get("pre_tokenizer") or {}).get("pretokenizers") or []
    if [step["type"] for step in steps] != ["Split", "ByteLevel"]:
        return None
    split, level = steps
    plain = split["behavior"] == "Isolated" and not split["invert"] and "Regex" in split["pattern"]
    if not plain or level["use_regex"] or level["add_prefix_space"]:
        return None
    return _spelled_out(split["pattern"]["Regex"])


def _spelled_out(pattern: str) -> re.Pattern[str] | None:
    """The pattern with its Unicode classes as ASCII ranges; None where it has others."""
    parts, inside = [], False
    for piece in re.findall(r"\\p\{\w+\}|\\.|.", pattern, flags=re.DOTALL):
        if piece in _CLASSES:
            parts.append(_CLASSES[piece] if inside else f"[{_CLASSES[piece]}]")
        elif piece in _NEGATED and not inside:
            parts.append(_NEGATED[piece])
        elif piece.startswith("\\") and piece[1].isalpha() and piece not in (r"\r", r"\n", r"\t"):
            return None
        else:
            inside = {"[": True, "]": False}.get(piece, inside)
            parts.append(piece)
    try:
        found = re.compile("".join(parts))
    except re.error:
        return None
    return None if found.groups else found
