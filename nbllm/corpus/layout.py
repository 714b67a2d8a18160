"""Where words, tokens, lines and paragraphs stand in all texts of a batch, as arrays over the whole batch at once.

The quality rules count over these arrays instead of over Python strings: the texts are laid end to end, a newline after
each, and every code point is looked up once in a table of classes. What a word, a token or a line is, is defined in
`words.py`; a test holds both to the same answers. Memory: about 20 bytes a code point of a batch while it is measured.

Legend: N code points of the batch, D documents; a span array has a start and an end a row, in code points.
Knows nothing of stages.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nbllm.corpus.words import UNSPACED, mark_ranges

SPACE, WORD, MARK, UNSPACED_SCRIPT, KANA, LETTER, ENDS_SENTENCE = (1 << bit for bit in range(7))
"""Bits of a code point's class; WORD is a letter, digit or underscore of a script with spaces between words."""
END_PUNCTUATION = (
    # FineWeb's list: mostly Unicode's property Sentence_Terminal, as first and last code points
    (0x21, 0x21), (0x2e, 0x2e), (0x3f, 0x3f), (0x589, 0x589), (0x61d, 0x61f), (0x6d4, 0x6d4), (0x700, 0x702),
    (0x7f9, 0x7f9), (0x837, 0x837), (0x839, 0x839), (0x83d, 0x83e), (0x964, 0x965), (0x104a, 0x104b), (0x1362,
    0x1362), (0x1367, 0x1368), (0x166e, 0x166e), (0x1735, 0x1736), (0x17d4, 0x17d6), (0x17d9, 0x17da), (0x1803,
    0x1803), (0x1809, 0x1809), (0x1944, 0x1945), (0x1aa8, 0x1aab), (0x1b5a, 0x1b5b), (0x1b5e, 0x1b5f), (0x1b7d,
    0x1b7e), (0x1c3b, 0x1c3c), (0x1c7e, 0x1c7f), (0x203c, 0x203d), (0x2047, 0x2049), (0x2e2e, 0x2e2e), (0x2e3c,
    0x2e3c), (0x2e53, 0x2e54), (0x3002, 0x3002), (0xa4ff, 0xa4ff), (0xa60e, 0xa60f), (0xa6f3, 0xa6f3), (0xa6f7,
    0xa6f7), (0xa876, 0xa877), (0xa8ce, 0xa8cf), (0xa92f, 0xa92f), (0xa9c8, 0xa9c9), (0xaa5d, 0xaa5f), (0xaaf0,
    0xaaf1), (0xabeb, 0xabeb), (0xfe52, 0xfe52), (0xfe56, 0xfe57), (0xff01, 0xff01), (0xff0e, 0xff0e), (0xff1f,
    0xff1f), (0xff61, 0xff61), (0x10a56, 0x10a57), (0x10f55, 0x10f59), (0x10f86, 0x10f89), (0x11047, 0x11048),
    (0x110be, 0x110c1), (0x11141, 0x11143), (0x111c5, 0x111c6), (0x111cd, 0x111cd), (0x111de, 0x111df), (0x11238,
    0x11239), (0x1123b, 0x1123c), (0x112a9, 0x112a9), (0x1144b, 0x1144c), (0x115c2, 0x115c3), (0x115c9, 0x115d7),
    (0x11641, 0x11642), (0x1173c, 0x1173e), (0x11944, 0x11944), (0x11946, 0x11946), (0x11a42, 0x11a43), (0x11a9b,
    0x11a9c), (0x11c41, 0x11c42), (0x11ef7, 0x11ef8), (0x11f43, 0x11f44), (0x16a6e, 0x16a6f), (0x16af5, 0x16af5),
    (0x16b37, 0x16b38), (0x16b44, 0x16b44), (0x16e98, 0x16e98), (0x1bc9f, 0x1bc9f), (0x1da88, 0x1da88),
)  # fmt: skip
"""What ends a sentence, by script."""
_LINE_ENDS = {"usual": r"\r\n|\r", "newline": "", "splitlines": "\r\n|[\r\x0b\x0c\x1c\x1d\x1e\u0085\u2028\u2029]"}

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Spans:
    """Pieces of the texts, in order."""

    start: Ints
    end: Ints
    offsets: Ints
    """[D + 1]: the pieces of document d are offsets[d] … offsets[d + 1] - 1."""

    def __len__(self) -> int:
        return len(self.start)

    @property
    def counts(self) -> Ints:
        """[D]: pieces a document."""
        return np.diff(self.offsets)

    @property
    def sizes(self) -> Ints:
        """Code points a piece."""
        return self.end - self.start

    @cached_property
    def document(self) -> Ints:
        """The document of each piece."""
        return np.repeat(np.arange(len(self.offsets) - 1), self.counts)

    def total(self, values: NDArray[Any]) -> NDArray[Any]:
        """[D]: the sum of a value a piece over the pieces of each document."""
        return np.diff(running(values)[self.offsets])


