"""The n-grams of words of many texts at once, as 64-bit hashes.

Words are those of `words.py`, in NFC and lowercased code point by code point. A text of fewer words than an n-gram has
one n-gram, all of its words. Texts are laid end to end (`layout.py`) and every step is one pass over all of them; long
batches go in slices that fit a processor's cache. A word's hash is a polynomial of its characters' random values modulo
2**64 (taken from running sums, Karp and Rabin 1987), finished by SplitMix64's mixer (Steele et al. 2014). Knows nothing
of MinHash or stages.

Legend: N code points of a slice, W its words, D documents.
"""

from __future__ import annotations

import functools
import sys
import unicodedata
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nbllm.corpus.layout import Ints, Layout, running

Hashes = NDArray[np.uint64]
_SLICE_BYTES = 1 << 18
_BASE = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def shingles(texts: pa.Array, ngram: int) -> tuple[Hashes, Ints]:
    """The n-grams of each text in order, not distinct, and [D + 1] offsets; none for a text without words."""
    plain = pc.string_is_ascii(texts).to_numpy(zero_copy_only=False)
    if plain.all() or not plain.any():
        return _joined(list(_sliced(texts, ngram, bool(plain.all()))))
    # ASCII texts are a quarter of the work of others: the two kinds go apart, and are put together again
    kinds = [(places, _joined(list(_sliced(texts.take(pa.array(places)), ngram, ascii_))))
             for places, ascii_ in ((np.flatnonzero(plain), True), (np.flatnonzero(~plain), False))]  # fmt: skip
    counts = np.empty(len(texts), np.int64)
    for places, (_, offsets) in kinds:
        counts[places] = np.diff(offsets)
    target = running(counts)
    flat = np.empty(int(target[-1]), np.uint64)
    for places, (found, offsets) in kinds:
        shift = np.repeat(target[places] - offsets[:-1], np.diff(offsets))
        flat[np.arange(len(found)) + shift] = found
    return flat, target


def distinct(values: Hashes) -> Hashes:
    """The values sorted, each once."""
    values = np.sort(values)
    return values[np.append(True, values[1:] != values[:-1])] if len(values) else values


def mix(value: Hashes) -> Hashes:
    """The finaliser of SplitMix64 after a step of its sequence; 64-bit overflow is meant."""
    value = value + np.uint64(_BASE)
    value ^= value >> np.uint64(30)
    value *= np.uint64(0xBF58476D1CE4E5B9)
    value ^= value >> np.uint64(27)
    value *= np.uint64(0x94D049BB133111EB)
    value ^= value >> np.uint64(31)
    return value


def _joined(parts: list[tuple[Hashes, Ints]]) -> tuple[Hashes, Ints]:
    if not parts:
        return np.empty(0, np.uint64), np.zeros(1, np.int64)
    counts = np.concatenate([np.diff(offsets) for _, offsets in parts])
    return np.concatenate([found for found, _ in parts]), running(counts)


def _sliced(texts: pa.Array, ngram: int, plain: bool) -> Iterator[tuple[Hashes, Ints]]:
    ends = np.cumsum(pc.binary_length(texts).to_numpy().astype(np.int64) + 1)
    start = 0
    while start < len(texts):
        before = int(ends[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(ends, before + _SLICE_BYTES, side="right")))
        yield _slice(texts.slice(start, end - start), ngram, plain)
        start = end


def _slice(texts: pa.Array, ngram: int, plain: bool) -> tuple[Hashes, Ints]:
    if not plain:
        texts = _composed(texts)
    layout = Layout(texts)
    spans = layout.words
    if not len(spans):
        return np.empty(0, np.uint64), np.zeros(len(texts) + 1, np.int64)
    values = _lowered_values()[layout.points]
    powers, inverses = _powers(1 << max(20, len(values).bit_length()))
    values *= powers[: len(values)]
    sums = np.empty(len(values) + 1, np.uint64)
    sums[0] = 0
    np.cumsum(values, out=sums[1:])
    words = mix((sums[spans.end] - sums[spans.start]) * inverses[spans.start])
    counts, offsets = spans.counts, spans.offsets
    found = np.zeros(len(words), np.uint64)
    for place in range(ngram):
        # words beyond the end of a short text are left out below
        if place < len(words):
            found[: len(words) - place] += words[place:] * _factor(place)
    found = mix(found)
    grams = np.maximum(counts - ngram + 1, np.minimum(counts, 1))
    starts = running(grams)
    flat = found[np.arange(int(starts[-1])) + np.repeat(offsets[:-1] - starts[:-1], grams)]
    for document in np.flatnonzero((counts > 0) & (counts < ngram)).tolist():
        mine = words[offsets[document] : offsets[document + 1]]
        whole = sum((mine[place : place + 1] * _factor(place) for place in range(len(mine))), np.zeros(1, np.uint64))
        flat[starts[document]] = mix(whole + np.uint64(len(mine)))[0]
    return flat, starts


@functools.cache
def _factor(place: int) -> np.uint64:
    """An odd factor for the word at a place of an n-gram, so that order counts."""
    return np.uint64(pow(_BASE, 2 * place + 1, 1 << 64))


def _composed(texts: pa.Array) -> pa.Array:
    """The texts in NFC; most are so already, and a check costs a tenth of composing them again."""
    found = texts.to_pylist()
    if all(unicodedata.is_normalized("NFC", text) for text in found):
        return texts
    return pa.array([unicodedata.normalize("NFC", text) for text in found], pa.string())


@functools.cache
def _lowered_values() -> Hashes:
    """A random value for each code point; capitals have those of their small letters."""
    count = sys.maxunicode + 1
    return mix(np.fromiter((ord(chr(point).lower()[0]) for point in range(count)), np.uint64, count))


@functools.lru_cache(maxsize=2)
def _powers(size: int) -> tuple[Hashes, Hashes]:
    """The base to the power of each position, and its inverse modulo 2**64."""
    found: list[Any] = []
    for base in (_BASE, pow(_BASE, -1, 1 << 64)):
        steps = np.full(size, base & _MASK, np.uint64)
        steps[0] = 1
        found.append(np.cumprod(steps, dtype=np.uint64))
    return found[0], found[1]
