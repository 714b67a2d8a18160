"""A byte-level tokenizer, and tiny models as folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import TEXTS, Build, save

from nbllm.store import Store
from nbllm.tokenizer import Tokenizer, train


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small only lose by threads that wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def words(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return train(Store(tmp_path_factory.mktemp("words")), TEXTS * 20, text_bytes=3000, vocab_size=320, name="words")


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory, words: Tokenizer) -> Build:
    """Makes a transformers folder of a kind; keyword arguments go into its config."""

    def make(kind: str, tokenizer: Tokenizer = words, **options: Any) -> Path:
        return save(kind, tokenizer, tmp_path_factory.mktemp(kind), **options)

    return make