class Layout:
    """The texts of a batch.

    Args:
        texts: strings without nulls.
        line_ends: `usual` (\\n, \\r\\n, \\r), `newline` (\\n only) or `splitlines` (what `str.splitlines` cuts at).
    """

    def __init__(self, texts: pa.Array, line_ends: str = "usual") -> None:
        self.documents = len(texts)
        pattern = _LINE_ENDS[line_ends]
        if pattern and pc.any(pc.match_substring_regex(texts, pattern)).as_py():
            texts = pc.replace_substring_regex(texts, pattern, "\n")
        self.texts = texts
        joined = pc.binary_join_element_wise(texts, "", "\n")
        _, offsets, data = joined.buffers()
        bytes_at = np.frombuffer(offsets, np.int32)[joined.offset : joined.offset + len(joined) + 1].astype(np.int64)
        self._data = data
        raw = np.frombuffer(data, np.uint8)[: int(bytes_at[-1])] if self.documents else np.empty(0, np.uint8)
        if not len(raw) or raw.max() < 128:
            self.points: NDArray[Any] = raw
            self._byte_of: Ints | None = None
            self.start: Ints = bytes_at
        else:
            self.points = np.frombuffer(raw.tobytes().decode().encode("utf-32-le"), np.uint32)
            self._byte_of = np.append(np.flatnonzero((raw & 0xC0) != 0x80), len(raw))
            self.start = np.searchsorted(self._byte_of, bytes_at)
        self.classes = _classes()[self.points]

    @property
    def sizes(self) -> Ints:
        """[D]: code points of each text."""
        return np.diff(self.start) - 1

    def has(self, kind: int) -> NDArray[np.bool_]:
        """[N]: whether a code point belongs to a class."""
        return (self.classes & kind) != 0

    def count(self, mask: NDArray[np.bool_]) -> Ints:
        """[D]: how many code points of each text are marked."""
        return np.diff(np.searchsorted(np.flatnonzero(mask), self.start))

    @cached_property
    def _spaces(self) -> NDArray[np.bool_]:
        return self.has(SPACE)

    @cached_property
    def _filled(self) -> Ints:
        """Positions of what isn't white space."""
        return np.flatnonzero(~self._spaces)

    @cached_property
    def tokens(self) -> Spans:
        """The pieces between white space; unspaced scripts by character."""
        filled = ~self._spaces
        start = filled & ~_before(filled)
        end = ~filled & _before(filled)
        alone = self.has(UNSPACED_SCRIPT)
        if alone.any():
            start |= alone | (filled & _before(alone))
            end |= start & _before(filled)
        return self.spans(np.flatnonzero(start), np.flatnonzero(end))

    @cached_property
    def pieces(self) -> Spans:
        """The pieces between white space, whatever the script."""
        filled = ~self._spaces
        return self.spans(np.flatnonzero(filled & ~_before(filled)), np.flatnonzero(~filled & _before(filled)))

    @cached_property
    def words(self) -> Spans:
        """Runs of letters, digits, `_` and their marks; single characters in unspaced scripts."""
        inside = self.has(WORD)
        marks = self.has(MARK)
        if marks.any():
            # a mark belongs to a word where a letter stands before it in the same run
            places = np.arange(len(inside))
            letter = np.maximum.accumulate(np.where(inside, places, -1))
            gap = np.maximum.accumulate(np.where(inside | marks, -1, places))
            inside = inside | (marks & (letter > gap))
        alone = self.has(UNSPACED_SCRIPT)
        start = (inside & ~_before(inside)) | alone
        end = (_before(inside) & ~inside) | _before(alone)
        return self.spans(np.flatnonzero(start), np.flatnonzero(end))

    @cached_property
    def lines(self) -> Spans:
        """All lines, empty ones too, without their ends."""
        end = np.flatnonzero(self.points == 10)
        return self.spans(np.concatenate(([0], end[:-1] + 1)) if len(end) else end, end)

    @cached_property
    def filled_lines(self) -> Spans:
        """The lines with something other than white space, without white space at both ends."""
        lines = self.lines
        first = np.append(self._filled, len(self.points))[np.searchsorted(self._filled, lines.start)]
        after = np.searchsorted(self._filled, lines.end)
        last = np.append(-1, self._filled)[after]  # the last filled position before the end
        hold = first < lines.end
        return self.spans(first[hold], last[hold] + 1)

    @cached_property
    def paragraphs(self) -> Spans:
        """The runs of filled lines between blank ones, from the first to the last filled character."""
        lines, filled = self.lines, self.filled_lines
        # the number of the line that each filled line is; a paragraph begins where the line before isn't filled
        number = np.searchsorted(lines.start, filled.start, side="right") - 1
        fresh = np.ones(len(filled), bool)
        fresh[1:] = (np.diff(number) > 1) | (np.diff(filled.document) != 0)
        first = np.flatnonzero(fresh)
        last = np.append(first[1:], len(filled)) - 1 if len(first) else first
        return self.spans(filled.start[first], filled.end[last])

    def spans(self, start: Ints, end: Ints) -> Spans:
        """Spans with the documents that they belong to."""
        return Spans(start, end, np.searchsorted(start, self.start))

    def strings(self, spans: Spans) -> pa.StringArray:
        """The text of each span; spans are ordered and don't overlap."""
        return pc.take(self._with_gaps(spans), pa.array(np.arange(len(spans)) * 2))

    def numbers(self, spans: Spans) -> tuple[Ints, pa.StringArray]:
        """A number for each span, equal where the text is, and the texts by number."""
        if not len(spans):
            return np.empty(0, np.int64), pa.array([], pa.string())
        coded = pc.dictionary_encode(self._with_gaps(spans))
        return coded.indices.to_numpy()[::2].astype(np.int64), coded.dictionary

    def _with_gaps(self, spans: Spans) -> pa.StringArray:
        """The spans and what stands between them, in turn, over the bytes as they lie."""
        edges = np.empty(2 * len(spans), np.int64)
        edges[::2], edges[1::2] = spans.start, spans.end
        if self._byte_of is not None:
            edges = self._byte_of[edges]
        return pa.StringArray.from_buffers(
            max(0, len(edges) - 1), pa.py_buffer(edges.astype(np.int32)), self._data
        )  # fmt: skip


