"""`quality gopher`: the quality rules of Gopher (Rae et al. 2021, arXiv 2112.11446, appendix A1).

Words are what stands between white space; in scripts without spaces each character is one. The rules on the mean word
length and on English stop words can't hold for such scripts and are left out where most letters belong to one. The
paper made these rules for English web prose: they ruin code, tables and mathematics.

`variant=datatrove`: its words; number and mean length without punctuation marks, the other shares with them; stop words
as they stand (`The` is none); only `•` and `-` are bullets, and blank lines are lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nbllm.corpus.layout import LETTER, SPACE, Ints, Layout, Spans, running, share
from nbllm.corpus.scripts import SPACED, threshold
from nbllm.corpus.spacy_words import spacy_words
from nbllm.corpus.stage import Handle, Outcome, Rules, Stage, argument, scores_of
from nbllm.corpus.stages.variant import DATATROVE, by_script_argument, scripts_of, variant_argument

_STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
_STOP_WORD_BYTES = 24
_AROUND_STOP_WORD = rf"^[^\pL\pN_]*(?:{'|'.join(_STOP_WORDS)})[^\pL\pN_]*$"
_EDGE = re.compile(r"^\W+|\W+$")
_BULLETS = np.array(list(map(ord, "•‣●▪◦⁃∙·○■□▶►")), np.uint32)
_DASH_BULLETS = np.array(list(map(ord, "-*+–—")), np.uint32)
_BULLETS_OF_DATATROVE = np.array([ord("•"), ord("-")], np.uint32)

_RULES: tuple[tuple[str, Callable[..., pa.Array], str, bool, str], ...] = (
    # score, comparison, threshold, only where words stand between spaces, reason
    ("words", pc.less, "min_words", False, "too few words"),
    ("words", pc.greater, "max_words", False, "too many words"),
    ("mean_word", pc.less, "min_mean_word", True, "words too short"),
    ("mean_word", pc.greater, "max_mean_word", True, "words too long"),
    ("hashes", pc.greater, "max_symbols", False, "too many #"),
    ("ellipses", pc.greater, "max_symbols", False, "too many ellipses"),
    ("bullet_lines", pc.greater, "max_bullets", False, "bullet list"),
    ("ellipsis_lines", pc.greater, "max_ellipses", False, "lines end in an ellipsis"),
    ("words_with_letter", pc.less, "min_letters", False, "too few words with a letter"),
    ("stop_words", pc.less, "min_stop_words", True, "too few stop words"),
)


@dataclass(frozen=True, kw_only=True)
class QualityGopher(Stage):
    """Scores: what each rule looks at, in the units of its threshold; `script`."""

    NAME: ClassVar = "quality gopher"
    SUMMARY: ClassVar = "Gopher's rules on words, symbols, bullets, ellipses and stop words"
    VERSION: ClassVar = 2
    EVIDENCE: ClassVar = {reason: score for score, _, _, _, reason in _RULES}
    HANDLES: ClassVar = tuple(Handle(score, name, compare is pc.less) for score, compare, name, _, _ in _RULES)
    min_words: int = argument(50, "fewest words", parse=int)
    max_words: int = argument(100_000, "most words", parse=int)
    min_mean_word: float = argument(3.0, "least mean length of words, in characters", parse=float)
    max_mean_word: float = argument(10.0, "greatest mean length of words, in characters", parse=float)
    max_symbols: float = argument(0.1, "most # a word, and most ellipses a word", parse=float)
    max_bullets: float = argument(0.9, "largest share of lines that start with a bullet", parse=float)
    max_ellipses: float = argument(0.3, "largest share of lines that end with an ellipsis", parse=float)
    min_letters: float = argument(0.8, "least share of words with a letter", parse=float)
    min_stop_words: int = argument(2, "fewest of the, be, to, of, and, that, have, with", parse=int)
    by_script: str = by_script_argument()
    variant: str = variant_argument()

    def measure(self, batch: pa.RecordBatch) -> Outcome:
        texts = batch["text"]
        if self.variant == DATATROVE:
            layout = Layout(texts, "splitlines")
            scores, total = _words_as_datatrove(layout)
            lines = _kept_by_splitlines(layout)
            scores |= _lines(layout, lines, _BULLETS_OF_DATATROVE, _BULLETS_OF_DATATROVE[:0])
        else:
            layout = Layout(texts)
            scores, total = _words(layout)
            scores |= _lines(layout, layout.filled_lines, _BULLETS, _DASH_BULLETS)
        scores["hashes"] = share(_count(texts, "#"), total)
        scores["ellipses"] = share(_count(texts, "...") + _count(texts, "…"), total)
        columns = {name: pa.array(scores[name]) for name in dict.fromkeys(rule[0] for rule in _RULES)}
        return Outcome(scores_of(len(batch), **columns, script=scripts_of(layout, self.variant, self.by_script)))

    def rules(self, scores: pa.RecordBatch) -> Rules:
        spaced = pc.equal(scores["script"], SPACED)
        rules: Rules = []
        for score, compare, name, only_spaced, reason in _RULES:
            hit = compare(scores[score], threshold(score, scores, getattr(self, name)))
            rules.append((pc.and_(spaced, hit) if only_spaced else hit, reason))
        return rules


def _words(layout: Layout) -> tuple[dict[str, NDArray[Any]], Ints]:
    """Scores of words, and the number of words by which symbols are divided."""
    tokens = layout.tokens
    letters = running(layout.has(LETTER))
    lettered = letters[tokens.end] > letters[tokens.start]
    codes, texts = layout.numbers(tokens)
    number = np.full(len(texts), -1, np.int64)
    low = pc.utf8_lower(texts)
    near = pc.and_(pc.less(pc.binary_length(texts), _STOP_WORD_BYTES), pc.match_substring_regex(low, _AROUND_STOP_WORD))
    places = np.flatnonzero(near.to_numpy(zero_copy_only=False))
    for place, text in zip(places.tolist(), low.take(pa.array(places)).to_pylist(), strict=True):
        bare = _EDGE.sub("", text)
        number[place] = _STOP_WORDS.index(bare) if bare in _STOP_WORDS else -1
    return {
        "words": tokens.counts,
        "mean_word": share(tokens.total(tokens.sizes), tokens.counts),
        "words_with_letter": share(tokens.total(lettered), tokens.counts),
        "stop_words": _different(number[codes], tokens.document, layout.documents),
    }, tokens.counts


def _words_as_datatrove(layout: Layout) -> tuple[dict[str, NDArray[Any]], Ints]:
    found = spacy_words(layout)
    total = np.diff(found.offsets)

    def summed(values: NDArray[Any]) -> NDArray[Any]:
        return np.diff(running(values[found.ids])[found.offsets])

    real = summed(~found.symbols)
    document = np.repeat(np.arange(layout.documents), total)
    return {
        "words": real,
        "mean_word": share(summed(np.where(found.symbols, 0, found.sizes)), real),
        "words_with_letter": share(summed(found.letters), total),
        "stop_words": _different(found.stop[found.ids], document, layout.documents),
    }, total


def _kept_by_splitlines(layout: Layout) -> Spans:
    """All lines, blank ones too, as `str.splitlines` gives them: without the empty one after a last line end."""
    lines = layout.lines
    last = lines.offsets[1:] - 1
    keep = np.ones(len(lines), bool)
    keep[last[(lines.start[last] == lines.end[last]) & (lines.counts > 1)]] = False
    return layout.spans(lines.start[keep], lines.end[keep])


def _lines(layout: Layout, lines: Spans, bullets: NDArray[np.uint32], dashes: NDArray[np.uint32]) -> dict[str, Any]:
    """Shares of lines that start with a bullet (a dash is one before a space) or end with an ellipsis."""
    points = layout.points
    filled = np.flatnonzero(~layout.has(SPACE))
    size = len(points)
    first = np.append(filled, size)[np.searchsorted(filled, lines.start)]
    last = np.append(-1, filled)[np.searchsorted(filled, lines.end)]
    hold = first < lines.end
    head = points[np.minimum(first, size - 1)] if size else points
    follows = layout.has(SPACE)[np.minimum(first + 1, size - 1)] if size else layout.has(SPACE)
    bullet = hold & (np.isin(head, bullets) | (np.isin(head, dashes) & follows & (first + 1 < lines.end)))
    dot = points == ord(".")
    ends = hold & (points[last] == ord("…"))
    three = hold & (last - 2 >= lines.start) & dot[last] & dot[np.maximum(last - 1, 0)] & dot[np.maximum(last - 2, 0)]
    return {
        "bullet_lines": share(lines.total(bullet), lines.counts),
        "ellipsis_lines": share(lines.total(ends | three), lines.counts),
    }


def _different(number: Ints, document: Ints, documents: int) -> Ints:
    """[D]: how many different numbers of 0 and more."""
    seen = np.zeros((documents, len(_STOP_WORDS)), bool)
    hit = number >= 0
    seen[document[hit], number[hit]] = True
    return seen.sum(axis=1)


def _count(texts: pa.Array, what: str) -> Ints:
    return np.asarray(pc.count_substring(texts, what).to_numpy(zero_copy_only=False), np.int64)
