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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nbllm.corpus.keyed import parts, runs
from nbllm.corpus.layout import Ints
from nbllm.corpus.shingles import Hashes, distinct, mix, shingles
from nbllm.corpus.stage import GlobalStage, Handle, Rules, Settled, Texts, argument
from nbllm.corpus.stages.priority import priority_argument, rank
from nbllm.errors import UsageError

_SEED = 1
_ALL_PAIRS_UP_TO = 16
"""In a bucket of more candidates each is compared with representatives only, not with every other one."""
_REPRESENTATIVES = 32
_PREPARED = 256
_CACHE_SHINGLES = 4_000_000
"""64-bit shingles kept in memory while candidates are verified: 32 MB."""
_NEW_PAIRS = 500_000
"""Pairs held in a dict, about 100 bytes each, before they go into arrays."""


@dataclass(frozen=True, kw_only=True)
class DedupMinhash(GlobalStage):
    """Scores: `similarity` (Jaccard, 0 to 1) to the document `copy_of` (its `row`), null where none similar stays.

    The table `pairs` keeps every verified pair (`first`, `second`: positions among the documents; `similarity`;
    `first_place`, `second_place`: where they stand in the order of who stays), so that `resolve` can decide for another
    threshold. For a lower one that is what was verified: pairs less alike were candidates less often.
    """

    NAME: ClassVar = "dedup minhash"
    SUMMARY: ClassVar = "of near-duplicate texts keeps the longest"
    VERSION: ClassVar = 2
    HANDLES: ClassVar = (Handle("similarity", "threshold", least=False),)
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
        characters, counts = keys["characters"].to_numpy(), keys["shingles"].to_numpy()
        # best source first, then the longest, then the first of the input: lexsort's last key leads, and it is stable
        order = np.lexsort((-characters.astype(np.int64), keys["rank"].to_numpy()))
        priority = np.empty(len(order), np.int64)
        priority[order] = np.arange(len(order))
        verify = _Verifier(texts, self.ngram)
        known = _Pairs(len(order))
        for index in range(self.bands):
            for values, places in parts(keys[f"band{index}"].chunks):
                filled = counts[places] > 0
                for group in _groups(_buckets(values[filled], places[filled], priority, known), counts):
                    verify.prepare(np.concatenate(group).tolist())
                    for bucket in group:
                        self._compare(bucket, verify, known)
            known.settle()
        table = known.table()
        for side in ("first", "second"):
            table = table.append_column(f"{side}_place", pa.array(priority[table[side].to_numpy()]))
        scores, groups = resolve(table, priority, keys["row"].to_numpy(), self.threshold)
        return Settled(scores, groups, {"pairs": table})

    def rules(self, scores: pa.RecordBatch) -> Rules:
        return [(pc.greater_equal(scores["similarity"], self.threshold), "near duplicate")]

    def scores_again(self, scores: pa.Table, tables: Mapping[str, pa.Table]) -> pa.Table:
        pairs = _ordered(tables)
        priority = np.zeros(len(scores), np.int64)
        for side in ("first", "second"):
            priority[pairs[side].to_numpy()] = pairs[f"{side}_place"].to_numpy()
        found, _ = resolve(pairs, priority, scores["row"].to_numpy(), self.threshold)
        for name in found.column_names:
            scores = scores.set_column(scores.schema.get_field_index(name), name, found[name])
        return scores

    def measured(self, score: str, scores: pa.Table, tables: Mapping[str, pa.Table]) -> NDArray[np.float64]:
        """The similarity to the most similar of those that would stay rather than it, whatever the threshold."""
        pairs = _ordered(tables)
        found = np.full(len(scores), np.nan)
        places = pairs["first_place"].to_numpy(), pairs["second_place"].to_numpy()
        worse = np.where(places[0] > places[1], pairs["first"].to_numpy(), pairs["second"].to_numpy())
        np.fmax.at(found, worse, pairs["similarity"].to_numpy())
        return found

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

    def _compare(self, bucket: Ints, verify: _Verifier, known: _Pairs) -> None:
        """Verifies the pairs of one bucket, whose members come best first."""
        members = bucket.tolist()
        few = len(members) <= _ALL_PAIRS_UP_TO
        representatives: list[int] = []
        for index, member in enumerate(members):
            found = False
            for other in members[:index] if few else representatives:
                similarity = known.get(member, other)
                if similarity is None:
                    similarity = verify(min(member, other), max(member, other))
                    known.add(member, other, similarity)
                if similarity >= self.threshold:
                    found = True
                    if not few:
                        break
            if not few and not found and len(representatives) < _REPRESENTATIVES:
                representatives.append(member)


