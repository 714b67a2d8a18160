"""Rows of an embedding that training never moved are found; the report names them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from nbllm.errors import UsageError
from nbllm.inspect.undertrained import known_unused, undertrained
from nbllm.store import Store
from nbllm.tokenizer import train

TEXT = "The quick brown fox jumps over the lazy dog. "


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return train(Store(tmp_path_factory.mktemp("store")), [TEXT * 4] * 40, text_bytes=7000, vocab_size=300, name="tiny")


def model(rows, tied):
    config = LlamaConfig(
        vocab_size=len(rows), hidden_size=rows.shape[1], intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, tie_word_embeddings=tied,
    )  # fmt: skip
    made = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        made.get_output_embeddings().weight.copy_(rows)
        made.get_input_embeddings().weight.copy_(rows)
    return made


@pytest.mark.parametrize("tied", [True, False])
def test_rows_that_were_never_moved_are_found(tied, tokenizer):
    size = tokenizer.vocab_size
    random = torch.Generator().manual_seed(3)
    never = list(known_unused(tokenizer, size))
    assert len(never) == 13  # bytes that UTF-8 never has
    planted = [tokenizer.encode(" fox")[0], tokenizer.encode("ÿ")[0], tokenizer.encode("Q")[0]]
    common = 2 * torch.randn(24, generator=random)
    start = torch.randn(24, generator=random)
    rows = common + torch.randn(size, 24, generator=random)
    for id in (*never, *planted):
        rows[id] = common + 0.3 * start + 0.05 * torch.randn(24, generator=random)
    found = undertrained(model(rows, tied), tokenizer, name="planted")
    assert found.indicator == "cosine"
    assert {id for id, _, _ in found.tokens[:3]} == set(planted)
    assert len(found.tokens) == round(size * 0.02)
    assert found.tokens[0][2] < 0.2 < found.values[tokenizer.encode(" dog")[0]]
    assert not set(never) & {id for id, _, _ in found.tokens}
    report = dataclasses.replace(tokenizer.report([TEXT]), undertrained=found.tokens)
    label = next(value for name, value in report.rows() if name.startswith("Hardly learnt"))
    assert "␣fox (1×)" in label
    assert "Hardly learnt" in report._repr_html_()


def test_without_known_tokens_the_norm_stands_in(tmp_path):
    words = train(Store(tmp_path), [TEXT] * 40, text_bytes=2000, vocab_size=60, algorithm="wordpiece", name="words")
    assert not known_unused(words, words.vocab_size)
    rows = torch.randn(words.vocab_size, 24, generator=torch.Generator().manual_seed(3))
    small = words.encode("fox")[0]
    rows[small] *= 0.01
    found = undertrained(model(rows, False), words)
    assert found.indicator == "norm"
    assert found.tokens[0][0] == small
    np.testing.assert_allclose(found.values, rows.norm(dim=1).numpy(), rtol=1e-5)
    with pytest.raises(UsageError, match="known never to occur"):
        undertrained(model(rows, True), words)
    assert undertrained(model(rows, True), words, known=[small]).indicator == "cosine"
