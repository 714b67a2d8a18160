"""`blocklist FILE [action=drop]`: drops documents that hold a word or phrase of a file, or masks it.

The file holds one word or phrase a line; empty lines and lines that start with `#` are skipped. Case doesn't count, and
a run of white space equals any other. A word matches as a whole word; in scripts without spaces between words anywhere.
What makes two such stages the same is the file's content, not its name.
"""

from __future__ import annotations

import functools
import hashlib
import re
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from nbllm.corpus.stage import Outcome, Rules, Stage, argument, scores_of
from nbllm.corpus.words import UNSPACED
from nbllm.errors import DataError, NotFoundError

_MASK = "<blocked>"


@dataclass(frozen=True, kw_only=True)
class Blocklist(Stage):
    """Score: `blocked`, how many words and phrases of the file a text holds."""

    NAME: ClassVar = "blocklist"
    SUMMARY: ClassVar = "drops or masks texts with a word or phrase of a file"
    file: str = argument(MISSING, "a file of one word or phrase a line", positional=True)
    action: str = argument("drop", "drop the document, or mask what is found", choices=("drop", "mask"))

    def __post_init__(self) -> None:
        self._pattern()

    def parameters(self) -> dict[str, Any]:
        content = hashlib.sha256("\n".join(_phrases(self.file)).encode()).hexdigest()
        return {**super().parameters(), "stage": f"blocklist action={self.action}", "content": content}

    def measure(self, batch: pa.RecordBatch) -> Outcome:
        pattern = self._pattern()
        found = [pattern.subn(_MASK, text) for text in batch["text"].to_pylist()]
        scores = scores_of(len(batch), blocked=pa.array([count for _, count in found], pa.int32()))
        return Outcome(scores, pa.array([text for text, _ in found], pa.string()) if self.action == "mask" else None)

    def rules(self, scores: pa.RecordBatch) -> Rules:
        if self.action == "mask":
            return []
        return [(pc.greater(scores["blocked"], 0), "blocked word")]

    def _pattern(self) -> re.Pattern[str]:
        return phrase_pattern(_phrases(self.file))


def _phrases(file: str) -> tuple[str, ...]:
    path = Path(file).expanduser()
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise NotFoundError(f"there is no blocklist {file!r}", next="Check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the blocklist {file!r} can't be read: {error}", next="It is a UTF-8 text file") from error
    found = tuple(line for raw in text.splitlines() if (line := " ".join(raw.split())) and not line.startswith("#"))
    if not found:
        raise DataError(f"the blocklist {file!r} holds no word", next="Write one word or phrase a line")
    return found


@functools.lru_cache(16)
def phrase_pattern(phrases: tuple[str, ...]) -> re.Pattern[str]:
    """A pattern that finds whole words and phrases, longest first, whatever their case."""
    parts = []
    for phrase in sorted(set(phrases), key=lambda one: (-len(one), one)):
        body = r"\s+".join(map(re.escape, phrase.split()))
        head = "" if UNSPACED.match(phrase[0]) or not re.match(r"\w", phrase[0]) else r"(?<!\w)"
        tail = "" if UNSPACED.match(phrase[-1]) or not re.match(r"\w", phrase[-1]) else r"(?!\w)"
        parts.append(f"{head}{body}{tail}")
    return re.compile("|".join(parts), re.IGNORECASE)
