"""Greedy tokens are transformers' own; text streams whole, ends at stop texts, and survives an interrupt."""

from __future__ import annotations

from typing import Any

import pytest
from tiny_models import CONTEXT, reference

from nbllm.errors import UsageError
from nbllm.sample import SamplingParameters, generate, generate_batch
from nbllm.tokenizer import Tokenizer

GREEDY = SamplingParameters(greedy=True, max_new_tokens=40)
PROMPTS = ["The quick ", "d", "def next(self): return self.value, over the lazy dog. ", "안녕"]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_is_transformers_own(model: Any, tokenizer: Tokenizer, prompt: str) -> None:
    wanted = reference(model, tokenizer.encode(prompt), 40)
    assert len(set(wanted)) > 5
    assert list(generate(model, tokenizer, prompt, GREEDY).tokens) == wanted
    assert list(generate(model, tokenizer, prompt, GREEDY, use_cache=False).tokens) == wanted


@pytest.mark.parametrize("use_cache", [True, False])
def test_a_padded_batch_is_each_alone(model: Any, tokenizer: Tokenizer, use_cache: bool) -> None:
    together = generate_batch(model, tokenizer, PROMPTS, GREEDY, use_cache=use_cache)
    for prompt, one in zip(PROMPTS, together, strict=True):
        assert list(one.tokens) == reference(model, tokenizer.encode(prompt), 40)
        assert one.prompt == prompt


def test_context_is_a_clear_stop(model: Any, tokenizer: Tokenizer) -> None:
    many = SamplingParameters(greedy=True, max_new_tokens=500)
    ids = [40] * (CONTEXT - 5)
    one = generate(model, tokenizer, ids, many)
    assert (len(one.tokens), one.stop_reason) == (5, "context")
    full = generate(model, tokenizer, [40] * CONTEXT, many)
    assert (full.tokens, full.text, full.stop_reason, full.first_token_ms) == ((), "", "context", None)
    with pytest.raises(UsageError, match=rf"{CONTEXT + 1} tokens.*context of {CONTEXT}"):
        generate(model, tokenizer, [40] * (CONTEXT + 1), many)
