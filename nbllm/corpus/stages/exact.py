"""`dedup exact [priority=]`: of equal texts the first stays, with a priority of sources the first of the best one.

Equal means equal in NFC with \\n line ends, apart from spaces at the ends of lines and empty lines at both ends; so a
trailing space decides nothing.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nbllm.corpus.keyed import parts, runs
from nbllm.corpus.layout import Ints
from nbllm.corpus.shingles import Hashes
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
        column, rank_of, row = keys["digest"].chunks, keys["rank"].to_numpy(), keys["row"].to_numpy()
        ends = np.cumsum([len(chunk) for chunk in column])
        best = np.arange(len(row))
        company = np.zeros(len(row), bool)
        for _, places in parts(column):
            digests = _digests(column, ends, places)
            # lexsort's last key leads; it is stable, so that the first of the input comes first
            order = np.lexsort((rank_of[places], digests[:, 1], digests[:, 0]))
            starts, stops = runs(digests[order].view("V16")[:, 0])
            sizes = stops - starts
            members = places[order]
            best[members] = np.repeat(members[starts], sizes)
            company[members] = np.repeat(sizes > 1, sizes)
        copy_of = pa.array(row[best], pa.int64(), mask=best == np.arange(len(row)))
        return Settled(pa.table({"copy_of": copy_of}), pa.array(best, pa.int64(), mask=~company))

    def rules(self, scores: pa.RecordBatch) -> Rules:
        return [(pc.is_valid(scores["copy_of"]), "exact copy")]


def _digests(column: Sequence[pa.Array], ends: Ints, places: Ints) -> Hashes:
    """[places, 2]: both halves of the digests at ascending places of a column."""
    found = []
    cuts = np.searchsorted(places, ends)
    for chunk, end, first, last in zip(column, ends, [0, *cuts[:-1]], cuts, strict=True):
        halves = np.frombuffer(chunk.buffers()[1], "<u8", 2 * (chunk.offset + len(chunk))).reshape(-1, 2)
        found.append(halves[places[first:last] - (end - len(chunk)) + chunk.offset])
    return np.ascontiguousarray(np.concatenate(found))


def _digest(text: str) -> bytes:
    normalised = "\n".join(line.rstrip() for line in lines(unicodedata.normalize("NFC", text))).strip()
    return hashlib.blake2b(normalised.encode(), digest_size=16).digest()
