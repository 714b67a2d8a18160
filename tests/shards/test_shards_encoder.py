"""The ids in shards are those of the tokenizers library, whichever of the two ways they come."""

import json
import random

import numpy as np
import pytest

from nbllm import tokenizer as room
from nbllm.errors import DataError
from nbllm.shards import build, encoder
from nbllm.shards.encoder import Encoder
from nbllm.store import Store
from nbllm.tokenizer import Tokenizer

PIECES = [
    "the", " quick", "brown ", "\n", "\n\n", "  ", "   fox", "\t", "don't", "I'LL", "12", "34567", "!", "?!\n", " -- ",
    "a_b", "x=1;", "\r\n", "Zürich", "日本", "\x1c", "<|endoftext|>", "\x0b", "'s", " '", "()", "\x00", "é", "\u2003",
    "e\u0301", "ǅ", "٣", "½", "👩‍👧", "'ſ", "\u00a0", "\ufeff", "\ue000",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _always_worth_it(monkeypatch):
    pytest.importorskip("tiktoken")  # a dependency: only an installation that was cut down hasn't it
    monkeypatch.setattr(encoder, "_WORTH_CHARACTERS", 1)
    monkeypatch.setattr(encoder, "_PROVEN", {})


def texts(count=300):
    draw = random.Random(5)
    return ["".join(draw.choices(PIECES, k=draw.randrange(1, 60))) for _ in range(count)]


def trained(folder, **options):
    return room.train(Store(folder), texts(), **{"vocab_size": 420, "name": "t", **options})


def changed(tokenizer, change):
    """The tokenizer with another definition."""
    spec = json.loads(tokenizer.definition)
    change(spec)
    return Tokenizer(json.dumps(spec), config=tokenizer.config, name="changed")


def ids_of(found):
    return [ids.tolist() for ids in found]


@pytest.mark.parametrize("pattern", ["gpt2", "gpt4", "gpt4o"])
@pytest.mark.parametrize("digits", ["single", "any"])
def test_the_ids_are_those_of_the_library(tmp_path, pattern, digits):
    tokenizer = trained(tmp_path, pattern=pattern, digits=digits)
    mine = Encoder(tokenizer)
    found = [ids for start in range(0, 300, 50) for ids in mine.encode_batch(texts()[start : start + 50])]
    assert mine.fast
    assert ids_of(found) == tokenizer.encode_batch(texts())
    assert found[0].dtype == np.uint32


def test_empty_texts_and_batches_keep_their_places(tmp_path):
    tokenizer = trained(tmp_path)
    mine = Encoder(tokenizer)
    assert ids_of(mine.encode_batch(["the fox", "", "", "12"])) == tokenizer.encode_batch(["the fox", "", "", "12"])
    assert mine.fast
    assert mine.encode_batch([]) == []
    assert ids_of(mine.encode_batch([""])) == [[]]


@pytest.mark.parametrize("algorithm", ["unigram", "wordpiece"])
def test_other_algorithms_are_left_to_the_library(tmp_path, algorithm):
    tokenizer = trained(tmp_path, algorithm=algorithm)
    mine = Encoder(tokenizer)
    assert ids_of(mine.encode_batch(texts(40))) == tokenizer.encode_batch(texts(40))
    assert not mine.fast


def test_merges_that_reach_a_token_in_one_of_two_ways_are_left_to_the_library(tmp_path):
    def change(spec):  # "abc" by a + bc, though ab is joined before: only tiktoken would ever join it
        vocab, merges = spec["model"]["vocab"], spec["model"]["merges"]
        for left, right in (("~", "|"), ("|", "}"), ("~", "|}")):
            if left + right not in vocab:
                vocab[left + right] = max(vocab.values()) + 1
                merges.append([left, right])

    tokenizer = changed(trained(tmp_path), change)
    mine = Encoder(tokenizer)
    assert ids_of(mine.encode_batch(["a ~|} b"])) == tokenizer.encode_batch(["a ~|} b"])
    assert not mine.fast


def test_merges_out_of_the_order_of_their_ids_are_left_to_the_library(tmp_path):
    def change(spec):
        merges = spec["model"]["merges"]
        merges[3], merges[4] = merges[4], merges[3]

    mine = Encoder(changed(trained(tmp_path), change))
    mine.encode_batch(texts(4))
    assert not mine.fast


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: spec.update(normalizer={"type": "Lowercase"}),
        lambda spec: spec["added_tokens"][0].update(special=False),
        lambda spec: spec["pre_tokenizer"]["pretokenizers"][0].update(behavior="Removed"),
        lambda spec: spec["model"].update(dropout=0.5),
    ],
)
def test_what_changes_or_cuts_text_in_another_way_is_left_to_the_library(tmp_path, change):
    mine = Encoder(changed(trained(tmp_path), change))
    mine.encode_batch(texts(4))
    assert not mine.fast


def test_a_pattern_that_the_engines_read_differently_is_found_by_its_characters(tmp_path, monkeypatch):
    tokenizer = trained(tmp_path)
    real = encoder._pattern
    monkeypatch.setattr(encoder, "_pattern", lambda spec: real(spec).replace(r"\p{L}", r"a-zA-Zü").replace("[a", "a"))
    mine = Encoder(tokenizer)
    mine.encode_batch(["the fox"])
    if mine.fast:  # ASCII alike
        assert ids_of(mine.encode_batch(["Zürich 日本語x"])) == tokenizer.encode_batch(["Zürich 日本語x"])
        assert not mine.fast


def test_half_a_surrogate_pair_is_named_and_a_border_in_a_text_is_harmless(tmp_path):
    tokenizer = trained(tmp_path)
    mine = Encoder(tokenizer)
    mine.encode_batch(["the fox"])
    odd = [f"a{encoder._BORDER}b", "the fox"]
    assert ids_of(mine.encode_batch(odd)) == tokenizer.encode_batch(odd)
    with pytest.raises(DataError):
        mine.encode_batch(["fine", "\ud800"])


def test_a_little_text_is_left_to_the_library(tmp_path, monkeypatch):
    monkeypatch.setattr(encoder, "_WORTH_CHARACTERS", 10_000)
    mine = Encoder(trained(tmp_path))
    mine.encode_batch(["the fox"])
    assert not mine.fast
    mine.encode_batch(["the fox "] * 2000)
    assert mine.fast


def test_a_tokenizer_is_looked_at_once_in_a_process(tmp_path, monkeypatch):
    tokenizer = trained(tmp_path)
    Encoder(tokenizer).encode_batch(["the fox"])
    monkeypatch.setattr(encoder, "_ranks", lambda *given: pytest.fail("looked at again"))
    again = Encoder(tokenizer)
    assert ids_of(again.encode_batch(["Zürich"])) == tokenizer.encode_batch(["Zürich"])
    assert again.fast


def test_shards_are_the_same_by_either_way(tmp_path, monkeypatch):
    tokenizer = trained(tmp_path / "a")
    documents = [*texts(60), ("the question", "an answer"), *texts(3)]
    found = []
    for number, worth in enumerate((1, 10**9)):
        monkeypatch.setattr(encoder, "_WORTH_CHARACTERS", worth)
        shards = build(
            Store(tmp_path / str(number)), tokenizer, train=documents, parents=[tokenizer.as_parent()], parameters={}
        )
        assert shards.train.mask is not None
        found.append((shards.train.tokens.tolist(), shards.train.boundaries.tolist(), shards.train.mask.tolist()))
    assert found[0] == found[1]
