"""`repetition gopher`: the repetition rules of Gopher (Rae et al. 2021, arXiv 2112.11446, table A1).

A repeat is a second or later copy; blank lines are no lines. The most frequent n-gram counts only where it occurs at
least twice, so that a short text isn't dropped for its only sentence; among equally frequent ones the longest counts.
A character inside several repeated n-grams counts once.

`variant=datatrove`: its words; shares of all characters, white space too; the most frequent n-gram counts even where it
occurs once, with the spaces inside it, and of equally frequent ones the first; repeated n-grams from left to right
without overlap; lines and paragraphs with the white space at their ends, cut at runs of \\n.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nbllm.corpus.layout import Layout, running, share
from nbllm.corpus.ngrams import (
    grams,
    repeated_characters,
    repeated_characters_greedy,
    repeated_parts,
    top_characters,
)
from nbllm.corpus.scripts import threshold
from nbllm.corpus.spacy_words import spacy_words
from nbllm.corpus.stage import Handle, Outcome, Rules, Stage, argument, scores_of
from nbllm.corpus.stages.variant import DATATROVE, by_script_argument, scripts_of, variant_argument

_TOP = (2, 3, 4)
_REPEATED = (5, 6, 7, 8, 9, 10)
_RULES = (
    # score, reason
    ("repeated_lines", "repeated lines"),
    ("repeated_paragraphs", "repeated paragraphs"),
    ("repeated_line_characters", "characters in repeated lines"),
    ("repeated_paragraph_characters", "characters in repeated paragraphs"),
    *((f"top_{n}", f"one {n}-gram again and again") for n in _TOP),
    *((f"repeated_{n}", f"repeated {n}-grams") for n in _REPEATED),
)


def _most(default: float, what: str) -> Any:
    return argument(default, f"largest share of {what}", parse=float)


@dataclass(frozen=True, kw_only=True)
class RepetitionGopher(Stage):
    """Scores: the share of lines, paragraphs or characters that each rule looks at, 0 to 1; `script`."""

    NAME: ClassVar = "repetition gopher"
    SUMMARY: ClassVar = "Gopher's rules on repeated lines, paragraphs and n-grams"
    VERSION: ClassVar = 2
    EVIDENCE: ClassVar = {reason: score for score, reason in _RULES}
    HANDLES: ClassVar = tuple(Handle(score, score, least=False) for score, _ in _RULES)
    repeated_lines: float = _most(0.30, "repeated lines")
    repeated_paragraphs: float = _most(0.30, "repeated paragraphs")
    repeated_line_characters: float = _most(0.20, "characters in repeated lines")
    repeated_paragraph_characters: float = _most(0.20, "characters in repeated paragraphs")
    top_2: float = _most(0.20, "characters in the most frequent 2-gram")
    top_3: float = _most(0.18, "characters in the most frequent 3-gram")
    top_4: float = _most(0.16, "characters in the most frequent 4-gram")
    repeated_5: float = _most(0.15, "characters in repeated 5-grams")
    repeated_6: float = _most(0.14, "characters in repeated 6-grams")
    repeated_7: float = _most(0.13, "characters in repeated 7-grams")
    repeated_8: float = _most(0.12, "characters in repeated 8-grams")
    repeated_9: float = _most(0.11, "characters in repeated 9-grams")
    repeated_10: float = _most(0.10, "characters in repeated 10-grams")
    by_script: str = by_script_argument()
    variant: str = variant_argument()

    def measure(self, batch: pa.RecordBatch) -> Outcome:
        as_datatrove = self.variant == DATATROVE
        layout = Layout(batch["text"], "newline" if as_datatrove else "usual")
        scores = _parts_as_datatrove(layout) if as_datatrove else _parts(layout)
        if as_datatrove:
            found = spacy_words(layout)
            words, offsets, sizes = found.ids, found.offsets, found.sizes[found.ids]
            whole = layout.sizes
        else:
            spans = layout.words
            words, _ = layout.numbers(spans)
            offsets, sizes = spans.offsets, spans.sizes
            whole = np.diff(running(sizes)[offsets])
        for each in grams(words, offsets, max(_REPEATED)):
            if each.n in _TOP:
                part = top_characters(each, sizes, offsets, joined=as_datatrove)
                scores[f"top_{each.n}"] = share(part, whole) if as_datatrove else np.minimum(1.0, share(part, whole))
            elif each.n in _REPEATED:
                count = repeated_characters_greedy if as_datatrove else repeated_characters
                scores[f"repeated_{each.n}"] = share(count(each, sizes, offsets), whole)
        columns = {name: pa.array(scores[name]) for name, _ in _RULES}
        return Outcome(scores_of(len(batch), **columns, script=scripts_of(layout, self.variant, self.by_script)))

    def rules(self, scores: pa.RecordBatch) -> Rules:
        rules: Rules = []
        for name, reason in _RULES:
            most = threshold(name, scores, getattr(self, name))
            rules.append((pc.greater(scores[name], most), reason))
        return rules


def _parts(layout: Layout) -> dict[str, NDArray[np.float64]]:
    scores = {}
    for name, spans in (("line", layout.filled_lines), ("paragraph", layout.paragraphs)):
        repeats, part, whole = repeated_parts(layout.strings(spans), spans.offsets)
        scores[f"repeated_{name}s"] = share(repeats, spans.counts)
        scores[f"repeated_{name}_characters"] = share(part, whole)
    return scores


def _parts_as_datatrove(layout: Layout) -> dict[str, NDArray[np.float64]]:
    scores = {}
    trimmed = pc.utf8_trim_whitespace(layout.texts)
    for name, texts, gap in (("line", layout.texts, "\n+"), ("paragraph", trimmed, "\n{2,}")):
        cut = pc.split_pattern_regex(texts, gap)
        offsets = running(pc.list_value_length(cut).to_numpy(zero_copy_only=False))
        repeats, part, _ = repeated_parts(pc.list_flatten(cut), offsets)
        scores[f"repeated_{name}s"] = share(repeats, np.diff(offsets))
        scores[f"repeated_{name}_characters"] = share(part, layout.sizes)
    return scores
