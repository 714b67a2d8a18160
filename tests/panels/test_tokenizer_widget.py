"""The kernel's half of the tokenizer panel, without a browser."""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np
import pytest
from fake_tokenizing import TokenizingSession

from nbllm.errors import NotFoundError
from nbllm.panels import show_tokenizer
from nbllm.panels.tokenizer import FIRST_TEXT, TokenizerPanel
from nbllm.panels.tokenizer_data import encode_segments, encode_strip, search
from nbllm.store import Store
from nbllm.tokenizer import align, train

TEXTS = ["the tokens of the text, and the bytes of the tokens 12 123 é"] * 20
HOSTILE = "<img src=x onerror=alert(1)> \"'</script><script>alert(2)</script> \x00\x1b[31m \u202eabc\u202c"


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("store"))
    train(store, TEXTS, vocab_size=280, name="small")
    return TokenizingSession(store, train(store, TEXTS, vocab_size=320, name="large"))


@pytest.fixture
def panel(session, monkeypatch):
    panel = TokenizerPanel(session, text="the 😀 token")
    panel.messages, panel.buffers, panel.faces = [], [], []

    def send(content, buffers=None):
        panel.messages.append(content)
        panel.buffers.append(buffers or [])

    monkeypatch.setattr(panel, "send", send, raising=False)
    monkeypatch.setattr(panel.face, "_publish", lambda body, text, update: panel.faces.append((body, text)))
    panel.start()
    yield panel
    panel.close()


def ask(panel, **content):
    panel._receive(None, content, [])
    return panel.messages[-1], panel.buffers[-1]


def test_a_strip_is_whole_in_its_numbers(session):
    text = "the 😀 token\n" + HOSTILE
    strip = session.tokenizer.inspect(text)
    header, buffer = encode_strip(strip)
    numbers = np.frombuffer(buffer, "<i4").reshape(-1, 4)
    ids = session.tokenizer.encode(text)
    assert [header["ids"][place] for place in numbers[:, 0]] == ids
    assert [header["names"][place] for place in numbers[:, 0]] == [session.tokenizer.token_text(id) for id in ids]
    sizes = np.array(header["sizes"])[numbers[:, 0]]
    assert list(numbers[:, 1]) == list(np.cumsum(sizes) - sizes)
    assert sizes.sum() == len(text.encode())
    assert [(token.start, token.end) for token in strip.tokens] == [tuple(row) for row in numbers[:, 2:]]
    emoji = [entry for entry in header["shared"] if "😀" in entry[2]]
    assert len(emoji) == 1
    first, size, _ = emoji[0]
    assert numbers[first, 2] == numbers[first + size - 1, 3] - 1
    assert not any("\u202e" in name or "\x1b" in name for name in header["names"])


def test_segments_hold_every_token(session):
    alignment = align([session.tokenizer, session.tokenizer], "the tokens 😀")
    ends = np.frombuffer(encode_segments(alignment), "<i4").reshape(-1, 2)
    assert list(ends[-1]) == [len(strip.tokens) for strip in alignment.strips]
    assert (np.diff(ends, axis=0) >= 0).all()


def test_search_finds_text_bytes_and_ids(session):
    tokenizer = session.tokenizer
    assert len(search(tokenizer, "")) == tokenizer.vocab_size
    for id in search(tokenizer, "the"):
        assert b"the" in tokenizer.token_bytes(id).lower()
    assert tokenizer.encode(" the")[0] in search(tokenizer, "␣the")
    assert list(search(tokenizer, " the")) == list(search(tokenizer, "␣the"))
    assert all(b" t" in tokenizer.token_bytes(id) for id in search(tokenizer, "0x20 74"))
    assert len(search(tokenizer, "0x2074")) > 0
    assert search(tokenizer, "12")[0] == 12
    lengths = [len(tokenizer.token_bytes(id)) for id in search(tokenizer, "", order="length")]
    assert lengths == sorted(lengths, reverse=True)
    assert list(search(tokenizer, "no such token")) == []


def test_typing_details_and_side_by_side(panel, session):
    message, buffers = ask(panel, ask="snapshot", view="v")
    assert (message["kind"], message["view"], message["text"]) == ("snapshot", "v", "the 😀 token")
    assert len(buffers) == 2
    message, _ = ask(panel, do="text", text="the token", turn=3)
    assert (message["kind"], message["turn"]) == ("strip", 3)
    assert message["strips"][0]["ids"] == list(dict.fromkeys(session.tokenizer.encode("the token")))
    assert message["choices"] == ["large", "small"]

    id = session.tokenizer.encode(" the")[0]
    message, _ = ask(panel, do="details", which=0, id=id)
    assert dict(message["rows"])["Bytes"] == "20 74 68 65"
    assert message["tree"][0][:3] == [0, "␣the", id]
    assert "".join(row[1] for row in message["tree"] if row[3] is None) == "␣the"

    message, buffers = ask(panel, do="add", name="small")
    assert [strip["name"] for strip in message["strips"]] == ["large", "small"]
    assert len(buffers) == 3
    assert panel._as_face()[0].count("nb-tokens") > 2
    message, _ = ask(panel, do="remove", which=1)
    assert len(message["strips"]) == 1
    message, _ = ask(panel, do="add", name="nothing")
    assert message["kind"] == "error"
    message, _ = ask(panel, do="text", text="half \ud83d", turn=4)
    assert "surrogate" in message["text"]


def test_counts_come_from_the_corpus(panel, session):
    id = session.tokenizer.encode(" the")[0]
    message, _ = ask(panel, do="count", which=0)
    assert "no corpus" in message["text"]
    session.corpus = SimpleNamespace(texts=lambda: iter(TEXTS))
    try:
        ask(panel, do="count", which=0)
        deadline = time.monotonic() + 5
        while panel.messages[-1]["kind"] != "counted":
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        session.corpus = None
    message, _ = ask(panel, do="details", which=0, id=id)
    expected = sum(session.tokenizer.encode(text).count(id) for text in TEXTS)
    assert dict(message["rows"])["In the corpus"] == f"{expected:,} times"


def test_the_face_is_small_and_escaped(panel):
    ask(panel, do="text", text=HOSTILE * 1000, turn=1)
    panel.settle()
    body, _ = panel.faces[-1]
    assert len(body.encode()) < 300_000
    assert "<script" not in body
    assert "<img" not in body
    assert "left out to keep the notebook small" in body
    message, _ = ask(panel, do="text", text="x" * 100_001, turn=2)
    assert message["notes"][0] == "Only the first 100,000 characters are shown"


def test_it_needs_a_tokenizer():
    with pytest.raises(NotFoundError, match="no tokenizer"):
        show_tokenizer(SimpleNamespace(tokenizer=None), text=FIRST_TEXT)
