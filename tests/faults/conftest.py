"""A small store, made once and copied for every fault."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fault_kit import TEXTS


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a corpus, a tokenizer, shards and a small model beside it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from nbllm.sessions import Session
    from nbllm.sessions.starting import new_shards
    from nbllm.store import Store

    torch.set_num_threads(1)  # forked children compute too, and a pool of threads doesn't survive a fork
    home = tmp_path_factory.mktemp("faults") / "template"
    home.mkdir()
    session = Session(Store(home / ".nbllm"), "default")
    session.clean(texts=TEXTS, recipe="none", name="docs")
    session.train_tokenizer(vocab_size=280)
    new_shards(session, session.corpus, session.tokenizer, 0.05)
    torch.manual_seed(0)
    shape: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    config = LlamaConfig(vocab_size=session.tokenizer.vocab_size, num_attention_heads=2, **shape)
    LlamaForCausalLM(config).save_pretrained(home / "model")
    session.tokenizer.save(home / "model")
    return home


@pytest.fixture
def home(template: Path, tmp_path: Path) -> Path:
    """A copy of the template, which is the current folder."""
    home = tmp_path / "home"
    shutil.copytree(template, home)
    os.chdir(home)
    return home
