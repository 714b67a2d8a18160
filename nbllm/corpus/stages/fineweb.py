"""`quality fineweb`: FineWeb's own rules (Penedo et al. 2024, arXiv 2406.17557, section 3.6).

Blank lines are no lines, and white space at the ends of a line doesn't count. `list` (line ends a word) stands in
FineWeb's code only. Words are what stands between white space; in scripts without spaces each character is one.

`variant=datatrove`: a line of 30 characters is short too; repeated lines are measured against all characters but line
ends, and 0.01 of them is enough; its words; shares that equal a threshold are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nbllm.corpus.layout import ENDS_SENTENCE, Layout, share
from nbllm.corpus.ngrams import repeated_parts
from nbllm.corpus.scripts import threshold
from nbllm.corpus.spacy_words import spacy_words
from nbllm.corpus.stage import Handle, Outcome, Rules, Stage, argument, scores_of
from nbllm.corpus.stages.variant import DATATROVE, by_script_argument, scripts_of, variant_argument

_RULES: tuple[tuple[str, Callable[..., pa.Array], Callable[..., pa.Array], str], ...] = (
    # score (its threshold is the argument of that name), comparison of the paper, of datatrove, reason
    ("end_punctuation", pc.less_equal, pc.less, "lines without end punctuation"),
    ("short_lines", pc.greater_equal, pc.greater, "short lines"),
    ("repeated_characters", pc.greater_equal, pc.greater, "characters in repeated lines"),
    ("list", pc.greater, pc.greater, "a list: few words a line"),
)
_SHORT = 30


@dataclass(frozen=True, kw_only=True)
class QualityFineweb(Stage):
    """Scores: the share that each rule looks at; `script`."""

    NAME: ClassVar = "quality fineweb"
    SUMMARY: ClassVar = "FineWeb's rules on end punctuation, short lines, repeated lines and lists"
    EVIDENCE: ClassVar = {reason: score for score, _, _, reason in _RULES}
    HANDLES: ClassVar = tuple(Handle(score, score, score == "end_punctuation") for score, _, _, _ in _RULES)
    end_punctuation: float = argument(0.12, "drop at this share or less of lines that end a sentence", parse=float)
    short_lines: float = argument(0.67, "drop at this share or more of lines under 30 characters", parse=float)
    repeated_characters: float | None = argument(
        None, "drop at this share or more of characters in repeated lines; 0.1, for datatrove 0.01", parse=float
    )
    list: float = argument(0.3, "drop at more line ends a word", parse=float)
    by_script: str = by_script_argument()
    variant: str = variant_argument()

    def measure(self, batch: pa.RecordBatch) -> Outcome:
        as_datatrove = self.variant == DATATROVE
        layout = Layout(batch["text"], "newline" if as_datatrove else "usual")
        lines = layout.filled_lines
        if as_datatrove:
            # the lines that hold something, with the white space at their ends
            every = layout.lines
            number = np.searchsorted(every.start, lines.start, side="right") - 1
            lines = layout.spans(every.start[number], every.end[number])
            found = spacy_words(layout)
            words = np.diff(found.offsets)
            breaks = layout.lines.counts - 1
            whole = layout.sizes - breaks
        else:
            words = layout.tokens.counts
            breaks = _breaks_inside(layout)
        _, part, own = repeated_parts(layout.strings(lines), lines.offsets)
        ends = layout.has(ENDS_SENTENCE)[lines.end - 1]
        short = lines.sizes <= _SHORT if as_datatrove else lines.sizes < _SHORT
        columns: dict[str, Any] = {
            "end_punctuation": share(lines.total(ends), lines.counts),
            "short_lines": share(lines.total(short), lines.counts),
            "repeated_characters": share(part, whole if as_datatrove else own),
            "list": share(breaks, words),
        }
        columns = {name: pa.array(values) for name, values in columns.items()}
        return Outcome(scores_of(len(batch), **columns, script=scripts_of(layout, self.variant, self.by_script)))

    def rules(self, scores: pa.RecordBatch) -> Rules:
        as_datatrove = self.variant == DATATROVE
        rules: Rules = []
        for score, paper, datatrove, reason in _RULES:
            compare = datatrove if as_datatrove else paper
            rules.append((compare(scores[score], threshold(score, scores, self.limit(score))), reason))
        return rules

    def limit(self, argument: str) -> Any:
        if argument == "repeated_characters" and self.repeated_characters is None:
            return 0.01 if self.variant == DATATROVE else 0.1
        return super().limit(argument)


def _breaks_inside(layout: Layout) -> Any:
    """[D]: line ends between the first and the last line that hold something."""
    filled, every = layout.filled_lines, layout.lines
    number = np.searchsorted(every.start, filled.start, side="right") - 1
    found = np.zeros(layout.documents, np.int64)
    some = filled.counts > 0
    found[some] = number[filled.offsets[1:][some] - 1] - number[filled.offsets[:-1][some]]
    return found
