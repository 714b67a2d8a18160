"""Tiny random models and a byte-level tokenizer of 300 entries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tiny_models import build

from nbllm.store import Store
from nbllm.tokenizer import Tokenizer, train

TEXTS = ["The quick brown fox jumps over the lazy dog. ", "def next(self): return self.value\n", "안녕하세요 👩‍🚀 né\n"]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small only lose by threads that wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    store = Store(tmp_path_factory.mktemp("store"))
    return train(store, TEXTS * 20, text_bytes=3000, vocab_size=300, name="tiny")


@pytest.fixture(scope="session", params=["llama", "gpt2"])
def model(request: pytest.FixtureRequest, tokenizer: Tokenizer) -> Any:
    return build(request.param, tokenizer)


@pytest.fixture(scope="session")
def llama(tokenizer: Tokenizer) -> Any:
    return build("llama", tokenizer)
