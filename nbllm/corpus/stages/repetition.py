"""`repetition gopher`: the repetition rules of Gopher (Rae et al. 2021, arXiv 2112.11446, table A1).

A repeat is a second or later copy; blank lines are no lines. The most frequent n-gram counts only where it occurs at
least twice, so that a short text isn't dropped for its only sentence; among equally frequent ones the longest counts.
A character inside several repeated n-grams counts once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nbllm.corpus.stage import Outcome, Stage, reasons, scores_of
from nbllm.corpus.words import lines, paragraphs, words

_TOP = {2: 0.20, 3: 0.18, 4: 0.16}
_REPEATED = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}
_RULES = (
    ("repeated_lines", 0.30, "repeated lines"),
    ("repeated_paragraphs", 0.30, "repeated paragraphs"),
    ("repeated_line_characters", 0.20, "characters in repeated lines"),
    ("repeated_paragraph_characters", 0.20, "characters in repeated paragraphs"),
    *((f"top_{n}", most, f"one {n}-gram again and again") for n, most in _TOP.items()),
    *((f"repeated_{n}", most, f"repeated {n}-grams") for n, most in _REPEATED.items()),
)


@dataclass(frozen=True, kw_only=True)
class RepetitionGopher(Stage):
    """Scores: the share of lines, paragraphs or characters that each rule looks at, 0 to 1."""

    NAME: ClassVar = "repetition gopher"
    SUMMARY: ClassVar = "Gopher's rules on repeated lines, paragraphs and n-grams"
    EVIDENCE: ClassVar = {reason: name for name, _, reason in _RULES}

    def measure(self, batch: pa.RecordBatch) -> Outcome:
        found = [_measure(text) for text in batch["text"].to_pylist()]
        names = [rule[0] for rule in _RULES]
        return Outcome(scores_of(len(batch), **{name: [one[name] for one in found] for name in names}))

    def decide(self, scores: pa.RecordBatch) -> pa.Array:
        return reasons(len(scores), *((pc.greater(scores[name], most), reason) for name, most, reason in _RULES))


def _measure(text: str) -> dict[str, float]:
    scores: dict[str, float] = {}
    for name, parts in (("line", lines(text)), ("paragraph", paragraphs(text))):
        bare = [stripped for part in parts if (stripped := part.strip())]
        seen: set[str] = set()
        repeats = [part for part in bare if part in seen or seen.add(part)]  # type: ignore[func-returns-value]
        scores[f"repeated_{name}s"] = len(repeats) / max(1, len(bare))
        scores[f"repeated_{name}_characters"] = sum(map(len, repeats)) / max(1, sum(map(len, bare)))
    found = words(text)
    numbers: dict[str, int] = {}
    ids = np.array([numbers.setdefault(word, len(numbers)) for word in found], np.int64)
    sizes = np.array([len(word) for word in found], np.int64)
    grams, count = ids, len(ids)
    for n in range(2, max(_REPEATED) + 1):
        if count < n + 1:
            scores[f"top_{n}" if n in _TOP else f"repeated_{n}"] = 0.0
            continue
        # an n-gram is its first n-1 words' number and its last word: numbered afresh, so that no hash can collide
        pairs = grams[:-1] * np.int64(len(ids) + 1) + ids[n - 1 :]
        _, first, grams = np.unique(pairs, return_index=True, return_inverse=True)
        if n in _TOP:
            scores[f"top_{n}"] = _top_share(grams, first, sizes, n)
        else:
            scores[f"repeated_{n}"] = _repeated_share(grams, first, sizes, n)
    return scores


def _top_share(grams: NDArray[np.int64], first: NDArray[np.int64], sizes: NDArray[np.int64], n: int) -> float:
    counts = np.bincount(grams)
    most = counts.max()
    if most < 2:
        return 0.0
    ends = np.concatenate(([0], np.cumsum(sizes)))
    positions = first[counts == most]
    return min(1.0, float(most * (ends[positions + n] - ends[positions]).max() / ends[-1]))


def _repeated_share(grams: NDArray[np.int64], first: NDArray[np.int64], sizes: NDArray[np.int64], n: int) -> float:
    later = np.ones(len(grams), bool)
    later[first] = False
    starts = np.flatnonzero(later)
    if not len(starts):
        return 0.0
    edges = np.zeros(len(sizes) + 1, np.int64)
    np.add.at(edges, starts, 1)
    np.add.at(edges, starts + n, -1)
    covered = np.cumsum(edges[:-1]) > 0
    return float(sizes[covered].sum() / sizes.sum())
