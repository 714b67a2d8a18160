"""`dedup minhash [threshold=0.8 ngram=5 bands=14 rows=8 priority=]`: of near-duplicate texts the longest stays.

A text is the set of its n-grams of words, lowercased and in NFC (marks stay: か and が differ). A text with fewer words
than an n-gram has one element, all of its words, so that it equals only its own copies. MinHash signatures come from
rensa; documents that agree in all rows of a band are candidates, and the Jaccard similarity of each candidate pair is
then computed from the sets themselves. A document is dropped only for a similar one that stays, so that a chain
A~B~C doesn't merge A and C. Which one stays depends on nothing but the texts and their order: that of the source named
first in `priority`, then the longest, then the first.

Sources: Broder 1997 (MinHash); FineWeb (Penedo et al. 2024, section 3.5) for 5-grams, 14 bands of 8 rows: a pair of
similarity 0.8 becomes a candidate with probability 1 - (1 - 0.8**8)**14 = 0.92.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nbllm.corpus.layout import Ints
from nbllm.corpus.shingles import Hashes, distinct, mix, shingles
from nbllm.corpus.stage import GlobalStage, Rules, Settled, Texts, argument
from nbllm.corpus.stages.priority import priority_argument, rank
from nbllm.errors import UsageError

_SEED = 1
_ALL_PAIRS_UP_TO = 16
"""In a bucket of more candidates each is compared with representatives only, not with every other one."""
_REPRESENTATIVES = 32
_PREPARED = 256
_CACHE_SHINGLES = 20_000_000
"""64-bit shingles kept in memory while candidates are verified: 160 MB."""


@dataclass(frozen=True, kw_only=True)
class DedupMinhash(GlobalStage):
    """Scores: `similarity` (Jaccard, 0 to 1) to the document `copy_of` (its `row`), null where none similar stays.

    The table `pairs` keeps every verified pair (`first`, `second`: positions among the documents; `similarity`), so
    that `resolve` can decide for another threshold.
    """

    NAME: ClassVar = "dedup minhash"
    SUMMARY: ClassVar = "of near-duplicate texts keeps the longest"
    VERSION: ClassVar = 2
    threshold: float = argument(0.8, "least Jaccard similarity of n-grams that counts as a duplicate", parse=float)
    ngram: int = argument(5, "words in an n-gram", parse=int)
    bands: int = argument(14, "bands of the signature", parse=int)
    rows: int = argument(8, "MinHash values in a band", parse=int)
    priority: tuple[str, ...] = priority_argument()

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise UsageError("threshold is a similarity above 0, at most 1", received=self.threshold)
        for name, most in (("ngram", 100), ("bands", 1000), ("rows", 100)):
            if not 1 <= getattr(self, name) <= most:
                raise UsageError(f"{name} is 1 to {most}", received=getattr(self, name))

    def keys(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        flat, offsets = shingles(batch["text"], self.ngram)
        band_keys = self._band_keys(flat, offsets)
        columns = {f"band{index}": pa.array(band_keys[:, index], pa.uint64()) for index in range(self.bands)}
        return pa.record_batch(
            {
                "row": batch["row"],
                "characters": pc.utf8_length(batch["text"]),
                "shingles": pa.array(np.diff(offsets), pa.int64()),
                "rank": rank(batch["source"], self.priority),
                **columns,
            }
        )

    def settle(self, keys: pa.Table, texts: Texts) -> Settled:
        characters = keys["characters"].to_numpy().astype(np.int64)
        # best source first, then the longest, then the first of the input: lexsort's last key leads
        order = np.lexsort((np.arange(len(characters)), -characters, keys["rank"].to_numpy()))
        priority = np.empty(len(order), np.int64)
        priority[order] = np.arange(len(order))
        alive = np.flatnonzero(keys["shingles"].to_numpy() > 0)
        verify = _Verifier(texts, self.ngram)
        pairs: dict[tuple[int, int], float] = {}
        for index in range(self.bands):
            buckets = _buckets(keys[f"band{index}"].to_numpy(), alive, priority)
            for group in _groups([bucket for bucket in buckets if _unseen(bucket, pairs)]):
                verify.prepare(np.concatenate(group).tolist())
                for bucket in group:
                    self._compare(bucket, verify, pairs)
        ordered = sorted(pairs)
        table = pa.table(
            {
                "first": pa.array([pair[0] for pair in ordered], pa.int64()),
                "second": pa.array([pair[1] for pair in ordered], pa.int64()),
                "similarity": pa.array([pairs[pair] for pair in ordered], pa.float64()),
            }
        )
        scores, groups = resolve(table, priority, keys["row"].to_numpy(), self.threshold)
        return Settled(scores, groups, {"pairs": table})

    def rules(self, scores: pa.RecordBatch) -> Rules:
        return [(pc.greater_equal(scores["similarity"], self.threshold), "near duplicate")]

    def _band_keys(self, flat: Hashes, offsets: Ints) -> Hashes:
        """One 64-bit key a document and band, [documents, bands]; equal where all rows of the band are."""
        from rensa import RMinHash

        documents = len(offsets) - 1
        matrix = RMinHash.digest_matrix_from_flat_token_hashes(
            flat, offsets.astype(np.uint64), self.bands * self.rows, _SEED
        )
        signature = np.array(matrix.to_rows(), np.uint64).reshape(documents, self.bands, self.rows)
        key = np.zeros((documents, self.bands), np.uint64)
        for index in range(self.rows):
            key = mix(key ^ signature[:, :, index])
        return key

    def _compare(self, bucket: NDArray[np.int64], verify: _Verifier, pairs: dict[tuple[int, int], float]) -> None:
        """Verifies the pairs of one bucket, whose members come best first."""
        members = bucket.tolist()
        representatives: list[int] = []
        for index, member in enumerate(members):
            found = False
            for other in members[:index] if len(members) <= _ALL_PAIRS_UP_TO else representatives:
                pair = (min(member, other), max(member, other))
                if pair not in pairs:
                    pairs[pair] = verify(*pair)
                if pairs[pair] >= self.threshold:
                    found = True
                    if len(members) > _ALL_PAIRS_UP_TO:
                        break
            if not found and len(representatives) < _REPRESENTATIVES:
                representatives.append(member)


def resolve(
    pairs: pa.Table, priority: NDArray[np.int64], rows: NDArray[np.int64], threshold: float
) -> tuple[pa.Table, pa.Array]:
    """Who stays at a threshold, and who belongs together.

    Args:
        pairs: `first`, `second` (positions), `similarity`.
        priority: the rank of each position, 0 is the best.
        rows: the `row` of each position.
        threshold: the least similarity of a duplicate.

    Returns:
        Scores (`similarity`, `copy_of`) by position; the number of the connected component by position, null for
        documents without a near-duplicate.
    """
    similar = pairs.filter(pc.greater_equal(pairs["similarity"], threshold))
    neighbours: dict[int, list[tuple[int, float]]] = {}
    parent: dict[int, int] = {}

    def root(position: int) -> int:
        while parent.setdefault(position, position) != position:
            parent[position] = parent[parent[position]]
            position = parent[position]
        return position

    for first, second, similarity in zip(*(similar[name].to_pylist() for name in similar.column_names), strict=True):
        neighbours.setdefault(first, []).append((second, similarity))
        neighbours.setdefault(second, []).append((first, similarity))
        low, high = sorted((root(first), root(second)))
        parent[high] = low
    stays: set[int] = set()
    dropped: dict[int, tuple[float, int]] = {}
    for position in sorted(neighbours, key=lambda position: priority[position]):
        kept = [(similarity, -priority[other], other) for other, similarity in neighbours[position] if other in stays]
        if kept:
            similarity, _, other = max(kept)
            dropped[position] = (similarity, other)
        else:
            stays.add(position)
    similarities: list[float | None] = [None] * len(rows)
    copies: list[int | None] = [None] * len(rows)
    groups: list[int | None] = [None] * len(rows)
    for position, (similarity, other) in dropped.items():
        similarities[position], copies[position] = similarity, int(rows[other])
    for position in neighbours:
        groups[position] = root(position)
    scores = pa.table({"similarity": pa.array(similarities, pa.float64()), "copy_of": pa.array(copies, pa.int64())})
    return scores, pa.array(groups, pa.int64())


def _buckets(
    keys: Hashes, alive: NDArray[np.int64], priority: NDArray[np.int64]
) -> Iterator[NDArray[np.int64]]:  # fmt: skip
    """Positions that share a key, at least two each, best first; buckets in the order of their best member."""
    if not len(alive):
        return
    order = alive[np.lexsort((priority[alive], keys[alive]))]
    sorted_keys = keys[order]
    starts = np.flatnonzero(np.concatenate(([True], sorted_keys[1:] != sorted_keys[:-1])))
    ends = np.append(starts[1:], len(order))
    found = [order[start:end] for start, end in zip(starts, ends, strict=True) if end - start > 1]
    yield from sorted(found, key=lambda bucket: priority[bucket[0]])


def _unseen(bucket: Ints, pairs: Mapping[tuple[int, int], float]) -> bool:
    """Whether a bucket may hold a pair that wasn't compared yet."""
    if len(bucket) != 2:
        return True
    first, second = bucket.tolist()
    return (min(first, second), max(first, second)) not in pairs


