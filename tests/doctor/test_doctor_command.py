"""`%llm_doctor` as it is typed, over a session with a tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from nbllm.commands import Call, find
from nbllm.doctor import Diagnosis
from nbllm.errors import NotFoundError, UsageError
from nbllm.sessions import Session
from nbllm.store import Store
from nbllm.tokenizer import train


@pytest.fixture
def session(tmp_path: Path) -> Session:
    store = Store(tmp_path / ".nbllm")
    tokenizer = train(store, ["the queue of the fox "] * 9, text_bytes=189, vocab_size=300, name="tiny")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=tokenizer.vocab_size, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=16, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    tokenizer.save(tmp_path / "model")
    session = Session(store, "test")
    session.model = session.models.reference(str(tmp_path / "model"))
    return session


def run(session: Session, line: str) -> Diagnosis:
    command = find("llm_doctor")
    found = command.run(Call(session=session, arguments=command.parse(line)))
    assert isinstance(found, Diagnosis)
    return found


def test_the_last_text_or_one_that_is_made_now(session: Session) -> None:
    with pytest.raises(NotFoundError, match="There is no text yet"):
        run(session, "")
    made = session.generate("the fox", max_new_tokens=3)
    assert session.last_generation is made
    assert "ranks and entropy" not in run(session, "").checked
    found = run(session, '"the fox"')
    assert "ranks and entropy" in found.checked
    assert [one.name for one in found if "context" in one.name] == ["the context is full"]
    with pytest.raises(UsageError, match="more than one word"):
        run(session, "the fox")
