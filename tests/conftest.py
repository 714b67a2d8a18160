"""Shared by all tests: a store of its own for each, no hub, and few threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from nbllm.sessions import Session

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["NBLLM_COMPILE"] = "off"  # a test that wants the compiled step switches it on


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees another's artefacts, nor those of the person who runs it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NBLLM_HOME", raising=False)
    monkeypatch.delenv("NBLLM_SESSION", raising=False)
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)


@pytest.fixture
def tiny_session(tmp_path: Path) -> Callable[..., Session]:
    """Makes a session whose current model is a tiny random Llama in a folder; keyword arguments go into its config."""

    def make(**options: Any) -> Session:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        from nbllm.sessions import Session
        from nbllm.store import Store
        from nbllm.tokenizer import train

        store = Store(tmp_path / ".nbllm")
        tokenizer = train(store, ["the queue of the fox "] * 9, text_bytes=189, vocab_size=300, name="tiny")
        torch.manual_seed(0)
        shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
        LlamaForCausalLM(LlamaConfig(vocab_size=tokenizer.vocab_size, **(shape | options))).save_pretrained(
            tmp_path / "model"
        )
        tokenizer.save(tmp_path / "model")
        session = Session(store, "test")
        session.model = session.models.reference(str(tmp_path / "model"))
        return session

    return make
