"""`dedup exact [priority=]`: of equal texts the first stays, with a priority of sources the first of the best one.

Equal means equal in NFC with \\n line ends, apart from spaces at the ends of lines and empty lines at both ends; so a
trailing space decides nothing.
"""

from __future__ import annotations

import hashlib
import unicodedata
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nbllm.corpus.stage import GlobalStage, Rules, Settled, Texts
from nbllm.corpus.stages.priority import priority_argument, rank
from nbllm.corpus.words import lines


@dataclass(frozen=True, kw_only=True)
class DedupExact(GlobalStage):
    """Scores: `copy_of`, the `row` of the copy that stays, null for that copy itself and for texts without a copy."""

    NAME: ClassVar = "dedup exact"
    SUMMARY: ClassVar = "of equal texts keeps the first"
    priority: tuple[str, ...] = priority_argument()

    def keys(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        digests = [_digest(text) for text in batch["text"].to_pylist()]
        return pa.record_batch(
            {
                "row": batch["row"],
                "digest": pa.array(digests, pa.binary(16)),
                "rank": rank(batch["source"], self.priority),
            }
        )

    def settle(self, keys: pa.Table, texts: Texts) -> Settled:
        digests = np.frombuffer(
            b"".join(chunk.buffers()[1][chunk.offset * 16 : (chunk.offset + len(chunk)) * 16]
                     for chunk in keys["digest"].chunks),
            dtype="V16",
        )  # fmt: skip
        halves = digests.view("<u8").reshape(-1, 2)
        # lexsort's last key leads; it is stable, so that the first of the input comes first
        order = np.lexsort((keys["rank"].to_numpy(), halves[:, 1], halves[:, 0]))
        fresh = np.ones(len(order), bool)
        fresh[1:] = digests[order[1:]] != digests[order[:-1]]
        group_of_sorted = np.cumsum(fresh) - 1
        first_of_group = order[fresh]
        first = np.empty(len(order), np.int64)
        first[order] = first_of_group[group_of_sorted]
        sizes = np.bincount(group_of_sorted, minlength=1)
        group = np.empty(len(order), np.int64)
        group[order] = group_of_sorted
        row = keys["row"].to_numpy()
        positions = np.arange(len(order))
        copy_of = pa.array(row[first], pa.int64(), mask=first == positions)
        groups = pa.array(group, pa.int64(), mask=sizes[group] < 2) if len(order) else pa.array([], pa.int64())
        return Settled(pa.table({"copy_of": copy_of}), groups)

    def rules(self, scores: pa.RecordBatch) -> Rules:
        return [(pc.is_valid(scores["copy_of"]), "exact copy")]


def _digest(text: str) -> bytes:
    normalised = "\n".join(line.rstrip() for line in lines(unicodedata.normalize("NFC", text))).strip()
    return hashlib.blake2b(normalised.encode(), digest_size=16).digest()
