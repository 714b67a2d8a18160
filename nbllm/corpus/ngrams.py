"""How much of each text of a batch is repeated: parts such as lines, the most frequent n-gram, n-grams that come back.

Works on numbers for words, over all texts of a batch at once. An n-gram gets its number from that of its first n-1
words and its last word, so that no hash can collide; numbers are given in the order of first occurrence, so that those
of one document lie together. Only n-grams whose two (n-1)-grams both come back can come back: the others are left out
before they are numbered, which is most of the work. Knows nothing of text or stages.

Legend: D documents, W words of all documents; `offsets` [D + 1] cut the words by document.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nbllm.corpus.layout import Ints, running

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Grams:
    """Those n-grams of one n inside a document that may occur more than once; all that do are among them."""

    n: int
    positions: Ints
    """The word with which each begins, ascending."""
    codes: Ints
    """The number of each: equal where words and document are."""
    first: Ints
    """The position of the first occurrence, by number; ascending."""
    by_document: Ints
    """[D + 1]: the numbers of document d are by_document[d] … by_document[d + 1] - 1."""

    @property
    def later(self) -> NDArray[np.bool_]:
        """Which are a second or later occurrence."""
        return self.first[self.codes] != self.positions


def dense(keys: Ints) -> Ints:
    """Keys renumbered 0, 1, … in the order of first occurrence."""
    return pc.dictionary_encode(pa.array(keys)).indices.to_numpy().astype(np.int64)


def grams(words: Ints, offsets: Ints, most: int) -> Iterator[Grams]:
    """The n-grams of n = 1 … most.

    Args:
        words: [W] a number for each word, equal where words are.
        offsets: [D + 1].
        most: the largest n.
    """
    count = len(words)
    document = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    width = int(words.max(initial=0)) + 1
    single = dense(document * width + words)
    width = int(single.max(initial=0)) + 1
    positions, codes = np.arange(count), single
    for n in range(1, most + 1):
        if n > 1:
            # an n-gram across two documents holds a word of each, and no word is in both: it can't come back
            again = np.bincount(codes, minlength=1)[codes] > 1
            after = np.zeros(count + 1, bool)
            after[positions[again]] = True
            keep = again & after[positions + 1]
            positions = positions[keep]
            codes = dense(codes[keep] * width + single[positions + n - 1])
        fresh = np.ones(len(codes), bool)
        fresh[1:] = codes[1:] > np.maximum.accumulate(codes)[:-1]
        first = positions[fresh]
        yield Grams(n, positions, codes, first, np.searchsorted(first, offsets))


def top_characters(found: Grams, sizes: Ints, offsets: Ints, *, joined: bool) -> Ints:
    """[D]: characters in the most frequent n-gram, all its occurrences counted.

    Args:
        found: the n-grams.
        sizes: [W] characters of each word.
        offsets: [D + 1].
        joined: as datatrove counts: a space between the words, an n-gram that occurs once counts too, and of equally
            frequent ones the first; else the longest of those that occur at least twice.
    """
    ends = running(sizes)
    counts = np.bincount(found.codes, minlength=len(found.first))
    lengths = ends[found.first + found.n] - ends[found.first]
    most = _largest(counts, found.by_document)
    owner = np.repeat(np.arange(len(most)), np.diff(found.by_document))
    among = counts == most[owner]
    if not joined:
        best = _largest(np.where(among, lengths, 0), found.by_document)
        return np.where(most >= 2, most * best, 0)
    places = np.flatnonzero(among)
    firsts, index = np.unique(owner[places], return_index=True)
    best = np.zeros(len(most), np.int64)
    best[firsts] = lengths[places[index]] + found.n - 1
    # where none comes back, the first n-gram of the document stands for all that occur once
    start = offsets[:-1]
    whole = offsets[1:] - start >= found.n
    once = np.where(whole, ends[np.minimum(start + found.n, len(sizes))] - ends[start] + found.n - 1, 0)
    return np.where(most >= 2, most * best, once)


def repeated_characters(found: Grams, sizes: Ints, offsets: Ints) -> Ints:
    """[D]: characters of words inside an n-gram that stood in the text before; each counts once."""
    edges = np.zeros(len(sizes) + 1, np.int64)
    starts = found.positions[found.later]
    np.add.at(edges, starts, 1)
    np.add.at(edges, starts + found.n, -1)
    covered = np.cumsum(edges[:-1]) > 0
    return np.diff(running(np.where(covered, sizes, 0))[offsets])


def repeated_characters_greedy(found: Grams, sizes: Ints, offsets: Ints) -> Ints:
    """[D]: the same as datatrove counts it.

    From left to right; after a repeated n-gram the next n - 1 positions are neither counted nor remembered.
    """
    ends = running(sizes)
    total = np.zeros(len(offsets) - 1, np.int64)
    later = found.later
    places = np.flatnonzero(later)
    if not len(places):
        return total
    owner = np.searchsorted(offsets, found.positions[places], side="right") - 1
    number_at = np.full(len(sizes), -1, np.int64)
    number_at[found.first] = np.arange(len(found.first))
    skipped: set[int] = set()
    free = -1
    n = found.n
    for document, start, code in zip(
        owner.tolist(), found.positions[places].tolist(), found.codes[places].tolist(), strict=True
    ):
        if start < free:
            continue
        if code in skipped:
            skipped.discard(code)
            continue
        total[document] += ends[start + n] - ends[start]
        free = start + n
        inside = number_at[start + 1 : free]
        skipped.update(inside[inside >= 0].tolist())
    return total


def repeated_parts(parts: pa.StringArray, offsets: Ints) -> tuple[Ints, Ints, Ints]:
    """[D] each: repeated parts, characters in them, characters of all parts.

    Args:
        parts: lines or paragraphs of all documents.
        offsets: [D + 1].
    """
    document = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    sizes = pc.utf8_length(parts).to_numpy().astype(np.int64)
    if not len(sizes):
        nothing = np.zeros(len(offsets) - 1, np.int64)
        return nothing, nothing, nothing
    coded = pc.dictionary_encode(parts)
    keys = dense(document * len(coded.dictionary) + coded.indices.to_numpy().astype(np.int64))
    later = np.zeros(len(keys), bool)
    later[1:] = keys[1:] <= np.maximum.accumulate(keys)[:-1]
    return (
        np.diff(running(later)[offsets]),
        np.diff(running(np.where(later, sizes, 0))[offsets]),
        np.diff(running(sizes)[offsets]),
    )


def _largest(values: Ints, offsets: Ints) -> Ints:
    """[D]: the largest value of each document; 0 where it has none."""
    found = np.zeros(len(offsets) - 1, np.int64)
    some = np.diff(offsets) > 0
    if some.any():
        found[some] = np.maximum.reduceat(values, offsets[:-1][some])
    return found
