"""`toxicity [max=0.5 languages=en,de,fr,es,zh]`: how much of a text's sentences insult, by word lists; no download.

A word counts as a whole word only, so that Scunthorpe and sanctity don't, and not inside an allowed phrase (`bastard
file`). Strong words weigh 1, mild ones a half. A sentence weighs what its worst word does; the score is the mean of
the worst tenth of the sentences (at least three, or all there are), so that one word in a long text doesn't drop it and
a short text of abuse scores 1. The lists are nbllm's own, short, and about insults and slurs: they miss what is said
politely, and can't tell quoting from meaning.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from nbllm.corpus.stage import Handle, Outcome, Rules, Stage, argument, scores_of
from nbllm.corpus.stages.blocklist import phrase_pattern
from nbllm.corpus.stages.toxic_words import ALLOWED, MILD, STRONG
from nbllm.errors import UsageError, did_you_mean

_SENTENCE = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|[\r\n]+")
_WORST_SHARE = 0.1
_WORST_LEAST = 3
_MILD_WEIGHT = 0.5


def _languages(typed: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(code.strip().lower() for code in typed.split(",") if code.strip()))


@dataclass(frozen=True, kw_only=True)
class Toxicity(Stage):
    """Scores: `toxicity`, 0 to 1; `toxic_sentences`, how many sentences hold a word of the lists."""

    NAME: ClassVar = "toxicity"
    SUMMARY: ClassVar = "drops texts whose worst sentences insult, by word lists"
    HANDLES: ClassVar = (Handle("toxicity", "max", least=False),)
    max: float = argument(0.5, "drop texts that score more", parse=float)
    languages: tuple[str, ...] = argument(tuple(STRONG), "whose lists are used", parse=_languages)

    def __post_init__(self) -> None:
        if not 0 <= self.max <= 1:
            raise UsageError("max is a score, 0 to 1", received=self.max)
        for code in self.languages:
            if code not in STRONG:
                raise UsageError(f"toxicity has no word list for {code!r}", next=did_you_mean(code, STRONG))

    def measure(self, batch: pa.RecordBatch) -> Outcome:
        found = [toxicity(text, self.languages) for text in batch["text"].to_pylist()]
        return Outcome(
            scores_of(
                len(batch),
                toxicity=pa.array([one[0] for one in found], pa.float64()),
                toxic_sentences=pa.array([one[1] for one in found], pa.int32()),
            )
        )

    def rules(self, scores: pa.RecordBatch) -> Rules:
        return [(pc.greater(scores["toxicity"], self.max), "toxic")]


def toxicity(text: str, languages: tuple[str, ...]) -> tuple[float, int]:
    """The score of a text, and how many of its sentences hold a word of the lists."""
    strong, mild, allowed = _patterns(languages)
    if not (strong.search(text) or mild.search(text)):
        return 0.0, 0
    weights = []
    for sentence in _SENTENCE.split(text):
        if sentence and not sentence.isspace():
            bare = allowed.sub(" ", sentence)
            weights.append(1.0 if strong.search(bare) else _MILD_WEIGHT if mild.search(bare) else 0.0)
    weights.sort(reverse=True)
    worst = weights[: max(_WORST_LEAST, round(_WORST_SHARE * len(weights)))]
    return sum(worst) / len(worst), sum(weight > 0 for weight in weights)


@functools.cache
def _patterns(languages: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    strong, mild, allowed = (
        phrase_pattern(tuple(word for code in languages for word in lists.get(code, ())) or ("\uffff",))
        for lists in (STRONG, MILD, ALLOWED)
    )
    return strong, mild, allowed
