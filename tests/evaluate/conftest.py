"""A tiny random model whose context is short, and its byte-level tokenizer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from nbllm.store import Store
from nbllm.tokenizer import Tokenizer, train

CONTEXT = 32
TEXTS = ["The quick brown fox jumps.", "", "안녕 👩‍🚀", "def next(self): return self.value\n", "x"]


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return train(Store(tmp_path_factory.mktemp("store")), TEXTS * 9, text_bytes=900, vocab_size=300, name="tiny")


@pytest.fixture(scope="session")
def model(tokenizer: Tokenizer) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=tokenizer.vocab_size, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=CONTEXT, initializer_range=0.2,
        bos_token_id=None, eos_token_id=tokenizer.eos_id, pad_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()
