"""What a vocabulary's size costs, against vocabularies that were really cut off; tokens that no text gives."""

from __future__ import annotations

import json

import pytest
import tokenizers
from kinds import SOME, bert_like, gpt2_like
from tokenizers import models, pre_tokenizers

from nbllm.errors import UsageError
from nbllm.tokenizer import Tokenizer
from nbllm.tokenizer.curve import curve


def test_the_curve_is_what_smaller_vocabularies_give(trained: Tokenizer, prose: list[str]) -> None:
    for tokenizer, texts in ((trained, prose[:8]), (gpt2_like(), SOME)):
        found = tokenizer.report(texts).curve
        assert found is not None
        content = json.loads(tokenizer.definition)
        merges = content["model"]["merges"]
        base = tokenizer.vocab_size - len(merges)
        assert (found.sizes[0], found.sizes[-1]) == (base, tokenizer.vocab_size)
        assert len(found.sizes) == 12
        for size, count in zip(found.sizes, found.tokens, strict=True):
            content["model"]["merges"] = merges[: size - base]
            smaller = tokenizers.Tokenizer.from_str(json.dumps(content))
            smaller.encode_special_tokens = True
            assert sum(len(smaller.encode(text, add_special_tokens=False).ids) for text in texts) == count
        assert found.tokens[0] == found.text_bytes
        assert found.bytes_per_token[0] == 1.0
        assert "<svg" in found._repr_html_()
        assert len(str(found).splitlines()) == 13


def test_only_byte_pair_vocabularies_can_be_cut_off() -> None:
    bert = bert_like()
    with pytest.raises(UsageError, match="Only a byte-pair vocabulary"):
        curve(bert, [0] * bert.vocab_size, 0)
    found = bert.report(SOME)
    assert found.curve is None
    assert "one training gives one size" in str(found)


def test_rare_and_unreachable_tokens() -> None:
    letters = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocabulary = {**letters, "ab": 256, "bc": 257, "abc": 258}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, [("a", "b"), ("b", "c"), ("a", "bc")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    tokenizer = Tokenizer(backend.to_str(), config={}, name="odd")
    assert tokenizer.unreachable_ids == (258,)
    found = tokenizer.report(["abc bc " * 5, "ab"])
    assert found.unreachable == ((258, "abc"),)
    assert {text for _, text in found.rare} == {"bc", "c"}
    assert "Unreachable tokens" in str(found)
    assert gpt2_like().unreachable_ids == ()
