"""Words encoded once each give the ids that the tokenizers library gives, or are left to it."""

import random

import pytest

from nbllm import tokenizer as room
from nbllm.shards.words import WordEncoder, _spelled_out
from nbllm.store import Store

PIECES = [
    "the", " quick", "brown ", "\n", "\n\n", "  ", "   fox", "\t", "don't", "I'LL", "12", "34567", "!", "?!\n", " -- ",
    "a_b", "x=1;", "\r\n", "Zürich", "日本", "\x1c", "<|endoftext|>", "\x0b", "'s", " '", "()", "\x00", "é",
]  # fmt: skip


def texts(count=300):
    draw = random.Random(5)
    return ["".join(draw.choices(PIECES, k=draw.randrange(1, 60))) for _ in range(count)]


@pytest.mark.parametrize("pattern", ["gpt2", "gpt4", "llama3"])
@pytest.mark.parametrize("digits", ["single", "triple", "any"])
def test_the_ids_are_those_of_the_library(tmp_path, pattern, digits):
    tokenizer = room.train(Store(tmp_path), texts(), vocab_size=400, pattern=pattern, digits=digits, name="t")
    encoder = WordEncoder(tokenizer)
    found = [ids for start in range(0, 300, 50) for ids in encoder.encode_batch(texts()[start : start + 50])]
    assert found == tokenizer.encode_batch(texts())


@pytest.mark.parametrize("algorithm", ["unigram", "wordpiece"])
def test_other_algorithms_are_left_to_the_library(tmp_path, algorithm):
    tokenizer = room.train(Store(tmp_path), texts(), vocab_size=400, algorithm=algorithm, name="t")
    encoder = WordEncoder(tokenizer)
    assert encoder._find is None
    assert encoder.encode_batch(texts(40)) == tokenizer.encode_batch(texts(40))


def test_the_short_way_is_used_for_ascii_alone_and_given_up_where_it_differs(tmp_path):
    tokenizer = room.train(Store(tmp_path), texts(), vocab_size=400, name="t")
    encoder = WordEncoder(tokenizer)
    assert encoder._cut("the quick fox")
    assert not encoder._cut("Zürich")
    assert not encoder._cut("a\x1cb")
    encoder._find = lambda text: list(text)  # cuts elsewhere
    assert encoder.encode_batch(["the quick brown fox"] * 3) == tokenizer.encode_batch(["the quick brown fox"] * 3)
    assert encoder._find is None


def test_a_pattern_with_other_classes_is_not_spelled_out():
    assert _spelled_out(r"\p{Lu}+|.") is None
    assert _spelled_out(r"(a)|b") is None
    assert _spelled_out(r" ?\p{L}+|[^\s\p{L}]").findall("ab cd;") == ["ab", " cd", ";"]
