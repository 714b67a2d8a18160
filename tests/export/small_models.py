"""Tiny random models of several kinds, and what transformers itself says with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from nbllm.tokenizer import Tokenizer

TEXTS = [
    "The quick brown fox jumps over the lazy dog. ",
    "def next(self): return self.value\n",
    "안녕하세요 👩‍🚀 né 123\n",
]
Build = Callable[..., Path]


def save(kind: str, tokenizer: Tokenizer, folder: Path, **options: Any) -> Path:
    """Writes a transformers folder; its weights are large enough that its choices are far apart."""
    torch.manual_seed(1)
    ends: dict[str, Any] = {"bos_token_id": None, "eos_token_id": tokenizer.eos_id}
    if kind == "gpt2":
        small = {"n_embd": 48, "n_layer": 1, "n_head": 4, "n_positions": 96, "initializer_range": 0.2}
        model: Any = GPT2LMHeadModel(GPT2Config(vocab_size=tokenizer.vocab_size, **ends, **{**small, **options}))
    else:
        shape = {
            "vocab_size": tokenizer.vocab_size, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 96, "pad_token_id": None,
            "initializer_range": 0.2, **ends, **options,
        }  # fmt: skip
        if kind == "qwen2":
            model = Qwen2ForCausalLM(Qwen2Config(**shape))
            for name, weight in model.named_parameters():
                if name.endswith("bias"):
                    torch.nn.init.normal_(weight, std=0.2)
        elif kind == "qwen3":
            model = Qwen3ForCausalLM(Qwen3Config(head_dim=128, **shape))
        else:
            model = LlamaForCausalLM(LlamaConfig(**shape))
    model.save_pretrained(folder)
    tokenizer.save(folder)
    return folder


def greedy(folder: Path, prompt: list[int], count: int) -> list[int]:
    """What transformers' own `generate` says after a prompt."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config = GenerationConfig()
    model.config.eos_token_id = None
    config = GenerationConfig(do_sample=False, max_new_tokens=count, pad_token_id=0)
    found = model.generate(torch.tensor([prompt]), generation_config=config)
    return found[0, len(prompt) :].tolist()


def logits_of(folder: Path, ids: list[int]) -> torch.Tensor:
    """Logits of the token after some ids, float32 [V]."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0, -1]
