"""Hints on odd splits: where a reader, and a model, may trip over how a text was cut.

Looks at the text and at where its tokens begin and end; knows no vocabulary, but may be given a function that encodes.
Numbers: Singh and Strouse 2024 (the same number cut from the left or from the right changes what models compute).
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from nbllm.tokenizer.visible import describe, visible

_ELEMENTS = frozenset(
    re.findall(
        r"[A-Z][a-z]?",
        "HHeLiBeBCNOFNeNaMgAlSiPSClArKCaScTiVCrMnFeCoNiCuZnGaGeAsSeBrKrRbSrYZrNbMoTcRuRhPdAgCdInSnSbTeIXe"
        "CsBaLaCePrNdPmSmEuGdTbDyHoErTmYbLuHfTaWReOsIrPtAuHgTlPbBiPoAtRnFrRaAcThPaUNpPuAmCmBkCfEsFmMdNoLr",
    )
)
_NUMBER = re.compile(r"(?<![^\W_])\d{4,}(?![^\W_])")
_FORMULA = re.compile(r"(?<![^\W_])(?:[A-Z][a-z]?[0-9₀-₉]{0,3}|[()][0-9₀-₉]{0,3}){2,40}(?![^\W_])")
_PART = re.compile(r"([A-Z][a-z]?|[()])([0-9₀-₉]*)")
_WORD = re.compile(r"[^\W\d_]+")
_LOOKALIKE = ("LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE")
_HIDDEN = re.compile(r"[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]+")
_SPACES = re.compile(r" {2,}(?=[^\W\d_])")
_MOST_WORDS = 200


class Placed(Protocol):
    """A token and the characters [start, end) that it holds a part of."""

    @property
    def start(self) -> int:
        """The first of them."""
        ...

    @property
    def end(self) -> int:
        """The place after the last one."""
        ...


@dataclass(frozen=True, kw_only=True)
class Hint:
    """What is odd about one part of a text."""

    start: int
    """The first character it is about."""
    end: int
    """The place after the last one."""
    message: str
    """A sentence."""


def hints(text: str, tokens: Sequence[Placed], encode: Callable[[str], Sequence[int]] | None = None) -> list[Hint]:
    """What is odd about a text's tokens, by place.

    Args:
        text: what was encoded.
        tokens: its tokens in order, as a strip has them.
        encode: text to ids; where it is given, a first word is compared with the same word after a space.
    """
    edges = sorted({token.start for token in tokens} | {token.end for token in tokens})
    cuts = _Cuts(text, edges)
    found = [*_formulas(cuts), *_numbers(cuts), *_scripts(cuts), *_hidden(text), *_spaces(cuts)]
    found += _same_words(cuts)
    if encode is not None:
        found += _first_word(text, encode)
    return sorted(found, key=lambda hint: (hint.start, hint.end))


class _Cuts:
    """A text with the places where its tokens begin or end."""

    def __init__(self, text: str, edges: Sequence[int]) -> None:
        self.text = text
        self._edges = frozenset(edges)

    def pieces(self, start: int, end: int) -> list[str]:
        """A part of the text, cut where tokens are cut."""
        places = [start, *(place for place in range(start + 1, end) if place in self._edges), end]
        return [self.text[a:b] for a, b in itertools.pairwise(places)]


def _shown(pieces: Sequence[str]) -> str:
    return "│".join(map(visible, pieces))


def _atoms(word: str) -> list[str]:
    """The atoms of a chemical formula with their counts, or nothing if it is none.

    Two elements at least, and a count above one: B2B and H1N1 are no formulas.
    """
    parts = _PART.findall(word)
    elements = {symbol for symbol, _ in parts if symbol not in ("(", ")")}
    counts = [count for _, count in parts if count]
    plain = all(count[0] not in "01₀₁" or len(count) > 1 for count in counts)
    if len(elements) < 2 or not elements <= _ELEMENTS or not counts or not plain:
        return []
    return [symbol + count for symbol, count in parts]


def _formulas(cuts: _Cuts) -> Iterator[Hint]:
    for match in _FORMULA.finditer(cuts.text):
        atoms = _atoms(match.group())
        pieces = cuts.pieces(match.start(), match.end())
        if atoms and len(pieces) > 1 and pieces != atoms:
            yield Hint(
                start=match.start(),
                end=match.end(),
                message=f"The formula {match.group()} is cut {_shown(pieces)}; its parts are {' '.join(atoms)}",
            )


def _numbers(cuts: _Cuts) -> Iterator[Hint]:
    """Numbers whose tokens don't line up with their places, counted from the right."""
    for match in _NUMBER.finditer(cuts.text):
        pieces = cuts.pieces(match.start(), match.end())
        sizes = [len(piece) for piece in pieces]
        if len(pieces) < 2 or (len(set(sizes[1:])) == 1 and sizes[0] <= sizes[1]):
            continue
        from_left = len(set(sizes[:-1])) == 1 and sizes[-1] < sizes[0]
        why = f"in groups of {sizes[0]} from the left" if from_left else "in uneven groups"
        yield Hint(
            start=match.start(),
            end=match.end(),
            message=f"The number {match.group()} is cut {_shown(pieces)}, {why}: its digits' places don't line up with "
            "those of other numbers, which makes sums harder to learn",
        )


