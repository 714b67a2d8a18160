"""One token looked into: merges as the library does them, scores, pieces; hints; several tokenizers aligned."""

from __future__ import annotations

import itertools
import json
import random

import pytest
import tokenizers
from hard_texts import HARD_TEXTS, fuzz_texts
from kinds import SOME, bert_like, gpt2_like, llama_like, unigram_like

from nbllm.errors import UsageError
from nbllm.tokenizer import Hint, Tokenizer, align, hints


def after(tokenizer: Tokenizer, merges: int, token: str) -> list[str]:
    """What the tokenizers library makes of a token's letters by the first so many merges."""
    content = json.loads(tokenizer.definition)
    content["model"]["merges"] = content["model"]["merges"][:merges]
    backend = tokenizers.Tokenizer.from_str(json.dumps(content))
    return [piece.value for piece in backend.model.tokenize(token)]


@pytest.mark.parametrize("make", [gpt2_like, llama_like])
def test_merges_are_those_that_the_library_does(make) -> None:
    tokenizer = make()
    merged = [id for id in range(tokenizer.vocab_size) if tokenizer.merge(id) is not None]
    assert len(merged) > 150
    for id in random.Random(0).sample(merged, 25):
        tree = tokenizer.merges_of(id)
        assert tree is not None
        assert tree.left is not None
        assert tree.right is not None
        assert tree.id == id
        assert (tree.rank, tree.left.bytes, tree.right.bytes) == tokenizer.merge(id)
        assert tree.left.bytes + tree.right.bytes == tree.bytes == tokenizer.token_bytes(id)
        assert b"".join(leaf.bytes for leaf in tree.leaves) == tree.bytes
        for step in tree.steps:
            assert step.rank is not None
            assert after(tokenizer, step.rank + 1, step.token) == [step.token]
            assert after(tokenizer, step.rank, step.token) == [part.token for part in step.parts]


def test_a_tree_prints_itself() -> None:
    tokenizer = gpt2_like()
    tree = tokenizer.merges_of(tokenizer.encode(" the")[0])
    assert tree is not None
    assert (tree.text, len(tree.leaves), len(tree.steps)) == ("␣the", 4, 3)
    lines = str(tree).splitlines()
    assert lines[0] == f"␣the  id {tree.id}  merge {tree.rank}"
    assert len(lines) == 7
    assert next(line[0] for line in lines[1:] if line[0] != "│") == "├"
    assert {line.lstrip("│├└ ")[0] for line in lines[1:]} >= {"␣", "t", "h", "e"}
    assert tree.depth == max(len(line) - len(line.lstrip("│├└ ")) for line in lines) // 2


def test_details_by_kind() -> None:
    gpt2, bert, unigram = gpt2_like(), bert_like(), unigram_like()
    end = gpt2.details(0, counts=[7])
    assert (end.special, end.tree, end.rank, end.count, end.algorithm) == (True, None, None, 7, "bpe")
    letter = gpt2.details(gpt2.encode("q")[0])
    assert (letter.rank, letter.count, letter.bytes) == (None, None, b"q")
    assert letter.tree is not None
    assert letter.tree.parts == ()

    id = bert._backend.token_to_id("token")
    word = bert.details(id)
    assert (word.algorithm, word.tree, word.score, word.bytes) == ("wordpiece", None, None, b"token")
    assert "".join(piece.removeprefix("##") for piece in word.pieces) == "token"
    assert len(word.pieces) > 1
    assert not word.pieces[0].startswith("##")
    content = json.loads(bert.definition)
    del content["model"]["vocab"]["token"]
    content["model"]["vocab"]["taken"] = id
    without = tokenizers.Tokenizer.from_str(json.dumps(content))
    assert tuple(piece.value for piece in without.model.tokenize("token")) == word.pieces
    inside = next(i for i in range(bert.vocab_size) if bert.token(i).startswith("##") and len(bert.token(i)) > 4)
    assert bert.token_bytes(inside) == bert.token(inside)[2:].encode()
    assert all(piece.startswith("##") for piece in bert.details(inside).pieces)

    vocabulary = json.loads(unigram.definition)["model"]["vocab"]
    assert all(unigram.score(id) == score for id, (_, score) in enumerate(vocabulary))
    shown = str(unigram.details(20, counts=[3] * 300))
    assert "Score" in shown
    assert "3 times" in shown
    with pytest.raises(UsageError, match="0 to"):
        gpt2.details(10**6)


