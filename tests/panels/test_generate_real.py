"""The sampling panel over a real session and a tiny random model: what it shows is what the session generates."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from nbllm.panels.generate import GeneratePanel
from nbllm.sessions import Session
from nbllm.store import Store
from nbllm.tokenizer import train


@pytest.fixture(scope="module")
def session(tmp_path_factory) -> Session:
    folder = tmp_path_factory.mktemp("real")
    store = Store(folder / ".nbllm")
    texts = ["the queue of the fox — né 안녕하세요 "] * 9
    tokenizer = train(store, texts, text_bytes=450, vocab_size=300, name="tiny")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=tokenizer.vocab_size, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=96, initializer_range=0.3, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    tokenizer.save(folder / "model")
    session = Session(store, "test")
    session.model = session.models.reference(str(folder / "model"))
    session.sampling = {"max_new_tokens": 24, "temperature": 1.0, "seed": 3}
    return session


@pytest.fixture
def panel(session, monkeypatch):
    panel = GeneratePanel(session, prompt="the fox")
    panel.messages = []
    monkeypatch.setattr(panel, "send", lambda content, buffers=None: panel.messages.append(content), raising=False)
    monkeypatch.setattr(panel.face, "_publish", lambda body, text, update: None)
    panel.start()
    yield panel
    panel.close()


def began(panel):
    """The sampling that began last."""
    return max((message["job"] for message in panel.messages if message["kind"] == "begin"), default=0)


def sample(panel, command="sample", **content):
    panel.messages.clear()
    panel._receive(None, {"do": command, **content}, [])
    deadline = time.monotonic() + 20
    while not (began(panel) == panel.sampler.job and panel.messages[-1].get("doing") == "idle"):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)
    assert panel.sampler.error is None
    return panel.sampler.tree.current


def test_what_is_shown_is_what_is_generated(panel, session):
    branch = sample(panel)
    generation = session.generate("the fox", trace=True)
    assert tuple(token.id for token in branch.tokens) == generation.tokens
    assert branch.text == generation.text
    table = generation.trace.steps
    assert [token.rank for token in branch.tokens] == table["rank"].to_pylist()
    assert [token.probability for token in branch.tokens] == pytest.approx(table["probability"].to_pylist(), rel=1e-4)
    ids = [row["token"] for row in generation.trace.at(0)]
    assert [int(id) for id in branch.tokens[0].packed[7::4]] == ids
    assert branch.facts["tokens"] == 24
    assert branch.facts["compiled"] is False


def test_a_branch_is_the_generation_after_its_tokens(panel, session):
    root = sample(panel)
    wanted = int(root.tokens[5].packed[7 + 4])
    if wanted == root.tokens[5].id:
        wanted = int(root.tokens[5].packed[7])
    branch = sample(panel, "fork", branch=root.id, at=5, id=wanted)
    ids = [*root.prompt_tokens, *(token.id for token in root.tokens[:5]), wanted]
    generation = session.generate(ids)
    assert tuple(token.id for token in branch.own) == generation.tokens
    assert branch.facts["reused"] > 0, "the prompt's keys and values were there"
    # a slider that is moved and moved back gives the same text
    sample(panel, "settings", value={"temperature": 0.5})
    assert sample(panel, "settings", value={"temperature": 1.0}).text == branch.text


def test_the_cell_gives_the_same_text(panel, session):
    root = sample(panel)
    wanted = next(int(id) for id in root.tokens[2].packed[7::4] if int(id) != root.tokens[2].id)
    branch = sample(panel, "fork", branch=root.id, at=2, id=wanted)
    cell = panel.sampler.cell()
    ids = branch.input_ids
    text = session.prompt_text(ids)
    if text is None:
        assert repr(ids) in cell
    else:
        assert cell.endswith("\n" + text)
        assert session.generate(text).tokens == tuple(token.id for token in branch.own)


def test_moving_a_slider_again_and_again_ends_with_the_last(panel, session):
    sample(panel)
    for temperature in (0.3, 0.9, 1.7):
        panel._receive(None, {"do": "settings", "value": {"temperature": temperature}}, [])
    last = sample(panel, "settings", value={"temperature": 0.6})
    assert last.sampling.temperature == 0.6
    assert tuple(token.id for token in last.tokens) == session.generate("the fox").tokens
    session.sampling = {"temperature": 1.0}


def test_nothing_of_the_text_depends_on_the_path_to_it(panel: GeneratePanel, session: Session, tmp_path: Path) -> None:
    first = sample(panel).text
    sample(panel, "settings", value={"max_new_tokens": 12})
    assert first.startswith(panel.sampler.tree.current.text.rstrip("\ufffd"))
    assert sample(panel, "settings", value={"max_new_tokens": 24}).text == first
