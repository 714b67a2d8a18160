"""`dedup paragraph [keep=first]`: of equal paragraphs in the whole corpus the first stays.

Equal as in CCNet (Wenzek et al. 2020, section 3.1): lowercased, digits to 0, punctuation, control characters and white
space removed, then the first 64 bits of SHA-1; in NFC, which CCNet doesn't ask for. A paragraph of nothing but
punctuation is never a copy. `keep=none` removes every copy, as CCNet does. Paragraphs stand between blank lines.
"""

from __future__ import annotations

import functools
import hashlib
import re
import sys
import unicodedata
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from nbllm.corpus.keyed import parts, runs
from nbllm.corpus.stage import GlobalStage, Settled, Texts, argument
from nbllm.corpus.words import paragraphs

_DIGIT = re.compile(r"\d")
_KEEP = ("first", "none")


@dataclass(frozen=True, kw_only=True)
class DedupParagraph(GlobalStage):
    """Scores: `paragraphs`, and `copies`, the positions of those that go. A document left without text is `empty`."""

    NAME: ClassVar = "dedup paragraph"
    SUMMARY: ClassVar = "of equal paragraphs in the corpus keeps the first"
    UNIT: ClassVar = "paragraphs"
    keep: str = argument("first", "which copy stays", choices=_KEEP)

    def keys(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        hashes = [[self.key(part) for part in self.cut(text)] for text in batch["text"].to_pylist()]
        return pa.record_batch({"row": batch["row"], self.UNIT: pa.array(hashes, pa.list_(pa.uint64()))})

    def settle(self, keys: pa.Table, texts: Texts) -> Settled:
        chunks = keys[self.UNIT].chunks
        sizes = np.concatenate([chunk.value_lengths().to_numpy() for chunk in chunks])
        gone = np.zeros(int(sizes.sum()), bool)
        for values, places in parts([chunk.flatten() for chunk in chunks]):
            order = np.argsort(values, kind="stable")
            first, last = runs(values[order])
            again = np.repeat(last - first > 1, last - first)
            if self.keep == "first":
                again[first] = False
            gone[places[order[again]]] = True
        starts = np.concatenate(([0], np.cumsum(sizes)[:-1]))
        positions = np.flatnonzero(gone)
        owner = np.searchsorted(starts, positions, side="right") - 1
        # documents without parts share a start with the next one, which has them: searchsorted takes that one
        offsets = np.concatenate(([0], np.cumsum(np.bincount(owner, minlength=len(sizes)))))
        local = positions - starts[owner]
        found = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(local, pa.int32()))
        return Settled(pa.table({self.UNIT: pa.array(sizes, pa.int32()), "copies": found}))

    def edit(self, batch: pa.RecordBatch, scores: pa.RecordBatch) -> pa.Array | None:
        edited = []
        for text, copies in zip(batch["text"].to_pylist(), scores["copies"].to_pylist(), strict=True):
            edited.append(self._without(text, set(copies)) if copies else text)
        return pa.array(edited, pa.string())

    def key(self, part: str) -> int | None:
        """What makes two parts equal; None for a part that is never a copy."""
        return paragraph_key(part)

    @staticmethod
    def cut(text: str) -> list[str]:
        """The parts of a text."""
        return paragraphs(text)

    @staticmethod
    def join(parts: list[str]) -> str:
        """A text of the parts that stay."""
        return "\n\n".join(parts)

    def _without(self, text: str, gone: set[int]) -> str:
        return self.join([part for index, part in enumerate(self.cut(text)) if index not in gone])


def paragraph_key(paragraph: str) -> int | None:
    """CCNet's key of a paragraph: 64 bits; None for nothing but punctuation."""
    normalised = _DIGIT.sub("0", unicodedata.normalize("NFC", paragraph).lower()).translate(_ignored())
    if not normalised:
        return None
    return int.from_bytes(hashlib.sha1(normalised.encode(), usedforsecurity=False).digest()[:8], "big")


@functools.cache
def _ignored() -> dict[int, None]:
    """Punctuation, control characters and white space."""
    return {
        code: None
        for code in range(min(0x20000, sys.maxunicode))
        if unicodedata.category(chr(code))[0] in "PZ" or unicodedata.category(chr(code)) in ("Cc", "Cf")
    }