@pytest.mark.parametrize("make", [gpt2_like, llama_like, bert_like, unigram_like])
def test_ids_and_bytes_agree_with_the_library(make) -> None:
    tokenizer = make()
    library = tokenizers.Tokenizer.from_str(tokenizer.definition)
    library.encode_special_tokens = True
    texts = [*HARD_TEXTS, *SOME, *fuzz_texts(300, seed=11)]
    for text in texts:
        ids = tokenizer.encode(text)
        encoding = library.encode(text, add_special_tokens=False)
        assert ids == encoding.ids
        assert [tokenizer.token(id) for id in ids] == [library.id_to_token(id) for id in ids]
        joined = b"".join(tokenizer.token_bytes(id) for id in ids)
        if tokenizer.byte_level:
            assert joined == text.encode()
        elif make is llama_like:
            assert joined == (" " + text if text else "").replace("▁", " ").encode()
        if not tokenizer.joins_bytes:
            assert tokenizer.decode(ids, skip_special=False) == library.decode(ids, skip_special_tokens=False)


def found(tokenizer: Tokenizer, text: str) -> list[str]:
    return [hint.message for hint in hints(text, tokenizer.inspect(text).tokens, tokenizer.encode)]


def test_hints_say_what_is_odd(trained: Tokenizer) -> None:
    (formula,) = [hint for hint in found(trained, "Acid: CH3COOH.") if "formula" in hint]
    assert formula.startswith("The formula CH3COOH is cut ")
    assert formula.endswith("its parts are C H3 C O O H")
    assert "its parts are Ca ( O H )2" in found(trained, "a Ca(OH)2 b")[0]
    for word in ("B2B", "H1N1", "USA", "Hello", "NATO4x"):
        assert not any("formula" in hint for hint in found(trained, f"a {word} b"))
    (scripts,) = [hint for hint in found(trained, "a p\u0430ypal b") if "mixes" in hint]
    assert "mixes Latin and Cyrillic letters, such as \u0430 (U+0430 cyrillic small letter a)" in scripts
    assert not any("mixes" in hint for hint in found(trained, "naïve слово 漢字かな"))
    assert any("U+200B zero width space" in hint for hint in found(trained, "a\u200bb"))
    assert not any("can't be seen" in hint for hint in found(trained, "👩\u200d👧"))


@pytest.mark.parametrize(
    ("cuts", "said"),
    [
        ((3, 2), "123│45, in groups of 3 from the left"),
        ((1, 3, 1), "1│234│5, in uneven groups"),
        ((2, 3), None),
        ((1, 1, 1, 1, 1), None),
        ((5,), None),
        ((1, 4), None),
    ],
)
def test_numbers_that_do_not_line_up(cuts: tuple[int, ...], said: str | None) -> None:
    places = [sum(cuts[:i]) for i in range(len(cuts) + 1)]
    tokens = [Hint(start=a + 2, end=b + 2, message="") for a, b in itertools.pairwise(places)]
    messages = [hint.message for hint in hints("a 12345 b", tokens)]
    assert len(messages) == (said is not None)
    assert said is None or said in messages[0]


def test_leading_spaces_are_explained() -> None:
    tokenizer = gpt2_like()
    assert len(tokenizer.encode("text")) > len(tokenizer.encode(" text"))
    messages = found(tokenizer, "text and text")
    assert any("The first word, text, takes" in message for message in messages)
    assert any(message.startswith("text is cut text here and ") for message in messages)
    assert hints("", []) == []


def test_tokenizers_aligned_by_character(trained: Tokenizer) -> None:
    makers = [trained, gpt2_like(), llama_like(), bert_like(), unigram_like()]
    for text in [*HARD_TEXTS, *SOME[:6], *fuzz_texts(40, seed=5)]:
        aligned = align(makers, text)
        assert aligned.names == ("prose", "gpt2-like", "llama-like", "bert-like", "unigram-like")
        assert "".join(text[segment.start : segment.end] for segment in aligned.segments) == text
        for which, strip in enumerate(aligned.strips):
            held = [token for segment in aligned.segments for token in aligned.tokens(segment, which)]
            assert held == list(strip.tokens)
            for segment in aligned.segments:
                for token in aligned.tokens(segment, which):
                    assert segment.start <= token.start
                    assert token.end <= segment.end
    both = align([trained, trained], "tokens here")
    assert both.names == ("prose", "prose (2)")
    assert [segment.counts for segment in both.segments] == [(1, 1)] * len(both.strips[0].tokens)
    assert all(segment.agreed for segment in both.segments)
    assert align([trained], "").segments == ()
    with pytest.raises(UsageError, match="one to 5"):
        align([trained] * 6, "x")
