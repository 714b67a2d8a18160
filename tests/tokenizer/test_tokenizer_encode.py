"""Encoding and decoding: exact round trips, special tokens, equality with transformers, streaming."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hard_texts import HARD_TEXTS, fuzz_texts

from nbllm.errors import DataError, UsageError
from nbllm.tokenizer import PATTERNS, StreamDecoder, Tokenizer, train


@pytest.mark.parametrize("text", HARD_TEXTS)
def test_hard_texts_come_back_exactly(trained: Tokenizer, text: str) -> None:
    assert trained.decode(trained.encode(text), skip_special=False) == text
    assert trained.decode(trained.encode(text)) == text


def test_random_unicode_comes_back_exactly(trained: Tokenizer) -> None:
    texts = fuzz_texts(500)
    assert [trained.decode(ids) for ids in trained.encode_batch(texts)] == texts


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("digits", [None, "single", "triple", "any"])
def test_every_pattern_keeps_every_character(store, prose, pattern: str, digits: str | None) -> None:
    tokenizer = train(store, prose[:3], vocab_size=300, pattern=pattern, digits=digits, name="t")
    texts = HARD_TEXTS + fuzz_texts(50, seed=1)
    assert [tokenizer.decode(ids) for ids in tokenizer.encode_batch(texts)] == texts


def test_special_tokens_typed_in_text_stay_text(trained: Tokenizer) -> None:
    text = "one<|endoftext|>two<|pad|>"
    ids = trained.encode(text)
    assert not set(ids) & set(trained.special_tokens.values())
    assert trained.decode(ids) == text
    allowed = trained.encode(text, allow_special=True)
    assert allowed.count(trained.eos_id) == 1
    assert allowed[-1] == trained.pad_id
    assert trained.decode(allowed) == "onetwo"
    assert trained.decode(allowed, skip_special=False) == text
    assert trained.encode(text) == ids  # asking for it once doesn't change the next call


def test_only_the_caller_adds_the_beginning(trained: Tokenizer) -> None:
    assert trained.encode("") == []
    assert trained.encode("", add_bos=True) == [trained.bos_id]
    assert trained.encode("hi", add_bos=True) == [trained.bos_id, *trained.encode("hi")]


def test_batch_equals_single(trained: Tokenizer) -> None:
    assert trained.encode_batch(HARD_TEXTS) == [trained.encode(text) for text in HARD_TEXTS]
    assert trained.encode_batch([]) == []


def test_what_cannot_be_encoded_is_named(trained: Tokenizer) -> None:
    with pytest.raises(DataError, match=r"U\+D800.*character 3"):
        trained.encode("abc\ud800")
    with pytest.raises(UsageError, match="Only strings"):
        trained.encode(5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="0 to"):
        trained.token_bytes(10**6)
    assert trained.decode([10**6, -1]) == ""


def test_token_texts_show_white_space(trained: Tokenizer) -> None:
    (space,) = trained.encode(" ")
    assert (trained.token_text(space), trained.token_bytes(space), trained.token(space)) == ("␣", b" ", "Ġ")
    smile = trained.encode("😀")
    assert [trained.token_text(id) for id in smile] == ["<F0>", "<9F>", "<98>", "<80>"]
    assert b"".join(trained.token_bytes(id) for id in smile) == "😀".encode()


def test_transformers_gives_equal_ids(trained: Tokenizer, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder = trained.save(tmp_path / "plain")
    model_folder = trained.save(tmp_path / "beside-a-model")
    (model_folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    for path in (folder, model_folder):
        other = AutoTokenizer.from_pretrained(path)
        for text in HARD_TEXTS:
            allowed = trained.encode(text, allow_special=True)
            assert other(text)["input_ids"] == allowed
            assert other.decode(allowed) == trained.decode(allowed, skip_special=False)
            if "<|" not in text:
                assert other(text)["input_ids"] == trained.encode(text)
        assert (other.bos_token_id, other.eos_token_id, other.pad_token_id) == (
            trained.bos_id,
            trained.eos_id,
            trained.pad_id,
        )
        assert len(other) == trained.vocab_size


def test_as_transformers_is_the_same(trained: Tokenizer) -> None:
    assert trained.as_transformers()("  Hello World. ")["input_ids"] == trained.encode("  Hello World. ")


@pytest.mark.parametrize("text", [*HARD_TEXTS, *fuzz_texts(100, seed=2)])
def test_stream_never_shows_half_a_character(trained: Tokenizer, text: str) -> None:
    decoder = StreamDecoder(trained)
    pieces = [decoder.push(id) for id in trained.encode(text)]
    assert "".join(pieces) == text
    assert decoder.flush() == ""
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


def test_stream_of_a_cut_character(trained: Tokenizer) -> None:
    ids = trained.encode("ok 한")[:-1]
    decoder = StreamDecoder(trained)
    pieces = [decoder.push(id) for id in ids]
    assert "".join(pieces) == "ok "
    assert "".join(pieces) + decoder.flush() == trained.decode(ids) == "ok \ufffd"
    assert decoder.push(trained.encode("a")[0]) == "a"  # nothing is left of it


def test_stream_of_random_ids_is_what_decode_gives(trained: Tokenizer) -> None:
    import random

    generator = random.Random(3)
    for _ in range(200):
        ids = [generator.randrange(trained.vocab_size + 5) for _ in range(30)]
        for skip_special in (True, False):
            decoder = StreamDecoder(trained, skip_special=skip_special)
            streamed = "".join(decoder.push(id) for id in ids) + decoder.flush()
            assert streamed == trained.decode(ids, skip_special=skip_special)


def test_importing_loads_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, nbllm.tokenizer, nbllm.shards; print(*[m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == ""
