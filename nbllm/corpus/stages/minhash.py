"""`dedup minhash [threshold=0.8 ngram=5 bands=14 rows=8]`: of near-duplicate texts the longest stays.

A text is the set of its n-grams of words, lowercased and in NFC (marks stay: か and が differ). A text with fewer words
than an n-gram has one element, all of its words, so that it equals only its own copies. MinHash signatures come from
rensa; documents that agree in all rows of a band are candidates, and the Jaccard similarity of each candidate pair is
then computed from the sets themselves. A document is dropped only for a similar one that stays, so that a chain
A~B~C doesn't merge A and C. Which one stays depends on nothing but the texts and their order: longest, then first.

Sources: Broder 1997 (MinHash); FineWeb (Penedo et al. 2024, section 3.5) for 5-grams, 14 bands of 8 rows: a pair of
similarity 0.8 becomes a candidate with probability 1 - (1 - 0.8**8)**14 = 0.92.
"""

from __future__ import annotations

import unicodedata
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nbllm.corpus.stage import GlobalStage, Rules, Settled, Texts, argument
from nbllm.corpus.words import words
from nbllm.errors import UsageError

_SEED = 1
_ALL_PAIRS_UP_TO = 16
"""In a bucket of more candidates each is compared with representatives only, not with every other one."""
_REPRESENTATIVES = 32
_CACHE_SHINGLES = 20_000_000
"""64-bit shingles kept in memory while candidates are verified: 160 MB."""

Hashes = NDArray[np.uint64]


@dataclass(frozen=True, kw_only=True)
class DedupMinhash(GlobalStage):
    """Scores: `similarity` (Jaccard, 0 to 1) to the document `copy_of` (its `row`), null where none similar stays.

    The table `pairs` keeps every verified pair (`first`, `second`: positions among the documents; `similarity`), so
    that `resolve` can decide for another threshold.
    """

    NAME: ClassVar = "dedup minhash"
    SUMMARY: ClassVar = "of near-duplicate texts keeps the longest"
    threshold: float = argument(0.8, "least Jaccard similarity of n-grams that counts as a duplicate", parse=float)
    ngram: int = argument(5, "words in an n-gram", parse=int)
    bands: int = argument(14, "bands of the signature", parse=int)
    rows: int = argument(8, "MinHash values in a band", parse=int)

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise UsageError("threshold is a similarity above 0, at most 1", received=self.threshold)
        for name, most in (("ngram", 100), ("bands", 1000), ("rows", 100)):
            if not 1 <= getattr(self, name) <= most:
                raise UsageError(f"{name} is 1 to {most}", received=getattr(self, name))

    def keys(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        shingles = [shingle(text, self.ngram) for text in batch["text"].to_pylist()]
        band_keys = self._band_keys(shingles)
        columns = {f"band{index}": pa.array(band_keys[:, index], pa.uint64()) for index in range(self.bands)}
        return pa.record_batch(
            {
                "row": batch["row"],
                "characters": pc.utf8_length(batch["text"]),
                "shingles": pa.array([len(found) for found in shingles], pa.int64()),
                **columns,
            }
        )

    def settle(self, keys: pa.Table, texts: Texts) -> Settled:
        characters = keys["characters"].to_numpy().astype(np.int64)
        # longest first, then the first of the input: lexsort's last key leads
        order = np.lexsort((np.arange(len(characters)), -characters))
        priority = np.empty(len(order), np.int64)
        priority[order] = np.arange(len(order))
        alive = np.flatnonzero(keys["shingles"].to_numpy() > 0)
        verify = _Verifier(texts, self.ngram)
        pairs: dict[tuple[int, int], float] = {}
        for index in range(self.bands):
            for bucket in _buckets(keys[f"band{index}"].to_numpy(), alive, priority):
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

    def _band_keys(self, shingles: list[Hashes]) -> Hashes:
        """One 64-bit key a document and band, [documents, bands]; equal where all rows of the band are."""
        from rensa import RMinHash

        offsets = np.zeros(len(shingles) + 1, np.uint64)
        np.cumsum([len(found) for found in shingles], out=offsets[1:])
        flat = np.concatenate(shingles) if shingles else np.empty(0, np.uint64)
        matrix = RMinHash.digest_matrix_from_flat_token_hashes(flat, offsets, self.bands * self.rows, _SEED)
        signature = np.array(matrix.to_rows(), np.uint64).reshape(len(shingles), self.bands, self.rows)
        key = np.zeros((len(shingles), self.bands), np.uint64)
        for index in range(self.rows):
            key = _mix(key ^ signature[:, :, index])
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


def shingle(text: str, ngram: int) -> Hashes:
    """The distinct n-grams of words as sorted 64-bit hashes; one for a text of fewer words; none without words."""
    from rensa import RMinHash

    found = words(unicodedata.normalize("NFC", text).lower())
    if not found:
        return np.empty(0, np.uint64)
    hashed = np.array(RMinHash.hash_token_sets([found])[0], np.uint64)
    count = max(1, len(hashed) - ngram + 1)
    key = np.full(count, min(ngram, len(hashed)), np.uint64)
    for offset in range(min(ngram, len(hashed))):
        key = _mix(key ^ hashed[offset : offset + count])
    return np.unique(key)


def _mix(value: Hashes) -> Hashes:
    """The finaliser of SplitMix64 (Steele et al. 2014) after a step of its sequence; 64-bit overflow is meant."""
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


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

    def _shingles(self, position: int) -> Hashes:
        found = self._cache.get(position)
        if found is None:
            found = shingle(self._texts([position])[0], self._ngram)
            self._cache[position] = found
            self._held += len(found)
            while self._held > _CACHE_SHINGLES and len(self._cache) > 2:
                self._held -= len(self._cache.popitem(last=False)[1])
        else:
            self._cache.move_to_end(position)
        return found
