"""Building shards: what stands on disk, what is reused, what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nbllm.errors import DataError, NotFoundError, UsageError
from nbllm.shards import Example, Shards, TokenStream, build
from nbllm.store import Parent, Store
from nbllm.tokenizer import Tokenizer, train

PARENTS = [Parent(kind="corpus", name="c", hash="c1")]
TEXTS = ["Two birds sat in a tree.", "", "한국어 😀", "a<|endoftext|>b", "x" * 300, " "]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    from pydoc_data import topics

    return train(Store(tmp_path_factory.mktemp("t")), list(topics.topics.values())[:20], vocab_size=500, name="t")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / ".nbllm")


def documents(stream: TokenStream) -> list[list[int]]:
    pairs = zip(stream.boundaries[:-1], stream.boundaries[1:], strict=True)
    return [stream.tokens[start:stop].tolist() for start, stop in pairs]


def test_documents_are_kept_whole(store: Store, tokenizer: Tokenizer) -> None:
    shards = build(
        store, tokenizer, train=iter(TEXTS), held_out=TEXTS[:1], parents=PARENTS, parameters={"held_out": 0.2}
    )
    kept = [text for text in TEXTS if text]
    bos, eos = tokenizer.bos_id, tokenizer.eos_id
    assert documents(shards.train) == [[bos, *tokenizer.encode(text), eos] for text in kept]
    assert [tokenizer.decode(ids) for ids in documents(shards.train)] == kept
    assert shards.train.text_bytes == sum(len(text.encode()) for text in kept)
    assert (shards.train.documents, shards.held_out.documents) == (5, 1)
    assert shards.train.tokens.dtype == np.uint16
    assert isinstance(shards.train.tokens, np.memmap)
    assert shards.train.mask is None
    assert shards.manifest is not None
    assert shards.manifest.summary["train_tokens"] == len(shards.train)
    again = Shards.load(store, shards.name)
    assert np.array_equal(again.train.tokens, shards.train.tokens)
    assert not again.reused


def test_reuse_by_parents_parameters_and_tokenizer(store: Store, tokenizer: Tokenizer, tmp_path: Path) -> None:
    def untouched():
        raise AssertionError("read although the shards exist")
        yield

    first = build(store, tokenizer, train=TEXTS, parents=PARENTS, parameters={"held_out": 0.05})
    again = build(store, tokenizer, train=untouched(), parents=PARENTS, parameters={"held_out": 0.05})
    assert (first.reused, again.reused) == (False, True)
    assert again.name == first.name
    assert len(first.name) == 16
    others = [
        build(store, tokenizer, train=TEXTS, parents=PARENTS, parameters={"held_out": 0.1}),
        build(
            store,
            tokenizer,
            train=TEXTS,
            parents=[Parent(kind="corpus", name="c", hash="c2")],
            parameters={"held_out": 0.05},
        ),
        build(
            store,
            train(store, TEXTS, vocab_size=300, name="other"),
            train=TEXTS,
            parents=PARENTS,
            parameters={"held_out": 0.05},
        ),
    ]
    assert len({first.name, *(other.name for other in others)}) == 4


def test_pairs_learn_only_the_answer(store: Store, tokenizer: Tokenizer) -> None:
    pairs = [("Question: 1+1? ", "two"), (None, "an answer"), ([5, 6, 7], [8, 9])]
    shards = build(store, tokenizer, train=pairs, parents=PARENTS, parameters={})
    stream = shards.train
    assert stream.mask is not None
    learned = [
        stream.tokens[start:stop][stream.mask[start:stop] == 1].tolist()
        for start, stop in zip(stream.boundaries[:-1], stream.boundaries[1:], strict=True)
    ]
    eos = tokenizer.eos_id
    assert learned == [[*tokenizer.encode("two"), eos], [*tokenizer.encode("an answer"), eos], [8, 9, eos]]
    assert documents(stream)[0] == [
        tokenizer.bos_id,
        *tokenizer.encode("Question: 1+1? "),
        *tokenizer.encode("two"),
        eos,
    ]
    assert stream.text_bytes == len("two") + len("an answer") + len(tokenizer.decode([8, 9]).encode())
    assert shards.held_out.documents == 0


def test_examples_are_taken_as_they_are(store: Store, tokenizer: Tokenizer) -> None:
    example = Example(ids=[7, 8, 9, 10], targets=[True, False, True, True], text_bytes=5)
    stream = build(store, tokenizer, train=[example, "a text"], parents=PARENTS, parameters={}).train
    assert documents(stream)[0] == [7, 8, 9, 10]
    assert stream.mask is not None
    assert stream.mask[:4].tolist() == [0, 0, 1, 1]
    assert stream.mask[4:].tolist() == [0] + [1] * (len(stream) - 5)
    with pytest.raises(UsageError, match="as many targets"):
        Example(ids=[1, 2], targets=[True], text_bytes=0)


def test_many_small_documents_cross_the_chunks(store: Store, tokenizer: Tokenizer) -> None:
    texts = [f"document {i}" for i in range(9000)]
    seen: list[tuple[str, int, int]] = []
    shards = build(
        store, tokenizer, train=texts, parents=PARENTS, parameters={}, progress=lambda *now: seen.append(now)
    )
    assert shards.train.documents == 9000
    assert tokenizer.decode(documents(shards.train)[8999]) == "document 8999"
    assert seen[-1] == ("train", 9000, sum(map(len, texts)))
    assert len(seen) == 3


def test_what_is_refused_leaves_nothing(store: Store, tokenizer: Tokenizer) -> None:
    for texts in ([], ["", ""]):
        with pytest.raises(DataError, match="no text to train on"):
            build(store, tokenizer, train=texts, held_out=["x"], parents=PARENTS, parameters={})
    with pytest.raises(DataError, match="surrogate"):
        build(store, tokenizer, train=["fine", "\ud800"], parents=PARENTS, parameters={})
    with pytest.raises(UsageError, match="A document is"):
        build(store, tokenizer, train=[5], parents=PARENTS, parameters={})  # type: ignore[list-item]
    with pytest.raises(NotFoundError, match="%llm_train"):
        Shards.load(store, "abc")

    def interrupted():
        yield from TEXTS
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(store, tokenizer, train=interrupted(), parents=PARENTS, parameters={})
    assert store.names("shards") == []
    assert not any((store.root / "shards").iterdir())


def test_a_cut_file_is_noticed(store: Store, tokenizer: Tokenizer) -> None:
    shards = build(store, tokenizer, train=TEXTS, parents=PARENTS, parameters={})
    path = shards.folder / "train" / "tokens.bin"
    content = path.read_bytes()
    for size in (len(content) - 1, len(content) - 2, 0):
        path.write_bytes(content[:size])
        with pytest.raises(DataError):
            Shards.load(store, shards.name)


def test_wide_ids_for_a_large_vocabulary(store: Store) -> None:
    class Large:
        name, hash = "large", "h"
        vocab_size, bos_id, eos_id, pad_id = 70_000, None, 69_999, None

        document_prefix = ()

        def encode_batch(self, texts):
            return [[65_535, 65_536, len(text)] for text in texts]

        def token_bytes(self, id):
            return b"a"

    stream = build(store, Large(), train=["abc"], parents=PARENTS, parameters={}).train  # type: ignore[arg-type]
    assert stream.tokens.dtype == np.uint32
    assert stream.tokens.tolist() == [65_535, 65_536, 3, 69_999]
    assert stream.pad_id == 69_999
    assert stream.text_bytes == 2  # without a prefix the first token is no target
