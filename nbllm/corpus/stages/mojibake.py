"""`fix_mojibake`: text that was decoded with the wrong encoding becomes readable again (`â€œ` a quote, `Ã©` an é).

By ftfy (extra `clean`), which changes a text only where the result is plausible. Only its repair of encodings is used:
quotes, ligatures, widths and entities stay as they are. A text that is sound comes back unchanged.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from nbllm.corpus.stage import Outcome, Stage, scores_of
from nbllm.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class FixMojibake(Stage):
    """Edits. Score: `fixed`, whether the text changed."""

    NAME: ClassVar = "fix_mojibake"
    SUMMARY: ClassVar = "repairs text that was decoded with the wrong encoding"

    def measure(self, batch: pa.RecordBatch) -> Outcome:
        fix = _fixer()
        before = batch["text"].to_pylist()
        after = [text if text.isascii() else fix(text) for text in before]
        changed = [one != other for one, other in zip(before, after, strict=True)]
        return Outcome(scores_of(len(batch), fixed=pa.array(changed, pa.bool_())), pa.array(after, pa.string()))


@functools.cache
def _fixer() -> Callable[[str], str]:
    try:
        import ftfy
    except ImportError as error:
        raise UsageError("fix_mojibake needs ftfy", next='pip install "nbllm[clean]"') from error
    fix: Callable[[str], str] = ftfy.fix_encoding
    return fix