def _groups(buckets: list[Ints]) -> Iterator[list[Ints]]:
    """Buckets by some hundred documents, whose n-grams are made at once."""
    group: list[Ints] = []
    held = 0
    for bucket in buckets:
        group.append(bucket)
        held += len(bucket)
        if held >= _PREPARED:
            yield group
            group, held = [], 0
    if group:
        yield group


class _Verifier:
    """Jaccard similarity of two documents, with their shingles cached up to a bound."""

    def __init__(self, texts: Texts, ngram: int) -> None:
        self._texts = texts
        self._ngram = ngram
        self._cache: OrderedDict[int, Hashes] = OrderedDict()
        self._held = 0

    def __call__(self, first: int, second: int) -> float:
        one, two = self._shingles(first), self._shingles(second)
        # both are sorted and distinct: a value that stands twice in the merged array is shared
        merged = np.concatenate((one, two))
        merged.sort(kind="stable")
        shared = int(np.count_nonzero(merged[1:] == merged[:-1]))
        return shared / (len(merged) - shared)

    def prepare(self, positions: Sequence[int]) -> None:
        """Makes the shingles of documents that will be compared."""
        missing = sorted(set(positions) - self._cache.keys())
        for start in range(0, len(missing), _PREPARED):
            part = missing[start : start + _PREPARED]
            flat, offsets = shingles(pa.array(self._texts(part), pa.string()), self._ngram)
            for index, position in enumerate(part):
                found = distinct(flat[offsets[index] : offsets[index + 1]])
                self._cache[position] = found
                self._held += len(found)
        while self._held > _CACHE_SHINGLES and len(self._cache) > 2:
            self._held -= len(self._cache.popitem(last=False)[1])

    def _shingles(self, position: int) -> Hashes:
        if position not in self._cache:
            self.prepare([position])
        self._cache.move_to_end(position)
        return self._cache[position]
