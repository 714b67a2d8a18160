"""The arrays over a batch say the same as the definitions of words, tokens, lines and paragraphs."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from nbllm.corpus.layout import Layout, Spans
from nbllm.corpus.ngrams import grams, repeated_characters, repeated_characters_greedy, top_characters
from nbllm.corpus.words import lines, paragraphs, tokens, words

ODD = "ab Z_1.- \n\n\r\t…#漢字かな กไ\u0301\u093fहé\u2028\x0c\x85\u3000•"


def texts(ascii_only: bool) -> list[str]:
    rng = random.Random(0)
    made = ["".join(rng.choices(ODD, k=rng.randrange(60))) for _ in range(1500)] + ["", "abc", "\n", "漢", "\r\n"]
    return [text.encode("ascii", "ignore").decode() for text in made] if ascii_only else made


def by_document(layout: Layout, spans: Spans) -> list[list[str]]:
    found = layout.strings(spans).to_pylist()
    return [found[a:b] for a, b in zip(spans.offsets[:-1], spans.offsets[1:], strict=True)]


@pytest.mark.parametrize("ascii_only", [True, False])
def test_spans_are_what_the_definitions_give(ascii_only: bool) -> None:
    given = texts(ascii_only)
    layout = Layout(pa.array(given, pa.string()))
    assert by_document(layout, layout.words) == [words(text) for text in given]
    assert by_document(layout, layout.tokens) == [tokens(text) for text in given]
    assert by_document(layout, layout.pieces) == [text.split() for text in given]
    assert by_document(layout, layout.lines) == [lines(text) for text in given]
    filled = [[line.strip() for line in lines(text) if line.strip()] for text in given]
    assert by_document(layout, layout.filled_lines) == filled
    assert by_document(layout, layout.paragraphs) == [[part.strip() for part in paragraphs(text)] for text in given]
    numbers, names = layout.numbers(layout.words)
    assert names.take(pa.array(numbers)).to_pylist() == layout.strings(layout.words).to_pylist()


def test_a_batch_of_nothing() -> None:
    layout = Layout(pa.array([], pa.string()))
    assert len(layout.words) == len(layout.lines) == len(layout.paragraphs) == 0


def naive(word_list: list[int], sizes: list[int], n: int) -> tuple[int, int]:
    """Characters in repeated n-grams: each once, and as datatrove's loop counts."""
    seen: set[tuple[int, ...]] = set()
    covered: set[int] = set()
    for i in range(len(word_list) - n + 1):
        gram = tuple(word_list[i : i + n])
        if gram in seen:
            covered.update(range(i, i + n))
        seen.add(gram)
    unique: set[tuple[int, ...]] = set()
    greedy = i = 0
    while i < len(word_list) - n + 1:
        gram = tuple(word_list[i : i + n])
        if gram in unique:
            greedy += sum(sizes[i : i + n])
            i += n
        else:
            unique.add(gram)
            i += 1
    return sum(sizes[i] for i in covered), greedy


def test_repeated_ngrams_are_those_of_the_plain_loops() -> None:
    rng = random.Random(1)
    documents = [[rng.randrange(rng.choice([1, 2, 3, 30])) for _ in range(rng.randrange(50))] for _ in range(200)]
    flat = [word for document in documents for word in document]
    sizes = np.array([1 + word % 4 for word in flat])
    offsets = np.concatenate(([0], np.cumsum([len(document) for document in documents])))
    for found in grams(np.array(flat), offsets, 7):
        if found.n >= 2:
            expected = [naive(one, [1 + word % 4 for word in one], found.n) for one in documents]
            assert repeated_characters(found, sizes, offsets).tolist() == [one[0] for one in expected]
            assert repeated_characters_greedy(found, sizes, offsets).tolist() == [one[1] for one in expected]


def test_the_most_frequent_ngram_of_each_document() -> None:
    words_of = np.array([0, 1, 2, 0, 1, 3, 4, 3, 4, 5, 6])
    sizes = np.array([1, 1, 1, 1, 1, 3, 3, 3, 3, 2, 2])
    offsets = np.array([0, 9, 9, 11])
    (_, pairs) = grams(words_of, offsets, 2)
    assert top_characters(pairs, sizes, offsets, joined=False).tolist() == [12, 0, 0]
    assert top_characters(pairs, sizes, offsets, joined=True).tolist() == [6, 0, 5]
