"""Counts of documents, characters and bytes by stage, source and reason. Knows nothing of how stages run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True)
class Count:
    """Documents of one source at one stage: those that came in (`in`), left (`out`) or were dropped for a reason."""

    stage: int
    """Position of the stage; 0 is `read`."""
    source: str
    kind: str
    reason: str | None
    documents: int
    characters: int
    bytes: int


@dataclass
class Tally:
    """Sums of `Count`s."""

    sums: dict[tuple[int, str, str, str | None], list[int]] = field(default_factory=dict)

    def add(self, stage: int, kind: str, batch: pa.RecordBatch, reasons: pa.Array | None = None) -> None:
        """Counts a batch's documents by source, and by reason where reasons are given."""
        if not len(batch):
            return
        columns = {
            "source": batch["source"],
            "characters": pc.utf8_length(batch["text"]).cast(pa.int64()),
            "bytes": pc.binary_length(batch["text"]).cast(pa.int64()),
        }
        if reasons is not None:
            columns["reason"] = reasons
        by = ["source", "reason"] if reasons is not None else ["source"]
        grouped = pa.table(columns).group_by(by, use_threads=False).aggregate(
            [("characters", "count"), ("characters", "sum"), ("bytes", "sum")]
        )  # fmt: skip
        for row in grouped.to_pylist():
            key = (stage, row["source"], kind, row.get("reason"))
            sums = self.sums.setdefault(key, [0, 0, 0])
            for index, name in enumerate(("characters_count", "characters_sum", "bytes_sum")):
                sums[index] += row[name]

    def counts(self) -> list[Count]:
        """The sums by stage, then source as they were first read, then kind and reason by name: an order that
        doesn't depend on how documents were cut into batches."""
        sources = {source: place for place, source in enumerate(dict.fromkeys(key[1] for key in self.sums))}
        ordered = sorted(self.sums.items(), key=lambda one: (one[0][0], sources[one[0][1]], one[0][2], one[0][3] or ""))
        return [Count(stage, source, kind, reason, *sums) for (stage, source, kind, reason), sums in ordered]

    def to_json(self) -> list[list[Any]]:
        """The sums as JSON, for `from_json`."""
        return [[*key, *sums] for key, sums in self.sums.items()]

    @classmethod
    def from_json(cls, rows: Iterable[list[Any]]) -> Tally:
        """The sums that `to_json` gave."""
        return cls({(row[0], row[1], row[2], row[3]): list(row[4:]) for row in rows})