def _script(character: str) -> str:
    return unicodedata.name(character, "").split(" ")[0]


def _scripts(cuts: _Cuts) -> Iterator[Hint]:
    for match in _WORD.finditer(cuts.text):
        word = match.group()
        if word.isascii():
            continue
        scripts: dict[str, str] = {}
        for character in word:
            scripts.setdefault(_script(character), character)
        mixed = [name for name in scripts if name in _LOOKALIKE]
        if len(mixed) > 1:
            odd = min(mixed, key=lambda name: sum(_script(character) == name for character in word))
            pieces = cuts.pieces(match.start(), match.end())
            yield Hint(
                start=match.start(),
                end=match.end(),
                message=f"The word {word} mixes {' and '.join(name.capitalize() for name in mixed)} letters, such as "
                f"{scripts[odd]} ({describe(scripts[odd])}); it is cut {_shown(pieces)}",
            )


def _hidden(text: str) -> Iterator[Hint]:
    for match in _HIDDEN.finditer(text):
        if match.group() == "\u200d" and match.start() > 0 and not text[match.start() - 1].isalpha():
            continue  # joins emoji
        yield Hint(
            start=match.start(),
            end=match.end(),
            message=f"A character that can't be seen, {describe(match.group()[0])}, takes tokens of its own or changes "
            "those beside it",
        )


def _spaces(cuts: _Cuts) -> Iterator[Hint]:
    for match in _SPACES.finditer(cuts.text):
        count = len(match.group())
        pieces = cuts.pieces(match.start(), match.end())
        if len(pieces) > 1:
            yield Hint(
                start=match.start(),
                end=match.end(),
                message=f"{count} spaces are cut {_shown(pieces)}; the last one usually goes to the word behind it",
            )


def _same_words(cuts: _Cuts) -> Iterator[Hint]:
    """Words that stand twice in a text and are cut otherwise the second time, most often for want of a space."""
    first: dict[str, list[str]] = {}
    told: set[str] = set()
    for match in _WORD.finditer(cuts.text):
        word = match.group()
        pieces = cuts.pieces(match.start(), match.end())
        before = first.setdefault(word, pieces)
        if pieces != before and word not in told and len(told) < _MOST_WORDS:
            told.add(word)
            why = "" if match.start() and cuts.text[match.start() - 1] == " " else ": no space stands before it"
            yield Hint(
                start=match.start(),
                end=match.end(),
                message=f"{word} is cut {_shown(pieces)} here and {_shown(before)} before{why}",
            )


def _first_word(text: str, encode: Callable[[str], Sequence[int]]) -> Iterator[Hint]:
    match = _WORD.match(text)
    if match is None:
        return
    word = match.group()
    bare, spaced = len(encode(word)), len(encode(" " + word))
    if bare > spaced:
        yield Hint(
            start=0,
            end=match.end(),
            message=f"The first word, {word}, takes {bare} tokens, and {spaced} with a space before it: vocabularies "
            "mostly know words by their leading space",
        )
