"""`quality gopher`: the quality rules of Gopher (Rae et al. 2021, arXiv 2112.11446, appendix A1).

Words are what stands between white space; in scripts without spaces each character is one. The rules on the mean word
length and on English stop words can't hold for such scripts and are left out where most letters belong to one. The
paper made these rules for English web prose: they ruin code, tables and mathematics.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from nbllm.corpus.stage import Outcome, Stage, argument, reasons, scores_of
from nbllm.corpus.words import lines, tokens, unspaced_share

_STOP_WORDS = frozenset(("the", "be", "to", "of", "and", "that", "have", "with"))
_BULLET = re.compile(r"\s*(?:[•‣●▪◦⁃∙·○■□▶►]|[-*+–—](?=\s))")
_LETTER = re.compile(r"[^\W\d_]")
_EDGE = re.compile(r"^\W+|\W+$")
_UNSPACED_MOSTLY = 0.5


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
    """Scores: what each rule looks at, in the units of its threshold."""

    NAME: ClassVar = "quality gopher"
    SUMMARY: ClassVar = "Gopher's rules on words, symbols, bullets, ellipses and stop words"
    EVIDENCE: ClassVar = {reason: score for score, _, _, _, reason in _RULES}
    min_words: int = argument(50, "fewest words", parse=int)
    max_words: int = argument(100_000, "most words", parse=int)
    min_mean_word: float = argument(3.0, "least mean length of words, in characters", parse=float)
    max_mean_word: float = argument(10.0, "greatest mean length of words, in characters", parse=float)
    max_symbols: float = argument(0.1, "most # a word, and most ellipses a word", parse=float)
    max_bullets: float = argument(0.9, "largest share of lines that start with a bullet", parse=float)
    max_ellipses: float = argument(0.3, "largest share of lines that end with an ellipsis", parse=float)
    min_letters: float = argument(0.8, "least share of words with a letter", parse=float)
    min_stop_words: int = argument(2, "fewest of the, be, to, of, and, that, have, with", parse=int)

    def measure(self, batch: pa.RecordBatch) -> Outcome:
        found = [_measure(text) for text in batch["text"].to_pylist()]
        return Outcome(scores_of(len(batch), **{name: [one[name] for one in found] for name in _measure("")}))

    def decide(self, scores: pa.RecordBatch) -> pa.Array:
        spaced = pc.less(scores["unspaced"], _UNSPACED_MOSTLY)
        rules = []
        for score, compare, threshold, only_spaced, reason in _RULES:
            hit = compare(scores[score], getattr(self, threshold))
            rules.append((pc.and_(spaced, hit) if only_spaced else hit, reason))
        return reasons(len(scores), *rules)


def _measure(text: str) -> dict[str, Any]:
    found = tokens(text)
    words = max(1, len(found))
    rows = [line for line in lines(text) if line and not line.isspace()]
    stops = {_EDGE.sub("", token).lower() for token in found if len(token) < 12} & _STOP_WORDS
    return {
        "words": len(found),
        "mean_word": sum(map(len, found)) / words,
        "hashes": text.count("#") / words,
        "ellipses": (text.count("...") + text.count("…")) / words,
        "bullet_lines": sum(1 for line in rows if _BULLET.match(line)) / max(1, len(rows)),
        "ellipsis_lines": sum(1 for line in rows if line.rstrip().endswith(("...", "…"))) / max(1, len(rows)),
        "words_with_letter": sum(1 for token in found if _LETTER.search(token)) / words,
        "stop_words": len(stops),
        "unspaced": unspaced_share(text),
    }
