"""`length min=100 [max=]`: drops documents by their number of characters, without white space at both ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from nbllm.corpus.stage import Handle, Outcome, Rules, Stage, argument, scores_of
from nbllm.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Length(Stage):
    """Keeps texts of `min` to `max` characters."""

    NAME: ClassVar = "length"
    SUMMARY: ClassVar = "drops texts that are too short or too long"
    HANDLES: ClassVar = (Handle("characters", "min", least=True), Handle("characters", "max", least=False))
    min: int = argument(100, "fewest characters kept", parse=int)
    max: int | None = argument(None, "most characters kept; no limit by default", parse=int)

    def __post_init__(self) -> None:
        if self.min < 0:
            raise UsageError("min is a number of characters, 0 or more", received=self.min)
        if self.max is not None and self.max < self.min:
            raise UsageError(f"max is smaller than min={self.min}", received=self.max)

    def measure(self, batch: pa.RecordBatch) -> Outcome:
        return Outcome(scores_of(len(batch), characters=pc.utf8_length(pc.utf8_trim_whitespace(batch["text"]))))

    def rules(self, scores: pa.RecordBatch) -> Rules:
        short = pc.less(scores["characters"], self.min)
        long = pc.greater(scores["characters"], self.max) if self.max is not None else [False] * len(scores)
        return [(short, "too short"), (long, "too long")]
