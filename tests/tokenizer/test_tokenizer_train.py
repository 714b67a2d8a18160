"""Training and the store: options, reuse, determinism, what is refused."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hard_texts import HARD_TEXTS, fuzz_texts
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

from nbllm.errors import DataError, StoreError, UsageError
from nbllm.store import Parent, Store
from nbllm.tokenizer import default_vocab_size, load, train
from nbllm.tokenizer.patterns import expression


def test_defaults_by_size() -> None:
    mb = 1_000_000
    assert [default_vocab_size(size) for size in (0, 10 * mb, 10 * mb + 1, 100 * mb, 100 * mb + 1)] == [
        2048,
        2048,
        8192,
        8192,
        32_768,
    ]


def test_layout_of_the_vocabulary(store: Store, prose: list[str]) -> None:
    tokenizer = train(store, prose, vocab_size=600, special=["<|user|>", "<|pad|>", "<|user|>"], name="chat")
    assert tokenizer.special_tokens == {"<|endoftext|>": 0, "<|pad|>": 1, "<|user|>": 2}
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (0, 0, 1)
    assert tokenizer.vocab_size == 600
    assert {tokenizer.token_bytes(id) for id in range(3, 259)} == {bytes([byte]) for byte in range(256)}
    assert tokenizer.byte_level
    assert tokenizer.lossless
    assert max(len(tokenizer.token_bytes(id)) for id in range(600)) <= 32


def test_digits(store: Store, prose: list[str]) -> None:
    texts = [*prose, "1234 5678 1234 5678 " * 500]
    pieces = {}
    for digits in ("single", "triple", "any"):
        tokenizer = train(store, texts, vocab_size=1000, digits=digits, name=digits)
        pieces[digits] = [tokenizer.token_text(id) for id in tokenizer.encode("1234")]
    assert pieces == {"single": ["1", "2", "3", "4"], "triple": ["123", "4"], "any": ["1234"]}


def test_same_texts_same_tokenizer(store: Store, prose: list[str]) -> None:
    code = (
        "import sys; from pydoc_data import topics; from nbllm.store import Store; from nbllm.tokenizer import train;"
        "print(train(Store(sys.argv[1]), list(topics.topics.values())[:40], vocab_size=700, name='t').hash)"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", code, str(store.root / seed)],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert hashes == {train(store, prose, vocab_size=700, name="t").hash + "\n"}


def test_trained_alike_is_found_again(store: Store, prose: list[str]) -> None:
    first = train(store, prose, vocab_size=400)
    assert not first.reused
    again = train(store, iter(prose), vocab_size=400)
    assert again.reused
    assert (again.name, again.hash, again.manifest) == (first.name, first.hash, first.manifest)
    other_texts = train(store, prose[:5], vocab_size=400, name="other")
    assert not other_texts.reused
    assert store.names("tokenizer") == ["other", "texts-400"]
    named = train(store, prose, vocab_size=400, name="mine")
    assert (named.name, named.hash) == ("mine", first.hash)


def test_parents_stand_for_the_texts(store: Store, prose: list[str]) -> None:
    corpus = Parent(kind="corpus", name="docs", hash="abc")
    first = train(store, lambda: prose, text_bytes=100, vocab_size=400, parents=[corpus], parameters_extra={"h": 0.05})
    assert first.name == "docs-400"
    assert first.manifest is not None
    assert first.manifest.parents == (corpus,)
    assert first.manifest.parameters["h"] == 0.05

    def untouched() -> list[str]:
        raise AssertionError("texts were read although the tokenizer exists")

    assert train(
        store, untouched, text_bytes=100, vocab_size=400, parents=[corpus], parameters_extra={"h": 0.05}
    ).reused
    other = train(store, lambda: prose, text_bytes=100, vocab_size=401, parents=[corpus], parameters_extra={"h": 0.05})
    assert not other.reused


def test_a_name_in_use_is_refused(store: Store, prose: list[str]) -> None:
    train(store, prose, vocab_size=400, name="mine")
    with pytest.raises(StoreError, match="--overwrite"):
        train(store, prose, vocab_size=500, name="mine")
    assert load(store, "mine").vocab_size == 400
    assert train(store, prose, vocab_size=500, name="mine", overwrite=True).vocab_size == 500
    assert load(store, "mine").vocab_size == 500


def test_a_small_text_gives_fewer_tokens_and_says_so(store: Store) -> None:
    tokenizer = train(store, ["abab abab"], vocab_size=5000, name="small")
    assert 258 < tokenizer.vocab_size < 270
    assert tokenizer.manifest is not None
    assert (
        tokenizer.manifest.summary["note"]
        == f"The text gives only {tokenizer.vocab_size} of the 5,000 tokens asked for"
    )
    assert tokenizer.decode(tokenizer.encode("abab 😀")) == "abab 😀"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "ungram"}, "--algorithm ungram can't be trained. Did you mean unigram?"),
        ({"algorithm": "wordpiece", "pattern": "gpt4"}, "cuts at white space and punctuation"),
        ({"algorithm": "wordpiece", "vocab_size": 3}, "from 4 on (3 special tokens)"),
        ({"pattern": "gtp4"}, "Did you mean gpt4?"),
        ({"digits": "tripel"}, "Did you mean triple?"),
        ({"vocab_size": 257}, "from 258 on"),
        ({"vocab_size": "many"}, "received 'many'"),
        ({"special": [""]}, "at least one visible character"),
    ],
)
def test_wrong_options_name_the_right_ones(store: Store, options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        train(store, ["text text"], name="t", **options)  # type: ignore[arg-type]
    assert message in str(caught.value)
    assert store.names("tokenizer") == []


def test_nothing_to_train_on(store: Store) -> None:
    with pytest.raises(DataError, match="no text"):
        train(store, [], name="t")
    with pytest.raises(DataError, match="no text"):
        train(store, ["", ""], name="t")
    with pytest.raises(DataError, match="surrogate"):
        train(store, ["fine", "\udc00"], name="t")
    with pytest.raises(UsageError, match="one string"):
        train(store, "text", name="t")
    with pytest.raises(UsageError, match="Only strings"):
        train(store, lambda: [b"text"], text_bytes=4, parents=[Parent(kind="corpus", name="c", hash="c")])  # type: ignore[list-item]
    assert store.names("tokenizer") == []
    assert not any((store.root / "tokenizers").iterdir())


def test_progress_and_interrupt(store: Store, prose: list[str]) -> None:
    seen: list[tuple[int, int]] = []
    train(store, prose[:5], vocab_size=300, name="t", progress=lambda count, size: seen.append((count, size)))
    assert seen[-1] == (5, sum(len(text.encode()) for text in prose[:5]))

    def interrupted(count: int, size: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(store, prose[:5], vocab_size=301, name="u", progress=interrupted)
    assert store.names("tokenizer") == ["t"]


@pytest.mark.parametrize(
    ("pattern", "pieces"),
    [
        ("gpt2", ["  ", " I", "'ll", " pay", " 12345", ".", "\n", "\n", "ThenIT", "'", "S", " done", "!?", " "]),
        ("gpt4", ["  ", " I", "'ll", " pay", " ", "123", "45", ".\n\n", "ThenIT", "'S", " done", "!?", " "]),
    ],
)
def test_patterns_cut_as_published(pattern: str, pieces: list[str]) -> None:
    text = "   I'll pay 12345.\n\nThenIT'S done!? "
    split = Split(Regex(expression(pattern)), "isolated")
    assert [piece for piece, _ in split.pre_tokenize_str(text)] == pieces


@pytest.mark.timeout(300)  # uncapped, this takes hours
@pytest.mark.parametrize("pattern", ["gpt4", "none"])
def test_one_endless_piece_trains(store: Store, pattern: str) -> None:
    tokenizer = train(store, ["x" * 1_000_000 + "ab" * 200_000], vocab_size=300, pattern=pattern, name="t")
    assert b"x" * 32 in {tokenizer.token_bytes(id) for id in range(tokenizer.vocab_size)}
    assert "1024" not in tokenizer.as_transformers().backend_tokenizer.to_str()  # the cap is for training alone


@pytest.mark.parametrize("algorithm", ["bpe", "unigram", "wordpiece"])
def test_every_algorithm_trains_alike_twice(store: Store, prose: list[str], algorithm: str) -> None:
    first = train(store, prose, vocab_size=800, algorithm=algorithm, name="a")
    again = train(store, lambda: prose, vocab_size=800, algorithm=algorithm, name="b", overwrite=True)
    shared = {first.token(id) for id in range(800)} & {again.token(id) for id in range(800)}
    assert len(shared) > 720
    assert (first.hash == again.hash) or algorithm != "bpe"
    assert (first.algorithm, first.vocab_size) == (algorithm, 800)
    assert (first.bos_id, first.eos_id, first.pad_id) == (0, 0, 1)
    assert load(store, "a").encode("The statement") == first.encode("The statement")
    ids = first.encode("<|endoftext|>")
    assert not set(ids) & set(first.special_tokens.values())
    assert first.encode("<|endoftext|>", allow_special=True) == [0]
    assert len(first.encode("statement")) <= 3  # words of the text have become tokens


def test_unigram_brings_back_every_text(store: Store, prose: list[str]) -> None:
    tokenizer = train(store, prose, vocab_size=700, algorithm="unigram", digits="single", name="u")
    assert tokenizer.lossless
    texts = [*HARD_TEXTS, *fuzz_texts(100, seed=7)]
    encoded = tokenizer.encode_batch(texts)
    assert [tokenizer.decode(ids) for ids in encoded] == texts
    assert [b"".join(map(tokenizer.token_bytes, ids)) for ids in encoded] == [text.encode() for text in texts]
    assert [tokenizer.token_text(id) for id in tokenizer.encode("1234")] == ["1", "2", "3", "4"]
    assert {tokenizer.token_bytes(id) for id in range(700)} >= {bytes([byte]) for byte in range(256)}
    scores = [tokenizer.score(id) or 0 for id in range(2, 700)]
    assert scores == sorted(scores, reverse=True)


def test_wordpiece_is_as_berts(store: Store, prose: list[str]) -> None:
    tokenizer = train(store, prose, vocab_size=700, algorithm="wordpiece", digits="single", name="w")
    assert tokenizer.special_tokens == {"<|endoftext|>": 0, "<|pad|>": 1, "[UNK]": 2}
    assert not tokenizer.lossless
    assert tokenizer.decode(tokenizer.encode("The statement, it is  12")) == "The statement , it is 1 2"
    assert tokenizer.encode("\ue123") == [2]
    other = tokenizer.as_transformers()
    assert other("The statement, it is 12")["input_ids"] == tokenizer.encode("The statement, it is 12")
    assert other.unk_token == "[UNK]"
    assert load(store, "w").manifest.parameters["pattern"] is None  # type: ignore[union-attr]


def test_texts_that_come_only_once(store: Store, prose: list[str]) -> None:
    from_list = train(store, prose, vocab_size=400, name="a")
    once = train(store, (text for text in [*prose]), vocab_size=400, name="b", overwrite=True)
    assert once.hash == from_list.hash
    assert once.manifest is not None
    assert from_list.manifest is not None
    assert once.manifest.parents == from_list.manifest.parents


@pytest.mark.parametrize("algorithm", ["unigram", "wordpiece"])
def test_other_algorithms_on_hardly_any_text(store: Store, algorithm: str) -> None:
    tokenizer = train(store, ["ab"], vocab_size=300, algorithm=algorithm, name="t")
    assert tokenizer.decode(tokenizer.encode("ab")) == "ab"
