"""The strip and the report: right values, everything escaped, round trips stated."""

from __future__ import annotations

import html
import re

import pytest
from hard_texts import HARD_TEXTS, fuzz_texts

from nbllm.store import Store
from nbllm.tokenizer import Tokenizer, train


@pytest.mark.parametrize("text", [*HARD_TEXTS, *fuzz_texts(30, seed=4)])
def test_strip_covers_the_text(trained: Tokenizer, text: str) -> None:
    strip = trained.inspect(text)
    assert [token.id for token in strip.tokens] == trained.encode(text)
    assert b"".join(token.bytes for token in strip.tokens) == text.encode()
    assert strip.round_trip
    groups = strip.groups
    assert "".join(text[group[0].start : group[-1].end] for group in groups) == text
    assert [token for group in groups for token in group] == list(strip.tokens)
    for group in groups:  # a group is as small as whole characters allow
        assert b"".join(token.bytes for token in group).decode() == text[group[0].start : group[-1].end]


def test_strip_as_text(trained: Tokenizer) -> None:
    shown = str(trained.inspect("é 😀"))
    assert "{😀: <F0>│<9F>│<98>│<80>}" in shown
    assert "round trip exact" in shown
    assert "😀 (U+1F600 grinning face)" in shown
    assert "ends in spaces" in str(trained.inspect("hello  "))


def test_strip_escapes_everything(store: Store) -> None:
    name = "plain"
    texts = ['say "hi" <b>bold</b> & "hi" <b>x</b>'] * 20
    tokenizer = train(store, texts, vocab_size=300, pattern="none", name=name)
    assert any(b'"' in tokenizer.token_bytes(id) and len(tokenizer.token_bytes(id)) > 1 for id in range(300))
    for text in (*texts[:1], "a<b<c", '"><script>alert(1)</script>', "<|endoftext|>'\"&amp;", "\x1b[31m", "<é>"):
        strip = tokenizer.inspect(text)
        markup = strip._repr_html_()
        body = markup[markup.index("</style>") :]
        tags = set(re.findall(r"<(/?\w+)", body))
        assert tags <= {"/style", "div", "/div", "span", "/span", "b", "/b", "br"}
        assert body.count("<b>") == 1  # the tokenizer's name
        for attribute in re.findall(r'title="([^"]*)"', body):
            assert "<" not in attribute
        # what a browser would show holds every token's text
        tokens_only = re.sub(r'<span class="nb-c">[^<]*</span>', "", body)
        shown = html.unescape(re.sub(r"<[^>]*>", "", tokens_only))
        assert "".join(token.text for token in strip.tokens) in shown
        assert body.count("nb-t ") == len(strip.tokens)


def test_strip_title_and_merge(trained: Tokenizer) -> None:
    (token,) = trained.inspect(" the").tokens
    assert token.merge is not None
    rank, left, right = token.merge
    assert left + right == "␣the"
    assert trained.vocab_size - 258 > rank >= 0
    assert token.title == f"id {token.id} · 4 bytes: 20 74 68 65 · merge {rank:,}: {left} + {right}"
    assert f'title="{html.escape(token.title)}"' in trained.inspect(" the")._repr_html_()
    special = trained.inspect("<|endoftext|>", allow_special=True).tokens
    assert [(token.id, token.special, token.merge) for token in special] == [(0, True, None)]


def test_a_long_strip_is_cut_in_html_only(trained: Tokenizer) -> None:
    strip = trained.inspect("word 한 " * 3000)
    markup = strip._repr_html_()
    assert len(markup) < 400_000
    assert f"{len(strip) - 2000:,} more" in markup


def test_report(trained: Tokenizer, prose: list[str]) -> None:
    texts = [*prose, "", "한국어 \x00 😀"]
    found = trained.report(iter(texts))
    ids = [id for text in texts for id in trained.encode(text)]
    assert found.texts == len(texts)
    assert found.tokens == len(ids)
    assert found.used == len(set(ids))
    assert found.text_bytes == sum(len(text.encode()) for text in texts)
    assert found.bytes_per_token == pytest.approx(found.text_bytes / len(ids))
    assert found.characters_per_token == pytest.approx(sum(map(len, texts)) / len(ids))
    assert {id for id, _ in found.unused} == set(range(trained.vocab_size)) - set(ids) - {0, 1}
    lengths = [len(trained.token_bytes(id)) for id, _ in found.unused]
    assert lengths == sorted(lengths, reverse=True)
    assert (found.failure_count, found.failures, found.specials) == (0, (), (0, 1))
    assert "none in 42 texts" in str(found)
    assert "<script" not in trained.report(["<script>" * 9])._repr_html_()
    assert "Bytes a token" in found._repr_html_()


def test_report_of_nothing(trained: Tokenizer) -> None:
    found = trained.report([])
    assert (found.tokens, found.bytes_per_token, found.tokens_per_word) == (0, 0.0, 0.0)
    assert "Tokens" in str(found)
