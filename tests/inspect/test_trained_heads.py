"""The heads that a small model learns to copy with are found by the scores; without them it copies no more.

Trained here on sequences that repeat after a random number of distinct random tokens: what comes can only be known by
looking back to where the last token stood before (Olsson et al. 2022, https://arxiv.org/abs/2209.11895).
"""

from __future__ import annotations

import pytest
import torch
import transformers

from nbllm.inspect.attention import attention
from nbllm.store import Store
from nbllm.tokenizer import train

VOCABULARY, WIDTH, LENGTH, ROWS = 24, 48, 24, 32


def repeated(generator):
    """Rows of tokens that repeat after 5 to 11, and those of them that can be known."""
    periods = torch.randint(5, 12, (ROWS, 1), generator=generator)
    words = torch.rand(ROWS, VOCABULARY, generator=generator).argsort(1)
    place = torch.arange(LENGTH)[None]
    return words.gather(1, place % periods), place > periods


@pytest.fixture(scope="module")
def model():
    """Two layers of two heads, until it copies; about 400 steps of 768 tokens."""
    generator = torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=64, rope_parameters={"rope_type": "default", "rope_theta": 100.0}, bos_token_id=None,
        eos_token_id=None,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0, betas=(0.9, 0.99))
    for step in range(1500):
        optimizer.param_groups[0]["lr"] = 3e-3 * min(1, (step + 1) / 50)
        ids, known = repeated(generator)
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits[known[:, 1:]], ids[:, 1:][known[:, 1:]])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if loss < 0.05:
            return model.eval()
    pytest.fail(f"The model didn't learn to copy: {loss:.2f} nats")


@pytest.fixture(scope="module")
def maps(model, tmp_path_factory):
    tokenizer = train(Store(tmp_path_factory.mktemp("store")), ["abc abd"] * 40, text_bytes=300, vocab_size=300)
    ids = torch.randperm(VOCABULARY, generator=torch.manual_seed(5))[:11].tolist()
    return attention(model, tokenizer, [*ids, *ids[:7]])


def test_learnt_heads_are_found_by_their_scores(maps):
    rows = maps.scores.to_pylist()
    best = {kind: max(rows, key=lambda row: row[kind]) for kind in ("previous_token", "induction")}
    assert best["previous_token"]["layer"] == 0, "what stood before must be known before it can be looked for"
    assert best["previous_token"]["previous_token"] > 0.4
    assert best["induction"]["layer"] == 1
    assert best["induction"]["induction"] > 0.5
    assert max(row["previous_token"] for row in rows if row["layer"] == 1) < 0.2
    assert max(row["induction"] for row in rows if row["layer"] == 0) < 0.1


@pytest.mark.parametrize("kind", ["previous_token", "induction"])
def test_without_the_found_heads_it_copies_no_more(kind, maps):
    expected = maps.token_ids[7]  # what followed the last token when it stood there before
    found = [(row["layer"], row["head"]) for row in maps.scores.to_pylist() if row[kind] > 0.2]
    row = next(t for t in maps.next_tokens(without=found, top=VOCABULARY) if t.token_id == expected)
    assert row.probability > 0.8
    assert row.without < 0.4