def running(values: NDArray[Any]) -> NDArray[Any]:
    """The sums of the first 0, 1, … values."""
    kind = np.float64 if values.dtype.kind == "f" else np.int64
    found = np.zeros(len(values) + 1, kind)
    np.cumsum(values, out=found[1:])
    return found


def share(part: NDArray[Any], whole: NDArray[Any]) -> NDArray[np.float64]:
    """part / whole, 0 where there is no whole."""
    return np.asarray(part / np.maximum(1, whole), np.float64)


def _before(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The same mask one place later."""
    found = np.zeros_like(mask)
    found[1:] = mask[:-1]
    return found


@functools.cache
def _classes() -> NDArray[np.uint8]:
    """The class of every code point."""
    table = np.zeros(sys.maxunicode + 1, np.uint8)
    # one string of all code points, a space in the place of surrogates, so that positions are code points
    points = np.arange(sys.maxunicode + 1, dtype="<u4")
    points[0xD800:0xE000] = 0x20
    everything = points.tobytes().decode("utf-32-le")

    def mark(pattern: str, kind: int) -> None:
        for match in re.finditer(f"(?:{pattern})+", everything):
            table[match.start() : match.end()] |= kind

    mark(r"\w", WORD)
    mark(r"[^\W\d_]", LETTER)
    mark(r"\s", SPACE)
    table[0xD800:0xE000] = 0
    _add(table, (point for low, high in mark_ranges() for point in range(low, high + 1)), MARK)
    mark(UNSPACED.pattern, UNSPACED_SCRIPT)
    table[(table & UNSPACED_SCRIPT) != 0] &= ~np.uint8(WORD | MARK)
    mark(r"[\u3041-\u3096\u30a1-\u30fa\u31f0-\u31ff\uff66-\uff9f]", KANA)
    _add(table, (point for low, high in END_PUNCTUATION for point in range(low, high + 1)), ENDS_SENTENCE)
    return table


def _add(table: NDArray[np.uint8], points: Iterable[int], kind: int) -> None:
    table[np.fromiter(points, np.int64)] |= kind
