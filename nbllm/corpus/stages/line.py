"""`dedup line [keep=first min=10]`: of equal lines in the whole corpus the first stays.

Equal as paragraphs are in `dedup paragraph`: lowercased, digits to 0, punctuation, control characters and white space
removed, in NFC. Lines of fewer than `min` characters, and lines of nothing but punctuation, are never copies, so that
`}` and `end` stay. `keep=none` removes every copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nbllm.corpus.stage import argument
from nbllm.corpus.stages.paragraph import DedupParagraph, paragraph_key
from nbllm.corpus.words import lines
from nbllm.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class DedupLine(DedupParagraph):
    """Scores: `lines`, and `copies`, the positions of those that go. A document left without text is `empty`."""

    NAME: ClassVar = "dedup line"
    SUMMARY: ClassVar = "of equal lines in the corpus keeps the first"
    UNIT: ClassVar = "lines"
    min: int = argument(10, "fewest characters of a line that can be a copy", parse=int)

    def __post_init__(self) -> None:
        if self.min < 1:
            raise UsageError("min is a number of characters, 1 or more", received=self.min)

    def key(self, part: str) -> int | None:
        return paragraph_key(part) if len(part.strip()) >= self.min else None

    @staticmethod
    def cut(text: str) -> list[str]:
        return lines(text)

    @staticmethod
    def join(parts: list[str]) -> str:
        return "\n".join(parts)