def _ordered(tables: Mapping[str, pa.Table]) -> pa.Table:
    """The verified pairs with their order."""
    pairs = tables.get("pairs")
    if pairs is None or "first_place" not in pairs.column_names:
        raise UsageError("dedup minhash kept no order of its pairs in this corpus", next="Clean again")
    return pairs


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
        Scores (`similarity`, `copy_of`) by position; the smallest position of the connected component by position,
        null for documents without a near-duplicate.
    """
    similar = pairs.filter(pc.greater_equal(pairs["similarity"], threshold))
    first, second = similar["first"].to_numpy(), similar["second"].to_numpy()
    one, other = np.concatenate((first, second)), np.concatenate((second, first))
    similarity = np.tile(similar["similarity"].to_numpy(), 2)
    # the neighbours of each position, the most similar first and of equal ones the best
    order = np.lexsort((priority[other], -similarity, one))
    one, other, similarity = one[order], other[order], similarity[order]
    starts, ends = runs(one)
    positions = one[starts] if len(starts) else one
    stays = bytearray(len(rows))
    found = np.full(len(rows), np.nan)
    copy_of = np.zeros(len(rows), np.int64)
    # Python's own numbers: ten times faster here than NumPy's one by one
    neighbours = other.tolist()
    order = np.argsort(priority[positions])
    dropped: list[int] = []
    edges: list[int] = []
    for position, start, end in zip(*(one[order].tolist() for one in (positions, starts, ends)), strict=True):
        for edge in range(start, end):
            if stays[neighbours[edge]]:
                dropped.append(position)
                edges.append(edge)
                break
        else:
            stays[position] = 1
    found[dropped] = similarity[edges]
    copy_of[dropped] = rows[other[edges]]
    none = np.isnan(found)
    scores = pa.table(
        {"similarity": pa.array(found, pa.float64(), mask=none), "copy_of": pa.array(copy_of, pa.int64(), mask=none)}
    )
    alone = np.ones(len(rows), bool)
    alone[positions] = False
    return scores, pa.array(_components(len(rows), first, second), pa.int64(), mask=alone)


def _components(count: int, first: Ints, second: Ints) -> Ints:
    """The smallest position that each one is connected to."""
    label = np.arange(count)
    while True:
        low = np.minimum(label[first], label[second])
        before = label.copy()
        # labels go to both ends and to what those are labelled with, then every label follows its own
        for ends in (first, second, before[first], before[second]):
            np.minimum.at(label, ends, low)
        label = label[label]
        if np.array_equal(label, before):
            return label


def _buckets(values: Hashes, places: Ints, priority: Ints, known: _Pairs) -> Iterator[Ints]:
    """Positions that share a key, at least two each, best first; pairs that are known already are left out."""
    order = np.lexsort((priority[places], values))
    starts, ends = runs(values[order])
    members = places[order]
    sizes = ends - starts
    two = starts[sizes == 2]
    fresh = two[~known.has(members[two], members[two + 1])]
    more = sizes > 2
    for start, end in zip([*fresh.tolist(), *starts[more].tolist()], [*(fresh + 2).tolist(), *ends[more].tolist()],
                          strict=True):  # fmt: skip
        yield members[start:end]


def _groups(buckets: Iterable[Ints], counts: Ints) -> Iterator[list[Ints]]:
    """Buckets by some hundred documents, fewer where they are long, whose n-grams are made at once."""
    group: list[Ints] = []
    held = long = 0
    for bucket in buckets:
        group.append(bucket)
        held += len(bucket)
        long += int(counts[bucket].sum())
        if held >= _PREPARED or long >= _CACHE_SHINGLES // 4:
            yield group
            group, held, long = [], 0, 0
    if group:
        yield group


class _Pairs:
    """Verified pairs with their similarity: 16 bytes each, those of the band at work some more.

    Args:
        documents: how many positions there are.
    """

    def __init__(self, documents: int) -> None:
        self._documents = documents
        self._codes = np.empty(0, np.int64)
        self._similarities = np.empty(0, np.float64)
        self._new: dict[int, float] = {}

    def has(self, one: Ints, other: Ints) -> NDArray[np.bool_]:
        """Whether each pair was verified in an earlier band."""
        codes = np.minimum(one, other) * self._documents + np.maximum(one, other)
        if not len(self._codes):
            return np.zeros(len(codes), bool)
        where = np.minimum(np.searchsorted(self._codes, codes), len(self._codes) - 1)
        return np.asarray(self._codes[where] == codes, bool)

    def get(self, one: int, other: int) -> float | None:
        """The similarity of a pair; None where it isn't known."""
        code = self._code(one, other)
        if code in self._new:
            return self._new[code]
        where = int(np.searchsorted(self._codes, code))
        return float(self._similarities[where]) if where < len(self._codes) and self._codes[where] == code else None

    def add(self, one: int, other: int, similarity: float) -> None:
        """Keeps a verified pair."""
        self._new[self._code(one, other)] = similarity
        if len(self._new) >= _NEW_PAIRS:
            self.settle()

    def settle(self) -> None:
        """Sorts the new pairs in among the others."""
        codes = np.concatenate((self._codes, np.fromiter(self._new, np.int64, len(self._new))))
        similarities = np.concatenate((self._similarities, np.fromiter(self._new.values(), np.float64, len(self._new))))
        order = np.argsort(codes, kind="stable")
        self._codes, self._similarities = codes[order], similarities[order]
        self._new = {}

    def table(self) -> pa.Table:
        """`first`, `second` (positions, the smaller first) and `similarity`, in order."""
        first, second = np.divmod(self._codes, max(1, self._documents))
        return pa.table({"first": first, "second": second, "similarity": self._similarities})

    def _code(self, one: int, other: int) -> int:
        return min(one, other) * self._documents + max(one, other)


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
