"""One tokenizer, trained once on prose from the standard library."""

from __future__ import annotations

from pathlib import Path

import pytest

from nbllm.store import Store
from nbllm.tokenizer import Tokenizer, train


@pytest.fixture(scope="session")
def prose() -> list[str]:
    from pydoc_data import topics

    return list(topics.topics.values())[:40]


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, prose: list[str]) -> Tokenizer:
    return train(Store(tmp_path_factory.mktemp("store")), prose, vocab_size=1000, name="prose")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / ".nbllm")
