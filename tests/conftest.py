"""Shared by all tests: a store of its own for each, no hub, and few threads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

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
